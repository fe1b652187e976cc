"""The server's errors in our words. Without a server."""

from __future__ import annotations

import pytest

from interlock.backends.postgresql.failures import failure, unreachable
from interlock.errors import (
    BackendCorruptError,
    BackendError,
    BackendUnavailableError,
    CommitUnknownError,
    SchemaMismatchError,
    UsageError,
)


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("40001", BackendUnavailableError),  # serialization_failure
        ("53300", BackendUnavailableError),  # too_many_connections
        ("55P03", BackendUnavailableError),  # lock_not_available
        ("57014", BackendUnavailableError),  # query_canceled
        ("25006", BackendUnavailableError),  # read_only_sql_transaction
        ("26000", UsageError),  # invalid_sql_statement_name
        ("42P01", SchemaMismatchError),  # undefined_table
        ("XX001", BackendCorruptError),  # data_corrupted
        ("42501", BackendError),  # insufficient_privilege
    ],
)
def test_what_the_server_says_of_a_statement_means_that_nothing_was_written(
    state: str, error: type[Exception], commits: bool
) -> None:
    found = failure(state, " what it said\nand more", commits=commits)
    assert type(found) is error
    assert f"({state}: what it said)" in str(found)
    assert not found.maybe_committed


@pytest.mark.parametrize("state", [None, "08006", "57P01", "57P02", "57P05"])
def test_a_connection_that_breaks_leaves_a_commit_unknown_and_nothing_else(state: str | None) -> None:
    assert type(failure(state, "gone", commits=True)) is CommitUnknownError
    assert type(failure(state, "gone", commits=False)) is BackendUnavailableError


def test_who_cannot_be_reached_has_got_nothing() -> None:
    assert str(unreachable("refused\nIs the server running?")) == "PostgreSQL cannot be reached (refused)"
