"""Faults that others have met in public, as tests: see README.md."""
