"""Owns a mirror as a Delta table: the commit that adds files also has the LSN, as app version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from txlog.errors import TryAgain
from txlog.lake.jobs.mirrors.table import TABLE, Added, Label, check_ours

_APP: Final = "txlog"
_TOPIC: Final = "txlog.topic"  # an application whose version is the number of the topic
_RECORD: Final = "txlog.record"
_DAY: Final = pa.field("day", pa.date32())


class Table:
    """A Delta table; column `day` is its partition."""

    def __init__(self, root: Path, label: Label) -> None:
        self._place = root
        self._label = label
        self._columns = TABLE.append(_DAY)
        self._table = self._opened()

    def lsn(self) -> int:
        """As Target."""
        return 0 if self._table is None else self._table.transaction_version(_APP) or 0

    def record(self) -> int | None:
        """As Target."""
        if self._table is None:
            return None
        return int(self._table.metadata().configuration.get(_RECORD, "0"))

    def folder(self, columns: pa.Schema, record: int) -> Path:
        """As Target."""
        self._columns = columns.append(_DAY)
        if self._table is None:
            self._table = DeltaTable.create(
                str(self._place),
                self._columns,
                partition_by=["day"],
                description=str(self._label),
                configuration={_RECORD: str(record)} if record else None,
                raise_if_key_not_exists=False,
            )
        return self._place

    def commit(self, added: list[Added], lsn: int) -> None:
        """As Target."""
        assert self._table is not None
        versions = [Transaction(_APP, lsn), Transaction(_TOPIC, self._label.record.number)]
        done = CommitProperties(app_transactions=versions, max_commit_retries=0)
        actions = [self._action(file) for file in added]
        try:
            self._table.create_write_transaction(
                [*actions], "append", self._columns, partition_by=["day"], commit_properties=done
            )
        except (CommitFailedError, DeltaError) as error:
            text = " ".join(str(error).split())
            raise TryAgain(
                f"another process wrote the table meanwhile: {text[:200]}",
                hint="run the export again",
            ) from error

    def close(self) -> None:
        """Nothing is open."""

    def _opened(self) -> DeltaTable | None:
        try:
            table = DeltaTable(str(self._place))
        except TableNotFoundError:
            check_ours(self._place, "_delta_log")
            return None
        number = table.transaction_version(_TOPIC)
        self._label.check(str(self._place), table.metadata().description, number)
        return table

    def _action(self, file: Added) -> AddAction:
        status = file.path.stat()
        return AddAction(
            path=str(file.path.relative_to(self._place)),
            size=status.st_size,
            partition_values={"day": file.day},
            modification_time=status.st_mtime_ns // 1_000_000,
            data_change=True,
            stats=json.dumps({"numRecords": file.rows}),
        )
