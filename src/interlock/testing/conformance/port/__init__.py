"""The contract of `interlock.ports.Backend`, chapter by chapter."""
