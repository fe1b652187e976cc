"""Benchmarks: the library against hand-written floors, measured side by side in one run. See README.md beside this."""
