"""Owns the profiles: some seeds concentrate on one area, and put faults at the places that matter.

A random fault rarely hits the two calls between which a step of the protocol protects something. So
a fault of a profile waits for a call of one kind, and another may follow it closely: a second death
during recovery, a power cut soon after the death that left something unflushed.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.simulation import consumer_profiles, narrow_profiles
from tests.simulation.plans import draw_group
from tests.simulation.scenario import (
    MESSAGE_KEYS,
    TRANSACTION_KEYS,
    ProcessPlan,
    Scenario,
    operation_of,
)

JOURNAL_WEIGHTS: Final = {
    "send": 8.0,
    "send_many": 4.0,
    "transfer": 12.0,
    "keyed": 2.0,
    "leave_open": 5.0,
    "consume": 5.0,
    "read": 8.0,
    "checkpoint": 8.0,
    "together": 5.0,
    "flush": 2.0,
    "pipeline": 3.0,
    "reopen": 1.0,
    "verify": 1.0,
}
SPACE_WEIGHTS: Final = {
    "send_large": 10.0,
    "send_many": 4.0,
    "transfer": 4.0,
    "consume": 3.0,
    "read": 3.0,
    "checkpoint": 5.0,
    "gc": 8.0,
    "offload": 6.0,
    "compact": 2.0,
    "put": 12.0,
    "compact_table": 3.0,
    "trim_table": 4.0,
    "look_up": 5.0,
    "together": 5.0,
    "trim": 1.0,
    "sleep": 2.0,
    "verify": 2.0,
}
SIDECAR_WEIGHTS: Final = {
    "transfer": 14.0,
    "leave_open": 3.0,
    "send_many": 2.0,
    "checkpoint": 8.0,
    "compact": 8.0,
    "trim": 8.0,
    "together": 4.0,
    "read": 3.0,
    "follow": 2.0,
    "reopen": 1.0,
    "verify": 2.0,
}
TRIMMING_WEIGHTS: Final = {"trim": 8.0, "transfer": 8.0, "send_many": 2.0, "sleep": 8.0}

TRANSACTION_WEIGHTS: Final = {
    "pipeline": 14.0,
    "transfer": 10.0,
    "keyed": 12.0,
    "leave_open": 3.0,
    "consume": 8.0,
    "send": 4.0,
    "read": 4.0,
    "together": 8.0,
    "flush": 3.0,
    "sleep": 2.0,
    "checkpoint": 3.0,
    "reopen": 2.0,
    "seek": 0.5,
    "delete_key": 1.5,
    "acknowledge_twice": 3.0,
    "follow": 4.0,
}

DATABASE_WEIGHTS: Final = {
    "with_database": 20.0,
    "resolve_rows": 2.0,
    "transfer": 3.0,
    "keyed": 2.0,
    "consume": 6.0,
    "send": 3.0,
    "read": 3.0,
    "expire": 2.0,
    "sleep": 4.0,
    "checkpoint": 2.0,
    "reopen": 2.0,
}

CHECKPOINT_CALLS: Final = (
    ("link", "manifest"),
    ("link", "manifest"),
    ("link", "manifest"),
    ("create", "manifest"),
    ("create", "state"),
    ("link", "state"),
    ("link", "topics"),
    ("sync_dir", "journal"),
)

# The power fails before a manifest makes an older journal file superfluous, if that matters.
BEHIND: Final = {"kind": "power_cut", "on": ["link", "manifest"], "nth": 1, "is_behind": True}


def focused(scenario: Scenario, *, faults: bool, profile: str | None = None) -> Scenario:
    """The scenario of a seed, on one area: that of the seed, or the one that is asked for."""
    profile = profile or ORDER[scenario.seed % len(ORDER)]
    draw = PROFILES[profile]
    if draw is not None:
        draw(Random(f"{scenario.seed} {profile}"), scenario)
        if not faults:
            scenario.faults.clear()
    return scenario


def _journal(random: Random, scenario: Scenario) -> None:
    """Several processes append, and die between the steps of appends, flushes and checkpoints."""
    scenario.settings |= {
        "checkpoint_frames": random.choice((8, 30)),
        "txn_ids_reserved": random.choice((2, 16)),
        "coordinators": 1,
    }
    _plan(random, scenario, JOURNAL_WEIGHTS)
    scenario.faults = [*_placed(random, _JOURNAL_FAULTS), BEHIND]


def _space(random: Random, scenario: Scenario) -> None:
    """Processes write large messages and a table while others free and move space."""
    scenario.settings |= {
        "max_message_bytes": 100,
        "ledger_entries_max": random.choice((3, 20)),
        "checkpoint_frames": random.choice((8, 30, 100_000)),
        "reader_grace_ms": 0,
    }
    for topic in scenario.topics:
        topic.is_typed = False
    scenario.has_table = True
    _plan(random, scenario, SPACE_WEIGHTS)
    scenario.faults = _placed(random, _SPACE_FAULTS)


def _transactions(random: Random, scenario: Scenario) -> None:
    """Commits in flight, keys whose holders are fenced, time-outs, and coroutines among them."""
    scenario.settings |= {
        "txn_timeout_default_ms": random.choice((2_000, 2_000, 60_000)),
        "checkpoint_frames": random.choice((8, 30, 100_000)),
        "coordinators": random.choice((1, 2)),
    }
    for topic in scenario.topics:
        topic.is_typed = False
    _plan(random, scenario, TRANSACTION_WEIGHTS, most=18)
    for operation in [each for plan in scenario.processes for each in plan.operations]:
        operation["flushes"] = random.random() < 0.5  # else an abort has written nothing
        operation["as_before"] = random.random() < 0.4
        operation["wait_s"] = random.choice((0, 0, 0.05, 3))
        operation["closes"] = random.random() < 0.2
        operation["at_once"] = random.random() < 0.5
        if operation["op"] == "keyed":  # others take over while it is open
            operation["joined"] = random.random() < 0.2
            operation["rest_s"] = random.choice((0, 0.05, 1))
    if random.random() < 0.4:
        plan = scenario.processes[-1]
        plan.kind, plan.transaction_key = "aio", random.choice((None, TRANSACTION_KEYS[-1]))
        plan.operations = [
            draw_group(random, scenario.topics, MESSAGE_KEYS)
            for _ in range(max(3, len(plan.operations) // 2))
        ]
    scenario.faults = _placed(random, _TRANSACTION_FAULTS)


def _sidecars(random: Random, scenario: Scenario) -> None:
    """Files of transactions are sealed and compacted while others trim their topics."""
    scenario.settings |= {
        "ledger_entries_max": 3,
        "sidecar_garbage_ratio": 0.01,
        "checkpoint_frames": random.choice((8, 30, 100_000)),
        "txn_timeout_default_ms": random.choice((2_000, 60_000)),
        "reader_grace_ms": random.choice((0, 600_000)),
        "max_message_bytes": 10_000,
    }
    del scenario.topics[2:]
    for topic in scenario.topics:
        topic.is_typed, topic.partitions = False, 1
    _plan(random, scenario, SIDECAR_WEIGHTS)
    trimming = ProcessPlan(  # it waits for no maintenance before it trims
        "trimming", [operation_of(random, TRIMMING_WEIGHTS, scenario.topics) for _ in range(40)]
    )
    scenario.processes = [*scenario.processes[:2], trimming]
    for operation in [each for plan in scenario.processes for each in plan.operations]:
        operation["flushes"] = random.random() < 0.7
        operation["force"] = random.random() < 0.8
        operation["skip"] = random.choice((0, 0, 1, 3, 6))  # of the messages that are left
        operation["at_once"] = False
        if operation["op"] == "sleep":
            operation["seconds"] = random.choice((0.001, 0.01, 0.5))
    scenario.faults = _placed(random, _SIDECAR_FAULTS)


def _databases(random: Random, scenario: Scenario) -> None:
    """Transactions that commit together with a database; processes die between the two commits."""
    scenario.settings |= {
        "txn_timeout_default_ms": random.choice((2_000, 60_000)),
        "checkpoint_frames": random.choice((8, 30, 100_000)),
    }
    for topic in scenario.topics:
        topic.is_typed = False
    _plan(random, scenario, DATABASE_WEIGHTS, most=14)
    scenario.faults = _placed(random, _DATABASE_FAULTS)


Profile = Callable[[Random, Scenario], None]
PROFILES: Final[dict[str, Profile | None]] = {
    "all": None,
    "journal": _journal,
    "space": _space,
    "transactions": _transactions,
    "databases": _databases,
    "sidecars": _sidecars,
    **consumer_profiles.PROFILES,
    **narrow_profiles.PROFILES,
}
ORDER: Final = (  # of the seeds
    *("transactions", "all", "clients", "journal", "deliveries", "space"),
    *("watermarks", "all", "delays", "journal", "transactions", "senders"),
    *("functions", "databases", "readers", "sidecars", "rest"),
    *("handovers", "retention", "idling", "torn", "pending"),
)


def _plan(random: Random, scenario: Scenario, weights: dict[str, float], most: int = 30) -> None:
    """Two or three processes with operations of the area, each at most so many."""
    scenario.processes = [
        ProcessPlan(
            f"p{number}",
            [
                operation_of(random, weights, scenario.topics)
                for _ in range(random.randint(8, most))
            ],
            late_events_s=random.choice((0, 0, 0.001)),
        )
        for number in range(1, random.choice((2, 3, 3)) + 1)
    ]


def _placed(
    random: Random, kinds: tuple[Callable[[Random], dict[str, Any]], ...]
) -> list[dict[str, Any]]:
    return [random.choice(kinds)(random) for _ in range(random.randint(3, 8))]


# --- faults of the journal --------------------------------------------------------------------


def _soon(random: Random) -> list[dict[str, Any]]:
    """A power cut after some answers, and often another death while the processes recover."""
    cut: dict[str, Any] = {"kind": "power_cut", "answers": random.randint(1, 6)}
    if random.random() < 0.5:
        kind = random.choice(("kill", "power_cut"))
        cut["then"] = [{"kind": kind, "calls": random.randint(1, 80)}]
    return [cut]


def _at_name(random: Random) -> dict[str, Any]:
    """A process dies before it flushes the name of a journal file; others go on in it."""
    on = ["sync_dir", "journal"]
    return {"kind": "kill", "on": on, "nth": random.randint(1, 3), "then": _soon(random)}


def _at_flush(random: Random) -> dict[str, Any]:
    """A process dies or stops between its append and its flush, or the power fails there."""
    on = random.choice((["datasync", "journal/"], ["lock", "flush.lock"]))
    fault: dict[str, Any] = {"kind": random.choice(("kill", "kill", "stop", "power_cut"))}
    fault |= {"on": on, "nth": random.randint(1, 40)}
    if fault["kind"] == "power_cut":
        return fault
    seconds = {"seconds": random.choice((0.05, 1, 5))} if fault["kind"] == "stop" else {}
    return fault | seconds | {"then": _soon(random)}


def _at_checkpoint(random: Random) -> dict[str, Any]:
    """The power fails while a checkpoint is written, and perhaps once more soon after."""
    fault = {"kind": random.choice(("power_cut", "power_cut", "kill"))}
    return fault | {
        "on": [*random.choice(CHECKPOINT_CALLS)],
        "nth": random.randint(1, 6),
        "then": _soon(random),
    }


def _at_append(random: Random) -> dict[str, Any]:
    """All bytes of a frame are in the file when its write fails; then its process stops."""
    kind = random.choice(("short_EIO", "short_ENOSPC"))
    fault = {"kind": kind, "on": ["pwrite", "journal/0"], "nth": random.randint(1, 60)}
    stop = {"kind": "stop", "own": random.randint(1, 3), "seconds": random.choice((0.05, 1, 5))}
    return fault | {"is_whole": True, "then": [stop]}


def _at_full_disk(random: Random) -> dict[str, Any]:
    """The write of a frame fails; often the frame of a transaction, which has several calls."""
    fault: dict[str, Any] = {"kind": random.choice(("ENOSPC", "EIO", "short_EIO"))}
    fault["on"] = ["pwrite", "journal/0"]
    if random.random() < 0.3:
        return fault | {"nth": random.randint(1, 60)}
    failure = fault | {"nth": 1, "same": True}
    return {"kind": "nothing", "answer": "begin", "nth": random.randint(1, 12), "then": [failure]}


def _at_begin(random: Random) -> dict[str, Any]:
    """The power fails after transactions began, and none of that was flushed."""
    return {"kind": "power_cut", "answer": "begin", "nth": random.randint(2, 10)}


def _at_slow_flush(random: Random) -> dict[str, Any]:
    """A process stops in its flush; the power fails when another one has been shown something."""
    answer = random.choice(("read", "read", "receive"))
    cut = {"kind": "power_cut", "answer": answer, "nth": random.randint(1, 3)}
    fault = {"kind": "stop", "on": ["datasync", "journal/"], "nth": random.randint(1, 40)}
    return fault | {"seconds": random.choice((0.5, 5)), "then": [cut]}


def _at_slow_call(random: Random) -> dict[str, Any]:
    """A call takes long while other threads of its process go on; then the power may fail."""
    calls = (["datasync", "journal/"], ["pwrite", "journal/witness"], ["lock", "flush.lock"])
    fault = {"kind": "slow", "on": random.choice(calls), "nth": random.randint(1, 60)}
    cut = {"kind": "power_cut", "answers": random.randint(1, 3)}
    then = random.choice(([], [], [cut]))
    return fault | {"seconds": random.choice((0.001, 0.05, 1)), "then": then}


def _at_failed_flush(random: Random) -> dict[str, Any]:
    """A flush fails, and what it should have written is lost with the power."""
    fault = {"kind": "EIO", "on": ["datasync", "journal/"], "nth": random.randint(1, 40)}
    return fault | {"then": _soon(random)}


_JOURNAL_FAULTS: Final = (
    _at_name,
    _at_flush,
    _at_flush,
    _at_slow_flush,
    _at_slow_call,
    _at_failed_flush,
    _at_checkpoint,
    _at_checkpoint,
    _at_append,
    _at_full_disk,
    _at_full_disk,
    _at_begin,
)

# --- faults of transactions --------------------------------------------------------------------


def _at_step(random: Random) -> dict[str, Any]:
    """A process stops or dies after a step of a transaction; others take over its key meanwhile."""
    step = random.choice(("connect_key", "connect_key", "begin", "begin", "acknowledge", "send"))
    fault: dict[str, Any] = {"kind": random.choice(("stop", "stop", "kill", "power_cut"))}
    fault |= {"answer": step, "nth": random.randint(1, 12)}
    return fault | ({"seconds": random.choice((0.5, 5, 90))} if fault["kind"] == "stop" else {})


def _at_commit(random: Random) -> dict[str, Any]:
    """Something happens while commits are flushed."""
    kind = random.choice(("kill", "power_cut", "EIO", "stop", "interrupt", "interrupt"))
    fault = {"kind": kind, "on": ["datasync", "journal/"], "nth": random.randint(1, 60)}
    return fault | ({"seconds": random.choice((0.5, 5))} if kind == "stop" else {})


def _at_interrupt(random: Random) -> dict[str, Any]:
    """A signal handler raises at a call of the disk."""
    return {"kind": "interrupt", "on": ["", random.choice(("", "journal", "lock"))]} | {
        "nth": random.randint(1, 400)
    }


_TRANSACTION_FAULTS: Final = (
    _at_step,
    _at_step,
    _at_step,
    _at_commit,
    _at_commit,
    _at_slow_call,
    _at_slow_call,
    _at_slow_call,
    _at_interrupt,
    _at_full_disk,
)

# --- faults of transactions with a database ----------------------------------------------------


def _at_statement(random: Random) -> dict[str, Any]:
    """A process stops or dies at a statement, or the power fails there."""
    fault: dict[str, Any] = {"kind": random.choice(("kill", "kill", "power_cut", "stop"))}
    fault |= {"on": ["", "database"], "nth": random.randint(1, 120)}
    return fault | ({"seconds": random.choice((0.5, 5, 90))} if fault["kind"] == "stop" else {})


def _between_commits(random: Random) -> dict[str, Any]:
    """The same before or after a commit of the database, or an exception of a signal handler."""
    kind = random.choice(("kill", "kill", "power_cut", "stop", "interrupt"))
    step = random.choice(("db_commit", "db_ended"))
    fault = {"kind": kind, "on": [step, ""], "nth": random.randint(1, 12)}
    return fault | ({"seconds": random.choice((0.5, 5, 90))} if kind == "stop" else {})


_DATABASE_FAULTS: Final = (
    _at_statement,
    _between_commits,
    _between_commits,
    _at_commit,
    _at_slow_call,
    _at_interrupt,
    _at_full_disk,
)

# --- faults of space ---------------------------------------------------------------------------


def _at_move(random: Random) -> dict[str, Any]:
    """A process dies soon after it has copied a file to the bucket, around the frame for that."""
    death: dict[str, Any] = {"kind": random.choice(("kill", "power_cut"))}
    copied = {"kind": "nothing", "on": ["far_write", ""], "nth": random.randint(1, 5)}
    if random.random() < 0.5:
        return copied | {"then": [death | {"own": random.randint(3, 12)}]}
    removed = {"kind": "nothing", "on": ["unlink", "topics"], "nth": 1, "same": True}
    return copied | {"then": [removed | {"then": [death | {"own": random.randint(1, 4)}]}]}


def _at_large(random: Random) -> dict[str, Any]:
    """The sender of a large message stops after its file has a name, before the frame for it."""
    stop = {"kind": "stop", "own": random.randint(1, 3), "seconds": random.choice((0.5, 5, 100))}
    on = ["link", "_txnlog"]
    return {"kind": "nothing", "on": on, "nth": random.randint(1, 8), "then": [stop]}


def _at_removal(random: Random) -> dict[str, Any]:
    kind = random.choice(("kill", "power_cut", "stop"))
    fault = {"kind": kind, "on": ["unlink", "topics"], "nth": random.randint(1, 30)}
    return fault | ({"seconds": random.choice((0.5, 5))} if kind == "stop" else {})


def _at_publishing(random: Random) -> dict[str, Any]:
    """A process stops or dies after a file has its name, and before a frame names the file."""
    kind = random.choice(("kill", "power_cut", "stop", "stop", "stop"))
    death = {"kind": kind, "own": random.randint(1, 20)}
    if kind == "stop":
        death["seconds"] = random.choice((0.5, 5, 100))
    fault = {"kind": "nothing", "on": ["link", "topics"], "nth": random.randint(1, 20)}
    return fault | {"then": [death]}


def _at_bucket(random: Random) -> dict[str, Any]:
    op = random.choice(("far_create", "far_write", "far_read", "far_open", "far_delete"))
    return {"kind": "EIO", "on": [op, ""], "nth": random.randint(1, 4)}


def _at_sidecar(random: Random) -> dict[str, Any]:
    """A process stops after a file of transactions has its name, before a frame names the file."""
    stop = {"kind": "stop", "own": random.randint(1, 8), "seconds": random.choice((0.5, 5))}
    on = ["link", "_txnlog/ledger-"]
    return {"kind": "nothing", "on": on, "nth": random.randint(1, 8), "then": [stop]}


_SIDECAR_FAULTS: Final = (
    _at_sidecar,
    _at_sidecar,
    _at_sidecar,
    _at_publishing,
    _at_checkpoint,
    _at_removal,
)
_SPACE_FAULTS: Final = (
    _at_move,
    _at_move,
    _at_large,
    _at_large,
    _at_removal,
    _at_publishing,
    _at_bucket,
    _at_checkpoint,
    _at_full_disk,
)
