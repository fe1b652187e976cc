"""Fuzzing of what takes input from outside."""
