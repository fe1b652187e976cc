"""Errors of other people's code, in words that can be shown and stored.

What an act or an undo raises is somebody else's: its text may be megabytes of a web page, may hold half a
surrogate pair, and asking for it may itself raise. None of that may keep what has happened from being written down.
"""

from __future__ import annotations

from typing import Final

ERROR_CHARACTERS: Final = 1000
"""The most that is kept of an error's text."""


def error_text(error: BaseException) -> str:
    """An error in words: its type and its text. Never raises, and can always be stored."""
    text = message_of(error)
    return f"{type(error).__name__}: {text}"[:ERROR_CHARACTERS] if text else type(error).__name__


def message_of(error: BaseException | None) -> str:
    """The text of an error without its type; the same promises."""
    try:
        text = str(error)
    except Exception:  # what is kept is what happened, not that its text is broken
        return "(it has no text that can be read)"
    return text[:ERROR_CHARACTERS].encode("utf-8", "backslashreplace").decode()[:ERROR_CHARACTERS]
