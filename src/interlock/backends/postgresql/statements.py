"""The statements, the same for both drivers: each is one round trip and one snapshot.

Every parameter is cast, so that no driver has to guess a type. ``OFFSET 0`` keeps the planner from turning look-ups by
key into a scan and a hash join, which it likes for tables whose statistics are not known yet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from interlock.errors import UsageError

_SHOWN = "{0} < $2::bigint AND {0} <> ALL ($3::bigint[]) AND {0} | 255 <> ALL ($3::bigint[])"

_VISIBLE = "position <> ALL ($4::bigint[]) AND position | 255 <> ALL ($4::bigint[])"
_FIRST = "CASE WHEN o & 255 = 255 THEN o - 255 ELSE o END"

_CLOCK = (
    "greatest(extract(epoch FROM clock_timestamp())::float8,"
    " (SELECT at FROM {s}.transaction ORDER BY position DESC LIMIT 1))"
)
_HEAD = (
    "SELECT pg_current_snapshot()::text AS seen, n.position AS newest,"
    " greatest(date_part('epoch', clock_timestamp()), n.at) AS clock"
    " FROM (SELECT 1) one LEFT JOIN (SELECT position, at FROM {s}.transaction ORDER BY position DESC LIMIT 1) n ON true"
)

RECORD: Final = """t.position, t.id, t.at, t.agent, t.record, t.cleared, t.absent, t.absent_position, t.absent_nonce,
  ARRAY(SELECT coalesce(e.value, o.value) FROM unnest(t.puts) WITH ORDINALITY u (key, place)
    LEFT JOIN {s}.entry e ON e.key = u.key AND e.position = t.position
    LEFT JOIN {s}.superseded o ON o.key = u.key AND o.position = t.position ORDER BY u.place) AS put, t.state, t.rest"""

_JUDGED = "$1::bigint, $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bool[], $7::bytea[], $8::bytea[]"

_TEXTS: Final[dict[str, str]] = {
    "hello": """SELECT h.store, h.epoch, h.floor_epoch, m.version, current_setting('fsync'),
        current_setting('synchronous_commit'), current_setting('transaction_read_only')
      FROM {s}.hello() h, {s}.meta m""",
    "soften": "UPDATE {s}.meta SET soft = true WHERE epoch = $1::bigint AND NOT soft RETURNING 1",
    "head": _HEAD,
    "read_one": f"""SELECT h.seen, h.newest, h.clock, e.position, e.nonce, e.value, e.expires_at
      FROM ({_HEAD}) h LEFT JOIN {{s}}.entry e ON e.key = $1::bytea AND NOT (e.quiet AND e.value IS NULL)""",
    "read": f"""SELECT h.seen, h.newest, h.clock, e.position, e.nonce, e.value, e.expires_at
      FROM ({_HEAD}) h LEFT JOIN unnest($1::bytea[]) WITH ORDINALITY u (key, place) ON true
        LEFT JOIN LATERAL (SELECT * FROM {{s}}.entry WHERE key = u.key AND NOT (quiet AND value IS NULL) OFFSET 0) e
          ON true
      ORDER BY u.place""",
    # The same, with what it takes to say whether a snapshot shows just that: see `reads`.
    "read_kept": f"""SELECT h.seen, h.newest, h.clock, e.position, e.nonce, e.value, e.expires_at, e.hidden,
        m.horizon_max, m.horizon_open
      FROM ({_HEAD}) h CROSS JOIN {{s}}.meta m LEFT JOIN unnest($1::bytea[]) WITH ORDINALITY u (key, place) ON true
        LEFT JOIN LATERAL (SELECT position, nonce, value, expires_at, quiet AND value IS NULL AS hidden
          FROM {{s}}.entry WHERE key = u.key OFFSET 0) e ON true
      ORDER BY u.place""",
    # Of a key: the newest version if the snapshot shows it, otherwise the superseded one that it shows.
    "read_at": f"""SELECT m.horizon_max, m.horizon_open, {_CLOCK}, e.shown, e.torn = 0 OR ({_SHOWN.format("e.torn")}),
        CASE WHEN e.shown THEN e.position ELSE o.position END, CASE WHEN e.shown THEN e.nonce ELSE o.nonce END,
        CASE WHEN e.shown THEN e.value ELSE o.value END, CASE WHEN e.shown THEN e.expires_at ELSE o.expires_at END
      FROM {{s}}.meta m LEFT JOIN unnest($1::bytea[]) WITH ORDINALITY u (key, place) ON true
        LEFT JOIN LATERAL (SELECT position, nonce, torn, value, expires_at, quiet, {_SHOWN.format("position")} AS shown
          FROM {{s}}.entry WHERE key = u.key OFFSET 0) e ON NOT (e.shown AND e.quiet AND e.value IS NULL)
        LEFT JOIN LATERAL (SELECT position, nonce, value, expires_at FROM {{s}}.superseded
          WHERE NOT e.shown AND key = u.key AND {_SHOWN.format("position")} AND NOT ({_SHOWN.format("until")})
          ORDER BY position DESC LIMIT 1) o ON true
      ORDER BY u.place""",
    "scan": f"""SELECT h.seen, h.newest, h.clock, e.key, e.position, e.nonce, e.value, e.expires_at
      FROM ({_HEAD}) h LEFT JOIN (SELECT * FROM {{s}}.entry
        WHERE key >= $1::bytea AND key < $2::bytea AND listed AND value IS NOT NULL
        ORDER BY key {{order}} LIMIT $3::bigint) e ON true
      ORDER BY e.key {{order}}""",
    "scan_at": f"""SELECT m.horizon_max, m.horizon_open,
        (SELECT max(CASE WHEN torn = 0 OR ({_SHOWN.format("torn")}) THEN 1 ELSE 2 END) FROM {{s}}.entry
          WHERE key >= $1::bytea AND key < $4::bytea AND listed AND NOT ({_SHOWN.format("position")})),
        i.key, i.position, i.nonce, i.value, i.expires_at
      FROM {{s}}.meta m LEFT JOIN (
        SELECT e.key, CASE WHEN e.shown THEN e.position ELSE o.position END AS position,
          CASE WHEN e.shown THEN e.nonce ELSE o.nonce END AS nonce,
          CASE WHEN e.shown THEN e.value ELSE o.value END AS value,
          CASE WHEN e.shown THEN e.expires_at ELSE o.expires_at END AS expires_at
        FROM (SELECT *, {_SHOWN.format("position")} AS shown FROM {{s}}.entry
            WHERE key >= $1::bytea AND key < $4::bytea AND listed) e
          LEFT JOIN LATERAL (SELECT * FROM {{s}}.superseded
            WHERE NOT e.shown AND key = e.key AND {_SHOWN.format("position")} AND NOT ({_SHOWN.format("until")})
            ORDER BY position DESC LIMIT 1) o ON true
        WHERE CASE WHEN e.shown THEN e.value IS NOT NULL ELSE o.value IS NOT NULL AND o.listed END
        ORDER BY e.key {{order}} LIMIT $5::bigint) i ON true
      ORDER BY i.key {{order}}""",
    "commit": """SELECT * FROM {s}.commit($1::bytea, $2::bigint, $3::text, $4::int, $5::bytea, $6::bigint, $7::bigint[],
      $8::bigint[], $9::int, $10::bytea[], $11::bigint[], $12::bigint[], $13::bool[], $14::bytea[], $15::bytea[],
      $16::bytea[], $17::bytea[], $18::bytea[], $19::bytea[], $20::float8[], $21::bool[], $22::bytea[],
      $23::int[], $24::bigint[], $25::bigint[], $26::bytea[], $27::int[], $28::bytea[],
      $29::bytea[], $30::bytea[], $31::bytea[])""",
    "commit_group": """SELECT * FROM {s}.commit_group($1::bigint[], $2::bytea[], $3::bigint[], $4::text[], $5::bytea[],
      $6::bigint[], $7::bigint, $8::int[], $9::bigint[], $10::int[], $11::int[], $12::bytea[], $13::bigint[],
      $14::bigint[], $15::int[], $16::int[], $17::int[], $18::bytea[], $19::bytea[], $20::float8[], $21::bool[],
      $22::bytea[], $23::int[], $24::int[], $25::int[], $26::bytea[], $27::bytea[], $28::bytea[],
      $29::int[], $30::bytea[], $31::bytea[])""",
    "validate": f"""SELECT m.horizon_max, m.horizon_open, h.seen, h.newest, h.clock, n.id,
        j.x_i, j.x_key, j.x_position, j.x_nonce, j.x_value, j.x_expires_at, j.x_id, j.x_agent, j.x_at,
        f.f_position, f.f_nonce, f.f_value, f.f_expires_at
      FROM ({_HEAD}) h CROSS JOIN {{s}}.meta m CROSS JOIN {{s}}.judge({_JUDGED}) j
        CROSS JOIN {{s}}.fetched($9::bytea[]) f
        LEFT JOIN {{s}}.transaction n ON n.position = h.newest""",
    "settle": "SELECT {s}.settle($1::bytea, $2::bool)",
    "outcome": f"SELECT {RECORD} FROM {{s}}.transaction t WHERE t.id = $1::bytea AND t.state = 1",
    "until": f"SELECT h.seen, h.newest, h.clock, m.horizon_max, m.horizon_open FROM ({_HEAD}) h, {{s}}.meta m",
    # Behind one snapshot ($1, $2) and shown by another ($3, $4), at most $5; then the horizon.
    "changes": f"""SELECT {RECORD}, m.horizon_max, m.horizon_open
      FROM {{s}}.meta m LEFT JOIN (
        SELECT * FROM {{s}}.transaction WHERE position >= $1::bigint AND position < $3::bigint AND {_VISIBLE}
        UNION ALL
        SELECT t.* FROM unnest($2::bigint[]) o CROSS JOIN LATERAL (
          SELECT * FROM {{s}}.transaction WHERE position >= {_FIRST} AND position <= o OFFSET 0) t
          WHERE position < $1::bigint AND position < $3::bigint AND {_VISIBLE}
        ORDER BY position LIMIT $5::bigint) t ON true
      ORDER BY t.position""",
    "news": f"""SELECT 1 FROM {{s}}.transaction WHERE position >= $1::bigint AND state > 0
      UNION ALL SELECT 1 FROM unnest($2::bigint[]) o CROSS JOIN LATERAL (
        SELECT state FROM {{s}}.transaction WHERE position >= {_FIRST} AND position <= o OFFSET 0) t
        WHERE state > 0 LIMIT 1""",
    "history": """SELECT v.position, v.nonce, v.value, v.expires_at, t.id, t.agent, t.at
      FROM (SELECT position, nonce, value, expires_at FROM {s}.entry
          WHERE key = $1::bytea AND NOT (quiet AND value IS NULL)
        UNION ALL SELECT position, nonce, value, expires_at FROM {s}.superseded WHERE key = $1::bytea
        ORDER BY position DESC LIMIT $2::bigint) v
      LEFT JOIN {s}.transaction t ON t.position = v.position ORDER BY v.position DESC""",
    "expired": """SELECT key, position, nonce FROM {s}.entry
      WHERE expires_at <= extract(epoch FROM clock_timestamp()) AND value IS NOT NULL
      ORDER BY expires_at LIMIT $1::bigint""",
    "due": """SELECT position, at, rest FROM {s}.transaction
      WHERE position < $1::bigint AND position <> ALL ($2::bigint[]) AND position | 255 <> ALL ($2::bigint[])
      ORDER BY position LIMIT $3::bigint""",
    "compact": "SELECT {s}.compact($1::bigint, $2::bigint[], $3::bigint, $4::bigint[], $5::int)",
}

_PLACEHOLDER: Final = re.compile(r"\$[0-9]+")
_PARAMETER: Final = re.compile(r"(\$[0-9]+)::(?:bigint|int|bool|float8)\[\]")

ROWS_READ_BY_POSITION: Final = 10
"""The columns of `RECORD` before the state."""


def quoted(schema: str) -> str:
    """A schema's name as SQL writes it. Raises `UsageError` for what PostgreSQL would cut or refuse."""
    if type(schema) is not str or not schema or "\0" in schema or len(schema.encode()) > 63:
        raise UsageError(f"a schema's name is a str of 1 to 63 bytes, not {schema!r}")
    return '"' + schema.replace('"', '""') + '"'


def statements(schema: str, *, pooler: bool = False) -> dict[str, str]:
    """Every statement, for one schema. ``pooler``: each but the first takes the epoch as one argument more, and is
    refused in any other, because the server behind the pooler may have changed since."""
    name = quoted(schema)
    if any(sign in name for sign in "{}%$"):
        raise UsageError(f"a schema's name has no braces, no percent sign and no dollar sign: {schema!r}")
    made = {}
    for key, text in _TEXTS.items():
        if "{order}" in text:
            made[key + "_reverse"] = text.format(s=name, order="DESC")
        made[key] = text.format(s=name, order="")
    if pooler:
        for key in made.keys() - {"hello", "soften"}:
            count = len(set(_PLACEHOLDER.findall(made[key])))
            guard = f"{name}.same_epoch(${count + 1}::bigint)"
            made[key] = f"SELECT q.* FROM {guard} g CROSS JOIN LATERAL ({made[key]}) q"
    return made


def as_texts(text: str) -> tuple[str, list[int]]:
    """A statement that takes its arrays of numbers as texts, which the server reads, and which of its parameters, from
    0, these are: see `array_text`."""
    places = sorted({int(found[1][1:]) - 1 for found in _PARAMETER.finditer(text)})
    return _PARAMETER.sub(lambda found: found[0].replace("::", "::text::"), text), places


def array_text(numbers: Sequence[Any]) -> str:
    """An array of numbers or truth values as PostgreSQL writes it."""
    return "{" + str(numbers)[1:-1].replace("None", "NULL") + "}"
