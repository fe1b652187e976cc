"""Sagas: steps with undos over any Python state, undone in reverse order when something goes wrong."""
