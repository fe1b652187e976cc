"""The PostgreSQL backend: one schema of a database, any number of machines, commits in parallel.

`backend` is the port; `asynchronous` (with `connections`, `types`, `loops` and `gathering`) and `blocking` are its two
drivers over the same `statements`. The ``*.sql`` files are what lies on the server; `schema` puts them there. `locks`
says who waits for whom, `tokens` what a snapshot is, `groups` which commits share a call, `reads` and `scans` which
reads do, `requests` and `record` translate, `failures` turns errors into ours.

**A commit is one call of one function, in a transaction of its own.** It takes its advisory locks (`locks`), then
judges every expectation on one snapshot that is newer than the locks, then applies. Whoever changes a key holds its
exclusive lock until after the change is visible, because PostgreSQL releases locks last. So from the judging to the
end no key that was read can change, present or absent, and nobody can enter a range that is validated or cleared. Any
two commits that conflict are thus ordered by when they got their locks: strict two-phase locking over keys and
ranges, which is serialisable in that order. All take their locks in one order, each once at its final mode, and rows
are written only under a lock that excludes everybody else who would write them: no deadlock. The position of a commit
is its transaction's id, taken after the locks, and its place in that transaction, so that positions grow along the
order of every key and of everything that depends on anything. A pure validation takes no locks: it is right as of one
snapshot, and that is its answer. Commits of one event loop that queue share a call and a transaction (`groups`).

**A snapshot holds nothing open.** A version says at which position it began, a superseded one also where it ended; a
token is a set of positions (`tokens`). What a token shows is therefore decided by the token alone. Superseded versions
go to a table of their own; a quiet commit drops a version that was quiet itself and marks the row as torn, and a
snapshot that would need what was dropped is refused. The horizon of compaction is a snapshot, too. A token is good if
it contains the horizon; comparing lower ends instead would refuse every token while any transaction of the server
idles. The statement that reads also reads the horizon, and compaction raises it in the transaction that deletes.

**The feed** between two tokens is what the second shows and the first does not, by position. An open transaction of
another application is in both and delays nothing. Overlapping commits that do not depend on each other may come in
another order to another reader (`Capability.TOTAL_ORDER` is not declared). Every commit, quiet ones and fences
included, leaves a row under its id, whose uniqueness is the fence: of a commit and `outcome(fence=True)` exactly one
wins.

**Crashes.** Ids of transactions that left no record are given out again after crash recovery. Tokens end just behind
the newest record that they show, which is on disk if every commit waits for its sync; so tokens and cursors go on
after a crash. A commit with ``durable=False`` may be lost though a token shows it. The first of an epoch is therefore
noted, durably, before it is made. Each crash, promotion or restored backup empties an unlogged table, which begins a
new epoch, and if the one before was noted so, or the server's history has forked, older tokens are refused.

**What is known when a connection breaks.** An error that the server reports for a commit means that it was rolled
back. If the connection breaks after a commit was sent, or the server says that it is shutting down, the answer is
`CommitUnknownError`; before that it is `BackendUnavailableError`. Reads are repeated on a new connection.
A connection's epoch ends with the connection. Behind a transaction pooler (``pooler=True``) that is not so: there each
statement names the epoch and is refused in another, nothing is kept in the session, and no statement has a name.
"""

from interlock.backends.postgresql.backend import PostgreSQLBackend

__all__ = ["PostgreSQLBackend"]
