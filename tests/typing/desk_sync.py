"""The same names in plain synchronous code: no `await` anywhere, everything else alike."""

from dataclasses import dataclass
from functools import partial
from typing import assert_type

import interlock
from interlock import sync as il


@dataclass(frozen=True)
class Loan:
    """Who has a book."""

    book: str
    reader: str


def lend(session: il.AgentSession[Loan], book: str, *, reader: str) -> str:
    """Lend a book to one reader; returns the reader, since what a keyed run returns is kept as a plain value."""
    if session.exists(book):
        raise LookupError(book)
    session.write(book, Loan(book, reader))
    return reader


def slow_lookup(book: str) -> str:
    """Something that is asked once per run."""
    return book.title()


def main() -> None:
    """Every way to a session."""
    with il.open("sqlite:///desk.db", agent="desk") as store:
        loans, counts = store.resource("loans", Loan), store.resource("counts", int)

        @loans.invariant("at most three loans")
        def few(view: il.AgentView[Loan]) -> bool:
            return len(list(view.scan())) <= 3

        @counts.transactional(agent="counter")
        def count(session: il.AgentSession[int], key: str, *, by: int = 1) -> int:
            session.add(key, by, ceiling=10)
            return session.expect(key)

        reader = assert_type(loans.run(partial(lend, reader="ada"), "sicp", idempotency_key="slip-1"), str)
        again = loans.run_detailed(partial(lend, reader="ada"), "sicp", idempotency_key="slip-1")
        assert_type(again, interlock.Committed[str])
        assert (again.value, again.replayed) == (reader, True)
        assert assert_type(count("loans", by=2), int) == 2

        for attempt in loans.attempts(agent="night shift"):
            with attempt, attempt.session() as session:
                title = assert_type(session.memo(slow_lookup, "taocp"), str)
                session.write("taocp", Loan(title, "don"))
                with session.savepoint():
                    session.delete("sicp")
                session.check()

        begun = loans.begin()
        begun.clear()
        begun.rollback()
        assert assert_type(list(loans.scan()), list[tuple[interlock.Key, Loan]]) == [("taocp", Loan("Taocp", "don"))]
        assert [entry.value for entry in loans.history("sicp")] == [None, Loan("sicp", "ada")]
        assert assert_type(loans.get("sicp"), Loan | None) is None

        changes = list(store.log.changes())
        assert [change.agent for change in changes] == ["desk", "counter", "night shift"]
        assert store.outcome(changes[0].transaction_id) is interlock.Outcome.COMMITTED


if __name__ == "__main__":
    main()
