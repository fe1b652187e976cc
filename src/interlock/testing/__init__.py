"""For the authors of backends, and for Interlock's own tests: what has to hold, and means to see whether it does."""
