"""Effects: acts on the outside world, each done at most once for its key, with a journal of what became of it."""
