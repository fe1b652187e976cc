"""What holds for every test."""

from __future__ import annotations

import signal
import threading

# A shell starts a background job with SIGINT ignored, and so would every process be that a test starts: then the tests
# of Ctrl-C would wait for ever.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
