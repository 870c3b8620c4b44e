"""Verifying the logs of changes: the bytes of each file, and all files together against the state.

The newest row of a key, a cursor, or a thing of the catalog is its state at the cut of the
checkpoint, as its dump has it: an extra, missing or different row is a contradiction.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyroaring import BitMap, BitMap64

from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.manifest import ChangeRef, Manifest, changes_of
from txlog.engine.upkeep.changes.log import HINT, decoded, newest, read
from txlog.engine.upkeep.changes.rows import KEYS, SCHEMAS, snapshot
from txlog.engine.upkeep.verify.files import IsWanted
from txlog.engine.upkeep.verify.findings import Findings
from txlog.errors import MissingFile, TxlogError

# Columns about the change, and not about the state after it.
_OF_CHANGE: Final = frozenset(
    "lsn time change first_lsn changes messages ranges txn batch complete".split()
)
_SHOWN_MAX: Final = 5
Row = dict[str, Any]
States = dict[tuple[Any, ...], Row]


def check_changes(
    disk: Disk, ref: ChangeRef, findings: Findings, is_wanted: IsWanted, *, deep: bool = False
) -> bool:
    """Check one file; returns whether it is good."""
    try:
        data = disk.read(ref.path)
        findings.read(len(data))
        table = decoded(ref, data)
        if deep:
            table.validate(full=True)
    except MissingFile as error:
        if not is_wanted(ref.path):
            return True
        findings.caught(error, path=ref.path, hint=HINT)
        return False
    except TxlogError as error:
        findings.caught(error, path=ref.path, hint=HINT)
        return False
    except (pa.ArrowException, OSError) as error:
        findings.error(601, f"{ref.path} cannot be read: {error}", path=ref.path, hint=HINT)
        return False
    return True


def compare_changes(disk: Disk, manifest: Manifest, findings: Findings) -> None:
    """Compare the final state in the logs of a checkpoint with its dumps."""
    logs = changes_of(manifest)
    if not logs.begun:
        return
    try:
        states = snapshot(disk, manifest.dumps, manifest.cut_lsn, manifest.time_ms)
        for kind, schema in SCHEMAS.items():
            tables = [read(disk, ref) for ref in logs.refs if ref.kind == kind]
            latest = newest(kind, pa.concat_tables([schema.empty_table(), *tables]))
            _compare(kind, _states(kind, latest), _states(kind, states[kind]), findings)
    except MissingFile:
        return  # a checkpoint has replaced the files meanwhile, or the loss is reported already
    except TxlogError:
        return  # a dump is damaged, which is reported already


def _compare(kind: str, from_logs: States, from_dumps: States, findings: Findings) -> None:
    """Compare two maps from key to state; reports the first differences."""
    wrong = sorted(
        key for key in {*from_logs, *from_dumps} if from_logs.get(key) != from_dumps.get(key)
    )
    for key in wrong[:_SHOWN_MAX]:
        why = (
            "has no row"
            if key not in from_logs
            else "is gone"
            if key not in from_dumps
            else (
                "differs in "
                + ", ".join(n for n, v in from_dumps[key].items() if from_logs[key][n] != v)
            )
        )
        name = " ".join(map(str, key))
        findings.error(604, f"the log of changes: {kind} {name} {why}", hint=_HINT)
    if len(wrong) > _SHOWN_MAX:
        findings.error(604, f"the log of changes: {len(wrong)} of {kind} are wrong", hint=_HINT)


_HINT: Final = "txlog admin repair --rebuild changes"


def _states(kind: str, rows: pa.Table) -> States:
    """The state of each key, as values that do not depend on how a bitmap is packed."""
    names = [name for name in rows.column_names if name not in _OF_CHANGE]
    out: States = {}
    for row in rows.select(names).to_pylist():
        for bitmap in row.get("bitmaps") or ():
            load = BitMap64.deserialize if bitmap["entry"] is None else BitMap.deserialize
            bitmap["bitmap"] = load(bitmap["bitmap"])
        out[tuple(row[name] for name in KEYS[kind])] = row
    return out
