"""Owns a mirror as directories day=…/ of Parquet, and the state that records their LSN."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pyarrow as pa

from txlog.engine.door.disk import rename_file, replace_file
from txlog.errors import NotAllowed
from txlog.lake.jobs.mirrors.table import Added, Label, check_ours

STATE: Final = "_txlog-mirror.json"
_COMING: Final = re.compile(r"day=[^/]+/[^/]+\.parquet")


class Table:
    """Directories day=…/ of Parquet files, and the state with the LSN that they have reached."""

    def __init__(self, root: Path, label: Label) -> None:
        self._place = root
        self._label = label
        self._record: int | None = None

    def lsn(self) -> int:
        """As Target; first renames the files that a killed run had listed, and saves their LSN."""
        try:
            state = json.loads((self._place / STATE).read_bytes())
            label, lsn = str(state["mirror"]), int(state["lsn"])
            coming, goal = [str(name) for name in state["coming"]], int(state["goal"])
            self._record = int(state.get("record", 0))
            number = None if state.get("topic") is None else int(state["topic"])
            if not all(map(_COMING.fullmatch, coming)):
                raise ValueError("it names files that are none of a mirror")
        except FileNotFoundError:
            check_ours(self._place)
            return 0
        except (ValueError, TypeError, KeyError) as error:
            raise NotAllowed(
                f"{self._place / STATE} does not belong to a mirror: {error}",
                path=str(self._place),
            ) from error
        self._label.check(str(self._place), label, number)
        if coming:
            self._show(coming)
            lsn = goal
            self._save(lsn)
        return lsn

    def record(self) -> int | None:
        """As Target."""
        return self._record

    def folder(self, columns: pa.Schema, record: int) -> Path:
        """As Target."""
        if self._record is None:
            self._record = record
            self._save(0)
        return self._place

    def commit(self, added: list[Added], lsn: int) -> None:
        """As Target, in three steps: save the list of files, rename them, save the LSN."""
        coming = [
            f"{file.path.parent.name}/{file.path.name.removeprefix('.').removesuffix('.new')}"
            for file in added
        ]
        self._save(self.lsn(), coming, lsn)
        self._show(coming)
        self._save(lsn)

    def close(self) -> None:
        """Nothing is open."""

    def _save(self, lsn: int, coming: list[str] | None = None, goal: int = 0) -> None:
        state = {
            "mirror": str(self._label),
            "topic": self._label.record.number,
            "lsn": lsn,
            "record": self._record or 0,
            "goal": goal,
            "coming": coming or [],
        }
        replace_file(str(self._place / STATE), json.dumps(state, indent=1).encode() + b"\n")

    def _show(self, coming: list[str]) -> None:
        """Give files their final names; files that have them already stay."""
        for path_below in coming:
            day, _, name = path_below.partition("/")
            rename_file(str(self._place / day / f".{name}.new"), name)
