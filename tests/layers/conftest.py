"""The fixture ``world`` of `cases`, for the layers too."""

from cases.conftest import world

__all__ = ["world"]
