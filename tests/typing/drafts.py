"""An agent that asks a model midway in a transaction: `memo`, `check`, `doom`, errors that explain themselves."""

import asyncio
from typing import Any, assert_type

import interlock

calls: list[str] = []


async def ask_model(prompt: str, temperature: float = 0.0) -> str:
    """Slow and paid for, so it is asked once per run, however often the function runs again."""
    calls.append(prompt)
    return prompt.upper()


async def rewrite(session: interlock.AgentSession[dict[str, Any]], key: str) -> str:
    """Let the model rewrite a document; looks before asking whether the ground still holds."""
    document = await session.read(key, {"text": "empty"})
    await session.check()
    text = assert_type(await session.memo(ask_model, str(document["text"])), str)
    await session.write(key, {**document, "text": text})
    if session.attempt == 1:
        raise interlock.ConflictError("pretend that somebody was faster")
    return text


async def never(session: interlock.AgentSession[dict[str, Any]]) -> None:
    """A plan that was found wrong: it may go on, it can not commit."""
    await session.write("plan", {"text": "bad idea"})
    session.doom("the plan contradicts itself")


async def main() -> None:
    """Rewrite with one conflict; then a doomed session; then what the errors say."""
    store = interlock.Store(interlock.MemoryBackend(), agent="writer")
    async with store:
        documents = store.resource("documents", dict[str, Any])
        assert await documents.run(rewrite, "intro") == "EMPTY"
        assert calls == ["empty"]
        try:
            await documents.run(never)
        except interlock.TransactionError as error:
            assert "contradicts" in str(error)
            assert assert_type(error.explain(), str)
            assert not error.maybe_committed
        else:
            raise AssertionError("a doomed session was committed")
        assert await documents.read("plan") is None


def facts(error: interlock.InterlockError) -> list[str]:
    """What a program can ask of an error."""
    if isinstance(error, interlock.ConflictError):
        return [f"{conflict.resource}/{conflict.key}: {conflict.committed_by}" for conflict in error.conflicts]
    if isinstance(error, interlock.RetriesExhaustedError):
        return [f"{error.attempts} attempts", *([] if error.last is None else facts(error.last))]
    if isinstance(error, interlock.CommitUnknownError):
        return [error.transaction_id]
    if isinstance(error, interlock.ValueRefusedError):
        return [error.path]
    return [assert_type(error.code, str)]


if __name__ == "__main__":
    asyncio.run(main())
