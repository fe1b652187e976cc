"""``python -m interlock``: the command where the console script is not on the path."""

from __future__ import annotations

import sys

from interlock.cli import main

sys.exit(main())
