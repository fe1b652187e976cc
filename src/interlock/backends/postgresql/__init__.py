"""The PostgreSQL backend."""

from interlock.backends.postgresql.backend import PostgreSQLBackend

__all__ = ["PostgreSQLBackend"]
