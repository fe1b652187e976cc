"""Worker processes empty one queue in a SQLite file; a store is pickled as its URL and options."""

import multiprocessing

import interlock
from interlock import sync as il


def put_all(session: il.AgentSession[str], jobs: list[str]) -> None:
    """Fill the queue; tuple keys keep the numbers in order."""
    for number, job in enumerate(jobs):
        session.write(("job", number), job)


def take(session: il.AgentSession[str]) -> str | None:
    """The next job, which nobody else gets."""
    for key, job in session.scan(("job",), limit=1):
        session.delete(key)
        return job
    return None


def work(store: il.Store, name: str) -> list[str]:
    """What one process does until the queue is empty."""
    with store:
        queue, done = store.resource("queue", str), list[str]()
        while (job := queue.run(take, agent=name)) is not None:
            done.append(job)
        return done


def main() -> None:
    """Two processes, twenty jobs, none lost, none done twice."""
    jobs = [f"job {number}" for number in range(20)]
    with il.open("sqlite:///queue.db", agent="main", retry=interlock.RetryPolicy(max_attempts=100)) as store:
        store.resource("queue", str).run(put_all, jobs)
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            done = pool.starmap(work, [(store, "left"), (store, "right")])
        assert sorted(job for each in done for job in each) == sorted(jobs)


if __name__ == "__main__":
    main()
