"""Defects seeded into the library on purpose, and the proof that the tests catch them."""
