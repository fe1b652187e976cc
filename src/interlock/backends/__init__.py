"""Backends: each an implementation of `interlock.ports.Backend` over one engine, and nothing above it."""
