"""The Redis backend: one store in one slot of a Redis or Valkey server, one script for all commits.

`backend` is the port, its reading half `reading`; `asynchronous` (over `multiplexer` and `shared`) and `blocking` are
its two drivers. The ``.lua`` files are what runs on the server; `scripts` puts them together. `record` has the forms
that lie on the server, `requests` translates a commit, `greeting` is what every new connection asks, `address` finds
the server, `failures` turns errors into ours.

**What lies on the server**: seven keys with the store's name as hash tag, so in one slot. ``entries`` is a hash of key
-> newest entry, with the reserved fields ``s`` (head), ``m`` (meta), ``r`` (run id), ``v`` (form) and ``x`` +
transaction id (what became of it); keys of the library begin with a zero or one byte, so no field is both. ``index``
is a sorted set of the listed keys, all at score 0, so in byte order. ``history`` is a sorted set, too, of superseded
entries, each behind its key's length and its key, so that the entry which a snapshot shows is the last one before
the snapshot's edge. ``feed`` is a stream with the position as id. ``expiring`` orders keys by their end, ``settled``
transactions whose record has no place in the feed by when it may go, and ``large`` keeps values of over 4 KiB out of
what every check has to load.

**A commit is a part of one call of one script**, and the server runs one script at a time, start to end. So the order
of commits is the order of the calls, the position is a counter, and a snapshot is a number. Everything is checked
before anything is written, merges included; the first write is one that the server refuses if it may not write at all.
So a commit is there whole or not at all. The absent are judged like the present, and whatever has changed in a range
has a position behind the snapshot and stands in the feed behind it, tombstones and quiet commits included: no phantom.

**A call has the commits of a turn of the loop**, one after the other: what the good ones make stands, for those behind
them in the call, in the place of what was read, so each is judged as if those before it had been done by calls of
their own, and one that is refused leaves no trace. That holds for all that a commit looks up by key. What it looks up
by range is not in there, so a commit with spans, clears or keys to fetch is the only one of its call. All writes come
at the end, together. Where that fails as a whole, by an error reply, nothing of any of them is written, and each that
may not have been the cause goes again alone.

**The feed** has one entry for each position, in order; a commit of very many keys takes several entries of one
position, which readers join and no page divides. Quiet commits have an entry, too, which tells readers nothing: it lets
waiting callers wake, ranges be judged, and compaction find what they left. The feed and the history have one horizon.
Compaction goes along the feed and drops what each of its entries superseded; who asks below the horizon is refused by
the script that would have to answer. An id of a transaction is remembered until its own time has passed.

**Quiet overwrites** of a version that was quiet keep nothing of it; the successor is marked, and a snapshot that would
look behind the mark is refused.

**Crashes.** What the server loses with a crash is its setting (`greeting` reads it). A version is a position with 64
bits of the transaction's id, so a lost tail cannot give two values one version. Each server process has a run id; the
first connection to another one than last time raises the incarnation, in the script that finds this out, and tokens of
an earlier incarnation are refused. A store that has vanished is reported by whoever has known it, and made anew only by
an opening that has not. With ``durability="fsync"`` on one primary this is strict; copies on replicas are made after
the commit, and a promotion may lose what it acknowledged, whatever ``WAIT`` has confirmed.

**What is known when a connection breaks.** An error reply means that nothing was written. If the connection breaks
after a commit was sent, the answer is `CommitUnknownError`; before that, and for everything else, it is repeated or
`BackendUnavailableError`. A connection that owes replies and says nothing for ``reply_seconds`` is broken by us, and
what was asked over it is not asked again: whoever waits for a silent server should not wait several times. Such a
server may still do what it was sent, later. That is no new danger: it is what a broken connection leaves behind as
well, and `outcome` with a fence settles both, because the fence and the late commit are two calls of scripts, of which
the server does one first.
"""

from interlock.backends.redis.backend import RedisBackend

__all__ = ["RedisBackend"]
