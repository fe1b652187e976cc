"""What asyncio has to report: errors that nobody retrieved, tasks that were destroyed, callbacks that failed.

It only logs them, because there is nobody left to raise them to. In a test each is a fault of the library or of the
test, and usually one that shows itself in one run of many: so the test in which it was reported fails.
"""

from __future__ import annotations

import logging
import traceback


class Complaints(logging.Handler):
    """The errors that asyncio has logged since the last look."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._texts: list[str] = []

    def begin(self) -> None:
        """Listen from now on."""
        logging.getLogger("asyncio").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what was reported, with its traceback."""
        lines = [record.getMessage()]
        if record.exc_info is not None:
            lines += traceback.format_exception(*record.exc_info)
        self._texts.append("\n".join(lines))

    def taken(self) -> list[str]:
        """What was reported since, which is forgotten here."""
        texts, self._texts = self._texts, []
        return texts


complaints = Complaints()
"""Those of this process of the run."""
