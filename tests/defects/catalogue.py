"""Defects that were put into the library on purpose, each with the tests that have to catch it.

A test that cannot fail proves nothing. Each entry changes a few words of a module in the way in which somebody might
have got it wrong; `run` shows that the tests named there then fail.
"""

from __future__ import annotations

from dataclasses import dataclass

SIMULATION = "tests/testing/test_simulation.py"
MEMORY = "tests/conformance/test_memory.py"
SQLITE = "tests/conformance/test_sqlite.py"


@dataclass(frozen=True)
class Defect:
    """``changes``: pairs of what the module says and what it says instead. ``tests``: arguments of pytest."""

    name: str
    module: str
    changes: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]


def _simulated(*workloads: str) -> tuple[str, ...]:
    return (
        SIMULATION,
        "-k",
        " or ".join(f"test_no_order_of_calls_breaks_what_is_promised[{name}]" for name in workloads),
    )


def _keyed() -> tuple[str, ...]:
    return (SIMULATION, "-k", "test_keyed_runs_are_done_once")


CORE = (
    Defect(
        "reads are not validated",
        "interlock.core.isolation",
        (("out = {key: expectation(entry) for key, entry in reads.items()}", "out = {}"),),
        (MEMORY, "-k", "test_anomalies"),
    ),
    Defect(
        "absent keys are not validated",
        "interlock.core.isolation",
        (
            (
                "out = {key: expectation(entry) for key, entry in reads.items()}",
                "out = {key: expectation(entry) for key, entry in reads.items() if entry is not None}",
            ),
        ),
        (MEMORY, "-k", "test_anomalies and absent"),
    ),
    Defect(
        "ranges are not validated",
        "interlock.core.isolation",
        (
            (
                "    if mode >= SERIALIZABLE:\n        wanted.update(spans)",
                "    if False:\n        wanted.update(spans)",
            ),
        ),
        _simulated("predicate", "slots"),
    ),
    Defect(
        "optimistic validates ranges",
        "interlock.core.isolation",
        (("    if mode >= SERIALIZABLE:\n        wanted.update(spans)", "    if True:\n        wanted.update(spans)"),),
        (MEMORY, "-k", "test_anomalies and phantom and optimistic"),
    ),
    Defect(
        "snapshot mode does not validate what it writes blindly",
        "interlock.core.isolation",
        (("    if mode in (SNAPSHOT, OPTIMISTIC):", "    if mode == OPTIMISTIC:"),),
        (MEMORY, "-k", "snapshot"),
    ),
    Defect(
        "only the first of overlapping ranges is kept",
        "interlock.core.isolation",
        (("out[-1] = Span(out[-1].start, span.stop)", "pass"),),
        ("tests/core/test_pure.py",),
    ),
    Defect(
        "a snapshot is extended without validation",
        "interlock.core.extension",
        (("expected = txn.expectations({})", "expected = {}"),),
        _simulated("opacity", "bank"),
    ),
    Defect(
        "ranges are left out when a snapshot is extended",
        "interlock.core.extension",
        (("spans = modes.validated_spans(modes.SERIALIZABLE, txn.spans or (), ())", "spans = ()"),),
        (MEMORY, "-k", "test_anomalies and optimistic"),
    ),
    Defect(
        "the result of another operation is replayed",
        "interlock.core.idempotency",
        (("    if stored != wanted:", "    if False:"),),
        ("tests/cases/test_idempotency.py",),
    ),
    Defect(
        "an idempotency key forgets its operation",
        "interlock.core.idempotency",
        (('b"%d:" % len(name) + name', 'b""'),),
        ("tests/cases/test_idempotency.py", MEMORY, "-k", "operation or scope or name"),
    ),
    Defect(
        "an expired idempotency record counts",
        "interlock.core.idempotency",
        ((" or (entry.expires_at is not None and entry.expires_at <= at)", ""),),
        (MEMORY, "-k", "test_a_key_ends_with_its_time"),
    ),
    Defect(
        "a lost reply is taken for a failure",
        "interlock.core.running",
        (
            (
                "                except CommitUnknownError as unknown:\n                    await self.settle(txn, unknown)\n",
                '                except CommitUnknownError as unknown:\n                    raise ConflictError("lost") from unknown\n',
            ),
        ),
        ("tests/cases/test_unknown_outcome.py", MEMORY, "-k", "lost or reply or settle or unknown"),
    ),
    Defect(
        "a lost reply is taken for success",
        "interlock.core.running",
        (
            (
                "                except CommitUnknownError as unknown:\n                    await self.settle(txn, unknown)\n",
                "                except CommitUnknownError:\n                    pass\n",
            ),
            (
                "                    await self.settle(txn, unknown)\n                    return value\n",
                "                    return value\n",
            ),
        ),
        _keyed(),
    ),
)

ENGINE = (
    Defect(
        "the memory engine compares values, not versions",
        "interlock.backends.memory.judging",
        (
            (
                "return entry is not None and entry.value is not None and entry.version == expected",
                "return entry is not None and entry.value is not None",
            ),
        ),
        (MEMORY, "-k", "test_anomalies"),
    ),
    Defect(
        "a tombstone is a value",
        "interlock.backends.memory.judging",
        (("return entry is None or entry.value is None", "return entry is None"),),
        (MEMORY, "-k", "guards or absent or tombstone or deleted"),
    ),
    Defect(
        "only the first clash is judged",
        "interlock.backends.memory.judging",
        (
            (
                "    if clashes:\n        raise CommitRefused(tuple(clashes))",
                "    if len(clashes) > 1:\n        raise CommitRefused(tuple(clashes))",
            ),
        ),
        (MEMORY, "-k", "test_anomalies"),
    ),
    Defect(
        "a commit delivered twice is applied twice",
        "interlock.backends.memory.plain",
        (
            (
                "if state.record_of(transaction) is not None or transaction in state.fences or",
                "if transaction in state.fences or",
            ),
        ),
        (MEMORY, "-k", "test_the_same_blind_transaction_commits_once"),
    ),
    Defect(
        "a fence does not hold",
        "interlock.backends.memory.plain",
        (("is not None or transaction in state.fences or", "is not None or"),),
        (MEMORY, "-k", "fence or outcome"),
    ),
    Defect(
        "a lock that was not there a moment ago is not looked for",
        "interlock.backends.memory.plain",
        (("            state.grown += 1", "            pass"),),
        ("tests/backends/test_memory_backend.py", "-k", "absent"),
    ),
    Defect(
        "superseded versions are not kept",
        "interlock.backends.memory.plain",
        (("                chain.append(old)", "                pass"),),
        _simulated("opacity", "bank", "list-append"),
    ),
    Defect(
        "guards are not judged",
        "interlock.backends.memory.plain",
        (("    for key, expected in request.guards.items():", "    for key, expected in ():"),),
        (MEMORY, "-k", "idempot or floor or rules or guards"),
    ),
    Defect(
        "versions are given out twice",
        "interlock.backends.memory.plain",
        (("version = (position, transaction & NONCE_MASK)", "version = (position // 2, 0)"),),
        (MEMORY, "-k", "test_anomalies or version or machine"),
    ),
    Defect(
        "the direct way does not judge what was read",
        "interlock.backends.memory.direct",
        (("            if current.get(key) is not found:", "            if False:"),),
        ("tests/backends/test_memory_backend.py", "-k", "direct"),
    ),
    Defect(
        "the direct way does not judge what has to be absent",
        "interlock.backends.memory.direct",
        (("if entry.value is not None:", "if False:"),),
        ("tests/backends/test_memory_backend.py", "-k", "direct"),
    ),
    Defect(
        "the short judgement of quiet commits does not judge versions",
        "interlock.backends.sqlite.quiet",
        (("row[POSITION] != expected[0] or row[NONCE] & NONCE_MASK != expected[1] or row[VALUE] is None", "False"),),
        ("tests/backends/sqlite/test_sqlite_straight.py", "-k", "judgement"),
    ),
    Defect(
        "a key that is put without a look is put over what is there",
        "interlock.backends.sqlite.quiet",
        (("            batch.fresh = True", "            pass"),),
        ("tests/backends/sqlite/test_sqlite_straight.py", "-k", "without_a_look"),
    ),
    Defect(
        "an event loop waits for the disk",
        "interlock.backends.sqlite.engine",
        (("if request.durable or not request.quiet:", "if False:"),),
        ("tests/backends/sqlite/test_sqlite_straight.py", "-k", "loop_commits"),
    ),
    Defect(
        "the direct way sees half a commit",
        "interlock.backends.memory.direct",
        (("if state.pending is None and state.token is at else None", "if state.token is at else None"),),
        ("tests/backends/test_memory_backend.py", "-k", "look"),
    ),
    Defect(
        "what was read ahead outlives its snapshot",
        "interlock.core.foresight",
        (("if at is not self.token or key", "if key"),),
        ("tests/core/test_foresight.py",),
    ),
    Defect(
        "what was read ahead never grows old",
        "interlock.core.foresight",
        ((" or self.runtime.monotonic() >= self.until", ""),),
        ("tests/core/test_foresight.py",),
    ),
    Defect(
        "commands are sent in halves however slow the server is",
        "interlock.backends.redis.multiplexer",
        ((" and self._waited < now - self._heard_at else", " else"),),
        ("tests/backends/redis/test_redis_multiplexer.py",),
    ),
    Defect(
        "an error of several commits is taken for one of each",
        "interlock.backends.redis.shared",
        (("self.give([reply] if count == 1 else [Together(reply)] * count)", "self.give([reply] * count)"),),
        ("tests/backends/redis/test_redis_multiplexer.py",),
    ),
    Defect(
        "clears come after writes",
        "interlock.backends.memory.performing",
        (
            (
                "        for key in state.order.walk(span):",
                "        for key in state.order.walk(span) if not state.order.fresh else ():",
            ),
        ),
        (MEMORY, "-k", "clear"),
    ),
    Defect(
        "a merge that changes nothing is a change",
        "interlock.backends.memory.performing",
        (("    if after == before:\n        return None, Merged(False, before)\n", ""),),
        (MEMORY, "-k", "merging or merge"),
    ),
    Defect(
        "a floor is not kept",
        "interlock.merges",
        (("if low is not None and amount < 0 and total < int(low[1:]):", "if False:"),),
        (MEMORY, "-k", "floor or bound or escrow"),
    ),
    Defect(
        "a floor refuses steps away from it",
        "interlock.merges",
        (
            (
                "if low is not None and amount < 0 and total < int(low[1:]):",
                "if low is not None and total < int(low[1:]):",
            ),
        ),
        (MEMORY, "tests/core", "-k", "floor or bound or merge"),
    ),
)

RULES = (
    Defect(
        "an invariant is not asked",
        "interlock.core.commit",
        (
            (
                "        if not answer:\n            raise InvariantError(",
                "        if False:\n            raise InvariantError(",
            ),
        ),
        (MEMORY, "-k", "invariant"),
    ),
    Defect(
        "an isolation floor binds nobody",
        "interlock.core.rules",
        (("        if mode < self.floor:", "        if False:"),),
        (MEMORY, "-k", "floor"),
    ),
    Defect(
        "who does not know an invariant may write",
        "interlock.core.rules",
        (("        if foreign:", "        if False:"),),
        (MEMORY, "-k", "invariant"),
    ),
    Defect(
        "errors of the function are tried again",
        "interlock.core.retrying",
        (
            (
                "        if cause is None:\n            raise error\n",
                "        if cause is None:\n            if self.attempt > 1:\n                raise error\n            return\n",
            ),
        ),
        (MEMORY, "-k", "test_attempts or retrying or run"),
    ),
    Defect(
        "there is one attempt too many",
        "interlock.core.retrying",
        (
            (
                "if self.attempt >= self.policy.max_attempts or seconds",
                "if self.attempt > self.policy.max_attempts or seconds",
            ),
        ),
        (MEMORY, "tests/cases/test_retry.py", "-k", "memory and (attempts or gives_up or exhausted or limit or R0)"),
    ),
    Defect(
        "a hot key's gate is passed on to the last who came",
        "interlock.gates",
        (("holder, waiter, turn = gate.queue.popleft()", "holder, waiter, turn = gate.queue.pop()"),),
        ("tests/core/test_gates.py",),
    ),
    Defect(
        "a savepoint keeps what was written",
        "interlock.core.writing",
        (("        txn.writes = dict(self._writes)", "        pass"),),
        (MEMORY, "-k", "savepoint or nest"),
    ),
    Defect(
        "a savepoint keeps the guards of a layer",
        "interlock.core.writing",
        (("        txn.guards = self._guards", "        pass"),),
        ("tests/layers/test_ledger.py", "tests/layers/test_leases.py", "-k", "savepoint or memory"),
    ),
)

LEASES = ("tests/layers/test_leases.py",)

HOLDING = (
    Defect(
        "a fence is not part of the commit",
        "interlock.core.carrying",
        (("txn.guards = {**(txn.guards or {}), **held.guards()}", "txn.guards = {**(txn.guards or {})}"),),
        LEASES,
    ),
    Defect(
        "a takeover does not expect the pulse that was seen",
        "interlock.layers.tenures",
        (("        expected[key] = entry.version if entry is not None and live else ABSENT\n", ""),),
        LEASES,
    ),
    Defect(
        "a renewal expects nothing",
        "interlock.layers.tenures",
        (
            (
                "{self.key: self.version, self.pulse_key: self.pulse or ABSENT},\n                    alive",
                "{},\n                    alive",
            ),
        ),
        LEASES,
    ),
    Defect(
        "an owner is taken over at once",
        "interlock.layers.tenures",
        (("        left = since + ttl_seconds - now\n", "        left = 0.0\n"),),
        LEASES,
    ),
    Defect(
        "an owner is never taken over",
        "interlock.layers.tenures",
        (
            ("        return max(0.0, left)", "        return max(1.0, left)"),
            ("        if tells_time(backend) and is_expired(pulse, at):\n            return 0.0\n", ""),
        ),
        LEASES,
    ),
    Defect(
        "strict leases do not look at the time",
        "interlock.layers.tenures",
        (("Guard(self.pulse or ABSENT, alive=True,", "Guard(self.pulse or ABSENT, alive=False,"),),
        LEASES,
    ),
    Defect(
        "the end of a lease says nothing of its loss",
        "interlock.layers.holdings",
        (("            return\n        raise tenure.loss", "            return"),),
        LEASES,
    ),
    Defect(
        "nothing is renewed",
        "interlock.layers.keeper",
        (("                await tenure.renew(ledger)", "                pass"),),
        (*LEASES, "-k", "test_strict_goes_on_over_renewals or lost or taken"),
    ),
)

EFFECTS = ("tests/layers/test_effects.py", "tests/layers/test_effects_pure.py", "tests/layers/test_effects_cancelled.py",
           "tests/layers/test_effects_outbox.py")  # fmt: skip

ACTS = (
    Defect(
        "a claim that has ended is free",
        "interlock.layers.effects.executing",
        (
            (
                "return Step.REVOKE if stored.claim_ends_at <= at else Step.WAIT",
                "return Step.EXECUTE if stored.claim_ends_at <= at else Step.WAIT",
            ),
        ),
        EFFECTS,
    ),
    Defect(
        "what is unknown is done again",
        "interlock.layers.effects.executing",
        (("return Step.EXECUTE if stored.status is FAILED else Step.REFUSE", "return Step.EXECUTE"),),
        EFFECTS,
    ),
    Defect(
        "a used key takes another payload",
        "interlock.layers.effects.executing",
        (("            if stored is not None and stored.fingerprint != self.fingerprint:", "            if False:"),),
        EFFECTS,
    ),
    Defect(
        "an interrupted act counts as failed",
        "interlock.layers.effects.executing",
        (("status = UNKNOWN if is_unanswered(error, handled) else FAILED", "status = FAILED"),),
        EFFECTS,
    ),
    Defect(
        "the end of an act does not expect its claim",
        "interlock.layers.effects.journal",
        (
            (
                "done = await self.commit(writes, {claim.key: version}, token, durable=durable)",
                "done = await self.commit(writes, {}, token, durable=durable)",
            ),
        ),
        EFFECTS,
    ),
    Defect(
        "an outbox is dispatched in the order of names",
        "interlock.layers.effects.dispatching",
        (
            (
                "if record.value is not None), key=_order)",
                "if record.value is not None), key=lambda record: record.key)",
            ),
        ),
        EFFECTS,
    ),
    Defect(
        "a failed handler is called again at once",
        "interlock.layers.effects.dispatching",
        (("            elif stored.due_at > at:", "            elif False:"),),
        EFFECTS,
    ),
)

SAGAS = ("tests/saga/test_saga_trials.py", "tests/saga/test_saga_model.py", "tests/cases/test_saga.py")
DURABLE = ("tests/saga/test_saga_durable.py", "tests/saga/test_saga_journal.py", "tests/saga/test_saga_kills.py")

UNDOING = (
    Defect(
        "undos run in the order of the steps",
        "interlock.saga.compensation",
        (
            (
                "        for record in reversed(frame.all_records()):\n            await _undo_one(frame, record, error)\n        return True",
                "        for record in frame.all_records():\n            await _undo_one(frame, record, error)\n        return True",
            ),
        ),
        SAGAS,
    ),
    Defect(
        "an undo that fails ends the rollback",
        "interlock.saga.compensation",
        (("    record.state, record.undo_error = State.UNDO_FAILED, failure\n", "    raise failure\n"),),
        SAGAS,
    ),
    Defect(
        "the state is not restored",
        "interlock.saga.compensation",
        (("        _restore(frame, error)\n", ""),),
        SAGAS,
    ),
    Defect(
        "the latest snapshot is restored last",
        "interlock.saga.compensation",
        (("key=lambda pair: -pair[0])", "key=lambda pair: pair[0])"),),
        SAGAS,
    ),
    Defect(
        "an undo's coroutine is dropped",
        "interlock.saga.compensation",
        (
            (
                '        if hasattr(type(value), "__await__"):\n            await frame.world.settle(value, f"the undo',
                '        if False:\n            await frame.world.settle(value, f"the undo',
            ),
        ),
        SAGAS,
    ),
    Defect(
        "a failed undo replaces a cancellation",
        "interlock.saga.compensation",
        (("    if not isinstance(error, Exception):\n        if failed", "    if False:\n        if failed"),),
        SAGAS,
    ),
    Defect(
        "an interrupted step counts as not done",
        "interlock.saga.frames",
        (("State.UNKNOWN if record.called and may_have_happened(error) else State.FAILED", "State.FAILED"),),
        SAGAS,
    ),
    Defect(
        "an undo shares the key of its step",
        "interlock.saga.compensation",
        (('"idempotency_key": f"{key}:undo"', '"idempotency_key": key'),),
        SAGAS,
    ),
    Defect(
        "the journal is written after the act",
        "interlock.saga.recording",
        (
            (
                "            await self.journal.begin(place, facts)\n        return False",
                "            self.journal.note(place, facts)\n        return False",
            ),
        ),
        DURABLE,
    ),
    Defect(
        "the journal does not expect the saga's own record",
        "interlock.saga.writing",
        (("        expected[self.head_key] = self._head_version\n", ""),),
        DURABLE,
    ),
    Defect(
        "a living coordinator is taken over",
        "interlock.saga.presence",
        (("    if left > 0:\n        raise unavailable", "    if left < 0:\n        raise unavailable"),),
        DURABLE,
    ),
    Defect(
        "a step's result is never written before the next step",
        "interlock.saga.lags",
        (("            elif lag == seen:\n", "            elif lag == -1:\n"),),
        DURABLE,
    ),
    Defect(
        "a replayed step may have other arguments",
        "interlock.saga.recording",
        (('if recorded.get("print") != facts["print"]:', "if False:"),),
        DURABLE,
    ),
    Defect(
        "a done step is called again",
        "interlock.saga.recording",
        (
            (
                '        if status == "done":\n            record.result = load_result(record.fn, record.undo,',
                '        if status == "never":\n            record.result = load_result(record.fn, record.undo,',
            ),
        ),
        DURABLE,
    ),
)

STORES = ("tests/saga/test_saga_two_stores.py", "tests/saga/test_saga_two_stores_kills.py", "-k", "sqlite")

SPANNING = (
    Defect(
        "the undo of a transaction does not say so in its commit",
        "interlock.saga.transacting",
        (("writes={**writes, **letter[0]})", "writes=letter[0])"),),
        STORES,
    ),
    Defect(
        "a transaction may still happen behind a recovery",
        "interlock.saga.receipts",
        (("        if record.value is None:\n            if age", "        if False:\n            if age"),),
        STORES,
    ),
    Defect(
        "an undo forgets who wrote what it puts back",
        "interlock.saga.inverses",
        (
            (
                "return {(piece[1], undo & NONCE_MASK): piece[3] for piece in pieces if piece[0] == VALUE}",
                "return {}",
            ),
        ),
        STORES,
    ),
)

LOCKS = ("tests/layers/test_locks.py",)
PARTS = ("tests/layers/test_parts.py",)

LOCKING = (
    Defect(
        "a deadlock has no victim",
        "interlock.layers.rings",
        (("    if not seats:\n        return False\n", "    if seats or not seats:\n        return False\n"),),
        LOCKS,
    ),
    Defect(
        "the oldest gives way",
        "interlock.layers.rings",
        (("youngest = max(seats,", "youngest = min(seats,"),),
        LOCKS,
    ),
    Defect(
        "writers of other modes wait for nobody",
        "interlock.core.locking",
        (
            (
                "return {space.locks_key: ABSENT} if locking is None else await locking.give_way(txn, space, spans)",
                "return {}",
            ),
        ),
        LOCKS,
    ),
    Defect(
        "a key is taken in a part without a look at the whole table",
        "interlock.layers.contests",
        (
            (
                "self._write(taken, {place.key: expected}, fetch, granting=True)",
                "self._write(taken, {}, fetch, granting=True)",
            ),
        ),
        PARTS,
    ),
    Defect(
        "a range is granted whatever happens in the parts",
        "interlock.layers.parts",
        (("if self.parts else {}", "if self.parts and False else {}"),),
        PARTS,
    ),
    Defect(
        "a split table is removed while its parts are in use",
        "interlock.layers.parts",
        (("{place.key: view.expected, **dict.fromkeys(view.parts, ABSENT)}", "{place.key: view.expected}"),),
        PARTS,
    ),
    Defect(
        "who waits is not woken by the parts",
        "interlock.layers.parts",
        (
            (
                "return (place.key, *relevant(place, targets)) if view.main.split else (place.key,)",
                "return (place.key,)",
            ),
        ),
        PARTS,
    ),
)

DECODERS = "tests/fuzz/test_decoders.py"
READING = (
    Defect(
        "a damaged record on Redis is an error of the decoder's",
        "interlock.backends.redis.record",
        (("DAMAGE: Final = (struct.error, ValueError, TypeError, LookupError)", "DAMAGE: Final = (struct.error,)"),),
        (DECODERS, "-k", "Redis"),
    ),
    Defect(
        "a value that is not there is put into a change from PostgreSQL",
        "interlock.backends.postgresql.record",
        (("if type(value) is not bytes:", "if False:"),),
        (DECODERS, "-k", "record-of-PostgreSQL"),
    ),
    Defect(
        "a damaged key is an error of the decoder's",
        "interlock.keys",
        (("    raise _damaged(raw)", "    raise ValueError(raw)"),),
        (DECODERS, "-k", "stored-key"),
    ),
    Defect(
        "a cursor may have any numbers",
        "interlock.core.cursors",
        (("token.position) < 0 or token.position > _LAST_POSITION:", "token.position) < 0:"),),
        ("tests/core/test_pure.py", "-k", "cursor"),
    ),
    Defect(
        "a stored time may be any number",
        "interlock.core.moments",
        (("except (OverflowError, ValueError, OSError) as error:", "except ValueError as error:"),),
        ("tests/core/test_pure.py", "-k", "calendar"),
    ),
)

DEFECTS: tuple[Defect, ...] = (*CORE, *ENGINE, *RULES, *HOLDING, *ACTS, *LOCKING, *UNDOING, *SPANNING, *READING)

HARMLESS = Defect("nothing", "interlock.core.isolation", (("NONE, SNAPSHOT, ", "NONE,  SNAPSHOT, "),), CORE[0].tests)
"""Changes nothing, so that no test may fail under it: the control of the whole procedure."""

NAMED = {each.name: each for each in (*DEFECTS, HARMLESS)}
