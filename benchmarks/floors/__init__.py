"""Floors: what a careful programmer would write by hand for one purpose, without any library.

They are safe (validated, atomic, idempotent), and they are only that: no sessions, no retries, no options, no errors
with facts. A floor is a yardstick, not a lower bound: somebody may write a better one.
"""
