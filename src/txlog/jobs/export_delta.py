"""Owns the job `export-delta`: the committed messages of a topic as a Delta table.

One commit of Delta adds files with what became visible since the previous export, and records the
LSN that they reach as the version of an application: so a table has each message once, and itself
knows how far it is. A file of the store with nothing but such messages is linked, not copied; an
engine writes the rest. The store keeps no note of the tables exported to.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from txlog.api.client import Client
from txlog.engine.folds.catalog import number_of
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.view.view import View
from txlog.errors import InvalidArgument, NotAllowed, TryAgain
from txlog.ids import TopicName
from txlog.jobs.engine import Engine, Tell, silent
from txlog.jobs.export_files import FILE, NULL_NAME, PLACE, rows_after
from txlog.relation.build import content
from txlog.relation.relation import Content, Source

if TYPE_CHECKING:
    from txlog.rows.jobs import ExportedDelta


_UNTOLD: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # bytes that are no UTF-8, too
_TABLE: Final = pa.schema([("partition", pa.int32()), ("ledger", pa.int64()), *FILE])


@dataclass(frozen=True, slots=True)
class _Found:
    """What is exported: all of a topic at an LSN, and its ledgers without markers."""

    content: Content
    plain: set[int]


def export_delta(
    client: Client,
    topic: str,
    path: str,
    engine: Engine,
    *,
    app_id: str = "txlog",
    dry_run: bool = False,
    tell: Tell = silent,
) -> ExportedDelta:
    """Add what became visible since the last export to a Delta table in a local directory.

    app_id:  the table records its LSN under this; two of them are two exports
    returns: {topic, path, messages, files, linked, version, lsn, already}; version: that of the
             table, None if there is none yet; already: the table had everything
    raises:  TopicNotFound, InvalidArgument, NotAllowed when the table is of another topic or ahead
             of the store, TryAgain when another export came in between
    """
    if "://" in path or not path or not app_id:
        raise InvalidArgument("an export goes to a local directory, and its app id is not empty")
    _check_text("the path of a Delta table", str(Path(path).absolute()))
    _check_text("an app id", app_id)
    name = TopicName.parse(topic)
    place = Path(path).absolute()
    table = _opened(place)
    label = f"txlog {client.uuid} {name.full}"
    if table is not None and table.metadata().description != label:
        raise NotAllowed(f"{place} is a table of something else", path=str(place))
    since = 0 if table is None else table.transaction_version(app_id) or 0
    found = client._ask(lambda view: _found(view, name))
    lsn = found.content.relation.lsn
    if since > lsn:
        raise NotAllowed(
            f"{place} has messages up to LSN {since}, the store only up to {lsn}",
            hint="the store was restored from a copy: export to another directory",
            path=str(place),
            lsn=lsn,
        )
    linked = [source for source in found.content.relation.direct if _is_whole(source, found, since)]
    linked = [one for one in linked if Path(client.path, one.ref.path).is_file()]
    linked = [one for one in linked if client.fits(one)]
    rest = _without(found.content, linked)
    if dry_run:
        copied = sum(rows.num_rows for rows in rows_after(client, rest, since, ["lsn"]))
        messages = copied + sum(one.ref.rows for one in linked)
        return {
            "topic": name.short,
            "path": str(place),
            "lsn": lsn,
            "messages": messages,
            "files": None,
            "linked": len(linked),
            "version": None if table is None else table.version(),
            "already": not messages,
        }
    of = rest.relation
    pin = client._pin([*of.direct, *of.unclean, *of.open, *of.large_files])
    if table is None:  # first of all, so that what a killed export leaves belongs to a table
        place.mkdir(parents=True, exist_ok=True)
        table = DeltaTable.create(
            str(place), _TABLE, mode="ignore", partition_by=list(PLACE), description=label
        )
    folder = Path(tempfile.mkdtemp(prefix="txlog-", dir=place))
    kept = False
    try:
        client._check_files(linked)
        actions = [_link(client, source, place, folder) for source in linked]
        tell(f"{name.short}: {len(actions)} files linked, copying the rest")
        engine.export(client, rest, since, folder)
        actions += _added(place, folder)
        messages = sum(json.loads(action.stats)["numRecords"] for action in actions)
        if actions:
            _commit(table, actions, app_id, lsn)
            kept = True
    finally:
        if pin is not None:
            pin.close()
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    return {
        "topic": name.short,
        "path": str(place),
        "lsn": lsn,
        "messages": messages,
        "files": len(actions),
        "linked": len(linked),
        "version": table.version(),
        "already": not actions,
    }


def _check_text(what: str, word: str) -> None:
    """Refuse what Delta cannot hold. Raises InvalidArgument."""
    if _UNTOLD.search(word):
        raise InvalidArgument(f"{what} is UTF-8 without control characters: {word}")


def _opened(place: Path) -> DeltaTable | None:
    try:
        return DeltaTable(str(place))
    except TableNotFoundError:
        if place.exists() and any(place.iterdir()):
            raise NotAllowed(
                f"{place} is not a Delta table, and not empty", path=str(place)
            ) from None
        return None


def _found(view: View, name: TopicName) -> _Found:
    """The topic, and those of its closed ledgers that hold only plain messages."""
    topic = find_topic(view, name)
    plain: set[int] = set()
    for index in range(topic.partitions):
        number = number_of(topic, index)
        markers = view.buffer(number).markers
        plain |= {
            end.ledger
            for end in view.topic(number).ledgers
            if end.messages == end.entries and not markers.get(end.ledger)
        }
    return _Found(content(view, name), plain)


def _is_whole(source: Source, found: _Found, since: int) -> bool:
    """Whether every row of the file is a committed message that the table lacks."""
    is_clean = source.role == "s" or source.ref.ledger in found.plain
    return is_clean and source.within is None and source.ref.lsn_first > since


def _without(given: Content, linked: list[Source]) -> Content:
    """The same without files that are linked."""
    gone = {source.ref.path for source in linked}
    direct = [source for source in given.relation.direct if source.ref.path not in gone]
    return replace(given, relation=replace(given.relation, direct=direct))


def _link(client: Client, source: Source, place: Path, folder: Path) -> AddAction:
    """A file of the store as a file of the table: a second name for it, else a copy."""
    ledger = source.ref.ledger if source.role == "p" else None
    below = folder / f"partition={source.partition}" / f"ledger={ledger or NULL_NAME}"
    below.mkdir(parents=True, exist_ok=True)
    made = below / Path(source.ref.path).name
    stored = Path(client.path, source.ref.path)
    try:
        made.hardlink_to(stored)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(stored, made)
    return _action(place, made, source.ref.rows)


def _added(place: Path, folder: Path) -> list[AddAction]:
    """Files that the engine wrote, as the table records them."""
    return [
        _action(place, path, pq.read_metadata(path).num_rows)
        for path in sorted(folder.glob("*/*/part-*.parquet"))
    ]


def _action(place: Path, path: Path, rows: int) -> AddAction:
    of = dict(part.split("=", 1) for part in path.parent.relative_to(place).parts[1:])
    values = {name: None if of[name] == NULL_NAME else unquote(of[name]) for name in PLACE}
    status = path.stat()
    return AddAction(
        path=str(path.relative_to(place)),
        size=status.st_size,
        partition_values=values,
        modification_time=status.st_mtime_ns // 1_000_000,
        data_change=True,
        stats=json.dumps({"numRecords": rows}),
    )


def _commit(table: DeltaTable, actions: list[AddAction], app_id: str, lsn: int) -> None:
    """Add files and the LSN they reach to in one commit of Delta."""
    done = CommitProperties(app_transactions=[Transaction(app_id, lsn)], max_commit_retries=0)
    try:
        table.create_write_transaction(
            [*actions], "append", _TABLE, partition_by=list(PLACE), commit_properties=done
        )
    except (CommitFailedError, DeltaError) as error:
        text = " ".join(str(error).split())
        raise TryAgain(
            f"another export wrote the table meanwhile: {text[:200]}", hint="run the export again"
        ) from error
