"""Owns the commands of the store itself: init, copy, status, inspect."""

from __future__ import annotations

import importlib
import os
from typing import Annotated

from txlog.base.ranges import parse_size
from txlog.cli.call.call import STORE_DEFAULT, Call, confirm
from txlog.cli.help import fields
from txlog.cli.line.command import Argument, Duration, Option, Watch, command
from txlog.cli.terminal import tables
from txlog.errors import AlreadyExists, InvalidArgument, ReadOnlyStore, TxlogError


@command(
    "init",
    "create a store",
    examples=("txlog init /data/shop", "txlog init --if-not-exists --coordinators 4"),
    rows="store.StoreMade",
    changes=True,
)
def init(
    call: Call,
    path: Annotated[str | None, Argument(metavar="PATH", show_default=False)] = None,
    if_not_exists: Annotated[bool, Option("--if-not-exists")] = False,
    coordinators: Annotated[int | None, Option("--coordinators", metavar="N")] = None,
    durability: Annotated[str | None, Option("--durability", metavar="sync|os")] = None,
    timeout: Annotated[int | None, Duration("--transaction-timeout")] = None,
    timeout_max: Annotated[int | None, Duration("--transaction-timeout-max")] = None,
    checkpoint_bytes: Annotated[str | None, Option("--checkpoint-bytes", metavar="SIZE")] = None,
    ledger_entries: Annotated[int | None, Option("--ledger-entries-max", metavar="N")] = None,
    ledger_bytes: Annotated[str | None, Option("--ledger-bytes-max", metavar="SIZE")] = None,
    ledger_age: Annotated[int | None, Duration("--ledger-age-max")] = None,
    shared: Annotated[
        str | None, Option("--shared", metavar="GROUP", help="the group that may use it")
    ] = None,
    allow_unsafe: Annotated[
        bool, Option("--allow-unsafe-fs", help="a network file system")
    ] = False,
) -> None:
    """Create a store in PATH (default: -S, TXLOG_STORE, else ./txlog-store)."""
    where = path if path is not None else call.flags.store or os.environ.get("TXLOG_STORE")
    where = STORE_DEFAULT if where is None else where
    if not where or "\0" in where:
        raise InvalidArgument("the path of the store is empty or no path")
    if call.read_only:
        raise ReadOnlyStore("init writes a new store, which --read-only forbids")
    settings: dict[str, object] = {
        "coordinators": coordinators,
        "durability": call.durability(durability) if durability else None,
        "txn_timeout_default_ms": timeout,
        "txn_timeout_max_ms": timeout_max,
        "checkpoint_bytes": None if checkpoint_bytes is None else parse_size(checkpoint_bytes),
        "ledger_entries_max": ledger_entries,
        "ledger_bytes_max": None if ledger_bytes is None else parse_size(ledger_bytes),
        "ledger_age_max_ms": ledger_age,
    }
    settings_given = {name: value for name, value in settings.items() if value is not None}
    call.report.store = os.path.abspath(where)
    api = importlib.import_module("txlog.client.open")
    result = api.init(
        where,
        if_not_exists=if_not_exists,
        shared_group=shared,
        allow_unsafe=allow_unsafe,
        clock=call.clock,
        **settings_given,
    )
    verb = "made a store in" if result["created"] else "a store is already in"
    call.summary(f"{verb} {result['path']}")
    call.output.result(result)


@command(
    "copy",
    "back up, while others write",
    examples=("txlog copy /backup/shop", "txlog copy /backup/shop --verify --json"),
    rows="store.StoreCopied",
    changes=True,
)
def copy(
    call: Call,
    dest: Annotated[str, Argument(metavar="DEST", show_default=False)],
    verify: Annotated[bool, Option("--verify", help="then read the whole copy, deep")] = False,
) -> None:
    """Copy the store as it is now to DEST, a new or empty directory, while others write to it.

    The copy is a backup: the same store with the same uuid. Do not use both and move files between
    the two. The copy names offloaded files but does not contain them; only the original store
    removes those, until you delete the file DEST/copied. An interrupted copy is not a store: copy
    to the same DEST again.
    """
    client = call.client(write=True)
    bars = importlib.import_module("txlog.cli.call.progress")
    bar = bars.Amount(call, "copy", None)

    def tell(done_bytes: int, total_bytes: int) -> None:
        bar.total = total_bytes
        bar.count(done_bytes - bar.read)

    with bar:
        answer = client.copy(dest, verify=verify, tell=tell)
    size = importlib.import_module("txlog.cli.terminal.tables").size(int(answer["size_bytes"]))
    checked = ", and compared each byte" if answer["verified"] else ""
    call.summary(
        f"copied {tables.counted(answer['files'], 'file')}, {size}, to {answer['path']}{checked}"
    )
    call.summary(
        "it is a whole store, which any write changes: look into it with --read-only, and use it "
        "with txlog restore COPY STORE"
    )
    if answer["offloaded"]:
        call.note(f"{answer['offloaded']:,} offloaded files are named, not copied")
    call.output.result(answer)


@command(
    "restore",
    "make a store from a copy",
    examples=("txlog restore /backup/shop shop2", "txlog restore /backup/shop shop --replace"),
    rows="store.StoreRestored",
    changes=True,
    asks=True,
)
def restore(
    call: Call,
    copy: Annotated[str, Argument(metavar="COPY", show_default=False)],
    dest: Annotated[str, Argument(metavar="STORE", show_default=False)],
    replace: Annotated[
        bool, Option("--replace", help="a store that is there moves to STORE.replaced")
    ] = False,
    verify: Annotated[bool, Option("--verify", help="first read the whole new store")] = False,
) -> None:
    """Make a store at STORE from COPY, which `txlog copy` made and which stays as it is.

    COPY may also be a store in use: no process writes to it meanwhile, and a warning says that two
    stores have one uuid now. STORE changes in one step at the end. After an interruption run the
    same command again: it goes on. Transactions that were open when the copy was made are aborted
    by the first write.
    """
    call.report.store = os.path.abspath(dest)
    restoring = importlib.import_module("txlog.client.restore")
    if replace and restoring.replaces(copy, dest):
        where = os.path.abspath(dest)
        confirm(call, f"replace {where}, which becomes {where}.replaced", _users(call, where))
    bars = importlib.import_module("txlog.cli.call.progress")
    bar = bars.Amount(call, "restore", None)

    def tell(done_bytes: int, total_bytes: int) -> None:
        bar.total = total_bytes
        bar.count(done_bytes - bar.read)

    with bar:
        try:
            answer = restoring.restore(
                copy, dest, replace=replace, verify=verify, tell=tell, clock=call.clock
            )
        except AlreadyExists as error:
            if error.hint and not replace:
                error.hint = "restore to a new place, or replace it: --replace"
            raise
    size = importlib.import_module("txlog.cli.terminal.tables").size(int(answer["size_bytes"]))
    checked = ", all read and good" if answer["verified"] else ""
    call.summary(
        f"restored {answer['path']}: {tables.counted(answer['files'], 'file')}, {size}{checked}"
    )
    if restoring.is_original(copy):
        call.warn(
            f"{os.path.abspath(copy)} is no copy but a store that programs may use: both have the "
            "same uuid and change on their own from now on; never move files between them"
        )
    if answer["replaced"] is not None:
        call.summary(f"the store that was there is now {answer['replaced']}")
    if answer["offloaded"] and answer["copied"]:
        call.note(
            f"it leaves {answer['offloaded']:,} offloaded files to the store it was copied from, "
            "until the file `copied` in it is removed"
        )
    call.output.result(answer)


def _users(call: Call, path: str) -> list[str]:
    """The users of a store now, one line for each lock that a process holds."""
    library = importlib.import_module("txlog")
    try:
        with library.open(path, read_only=True, clock=call.clock) as client:
            rows = client.admin.locks()
    except TxlogError as error:  # a damaged store is replaced too
        return [f"who uses it is unknown: {error.message}"]
    users = [
        f"in use by process {row['pid']}, {row['command']}: "
        + (f"consumer of {row['subscription']}" if row["subscription"] else row["name"])
        for row in rows
        if row["held"] and row["pid"] != os.getpid()
    ]
    return users or ["no process holds a lock of it now"]


@command(
    "diff",
    "what differs between two stores",
    examples=(
        "txlog diff shop backup",
        "txlog diff shop backup orders --json",
        "txlog -S shop diff ../other",
    ),
    rows="store.Difference",
)
def diff(
    call: Call,
    left: Annotated[
        str, Argument(metavar="STORE", help="a store; alone: it is OTHER", show_default=False)
    ],
    right: Annotated[
        str | None,
        Argument(
            metavar="OTHER", help="the store to compare it with, or with yours", show_default=False
        ),
    ] = None,
    topic: Annotated[
        str | None, Argument(metavar="TOPIC", help="only this topic", show_default=False)
    ] = None,
) -> None:
    """Name what differs between two stores; 0: nothing, 8: something.

    Topics, partitions, messages in their order (by key, value, properties, event and delivery time,
    not by id), schemas, policies, subscriptions with their backlogs; without TOPIC also settings.
    Between a store and its copy positions and single acknowledgements, too. It only reads, and
    takes no lock: a store in use may change meanwhile. With one path: your store against that.
    """
    if right is None:
        left, right = call.store_path(), left
    call.report.store = os.path.abspath(left)
    library = importlib.import_module("txlog.client.open")
    comparing = importlib.import_module("txlog.client.difference")
    with (
        library.open_store(left, read_only=True, clock=call.clock) as first,
        library.open_store(right, read_only=True, clock=call.clock) as second,
    ):
        rows = comparing.difference(first, second, topic)
        if not rows:
            shown = [row for row in first.topics() if topic in (None, row["topic"])]
            topics = tables.counted(len(shown), "topic")
            messages = tables.counted(sum(row["messages"] for row in shown), "message")
            call.summary(f"no difference: {topics}, {messages}")
    call.output.rows(rows)
    if rows:
        call.summary(f"{tables.counted(len(rows), 'difference')} between {left} and {right}")
        call.exit = 8


@command(
    "status",
    "contents of the store, and its health",
    examples=("txlog status", "txlog status --json", "txlog status --watch=5s"),
    rows="store.Status",
)
def status(
    call: Call,
    pause_ms: Watch = None,
) -> None:
    """Show the contents of the store, and its health."""

    client = call.client()
    view = importlib.import_module("txlog.cli.commands.status")
    view.show(call, client, pause_ms)


@command(
    "inspect",
    "look at a topic, transaction, message, ledger or file",
    examples=(
        "txlog inspect orders --sample 5",
        "txlog inspect txn:0:42",
        "txlog inspect 17:4",
        'txlog inspect some.parquet --sql "SELECT count(*) FROM this"',
    ),
    more=lambda: fields.inspected(),
)
def inspect(
    call: Call,
    target: Annotated[str | None, Argument(metavar="WHAT", show_default=False)] = None,
    sql: Annotated[str | None, Option("--sql", metavar="SQL", help="a SELECT over `this`")] = None,
    at: Annotated[str | None, Option("--at", metavar="BOUND", help="start here")] = None,
    isolation: Annotated[
        str, Option("--isolation", metavar="I", help="or uncommitted: with txn_state")
    ] = "committed",
    schema: Annotated[bool, Option("--schema", help="show its columns")] = False,
    stats: Annotated[bool, Option("--stats", help="show sizes and bounds of its columns")] = False,
    row_groups: Annotated[bool, Option("--row-groups", help="show its row groups")] = False,
    frames: Annotated[bool, Option("--frames", help="show frames of a journal")] = False,
    hexdump: Annotated[
        str | None, Option("--hexdump", metavar="OFFSET:LEN", help="bytes of a file or frame")
    ] = None,
    sample: Annotated[int | None, Option("--sample", min=0, metavar="N", help="N rows")] = None,
    explain: Annotated[bool, Option("--explain", help="show DuckDB's plan")] = False,
) -> None:
    """Look at a topic, subscription, key, transaction, message, ledger, frame or file.

    WHAT is topic:N sub:N key:K txn:0:42 msg:17:4 ledger:17 lsn:N file:PATH; without a prefix the
    command guesses the kind; without WHAT it shows the store. A file may be Parquet, Arrow, journal
    or manifest, inside a store or outside.

    `this` is the messages of a store, topic or partition, a subscription's backlog, all rows of a
    transaction or ledger; for a file its rows, frames or files.
    """
    view = importlib.import_module("txlog.cli.commands.inspect")
    looks = view.Looks(
        sql, at, isolation, schema, stats, row_groups, frames, hexdump, sample, explain
    )
    view.show(call, target, looks)


@command(
    "du",
    "bytes on disk by topic and part",
    examples=("txlog du", "txlog du orders --json"),
    rows="space.DiskUsageRow",
)
def du(
    call: Call,
    topics: Annotated[
        list[str] | None,
        Argument(metavar="NAME", show_default=False, help="only these topics"),
    ] = None,
) -> None:
    """Show what takes the space on the disk, largest first: topics, journal, checkpoints, others.

    The sizes add up to the total of `du -b` on the store. Offloaded files are not in it. `deleted`
    are files of deleted topics, which go when no reader can need them.
    """
    client = call.client()
    names = {client.describe_topic(topic)["topic"] for topic in topics or ()}
    usage = client.disk_usage()
    rows = [row for row in usage["usage_list"] if not names or row["name"] in names]
    call.output.rows([row for row in rows if not names or row["kind"] == "topic"])
    journal = client.status()["journal"]
    away = usage["offloaded_bytes"]
    call.summary(
        f"{tables.size(usage['size_bytes'])} in {usage['path']}"
        + (f", and {tables.size(away)} offloaded" if away else "")
    )
    if journal["frames"]:
        call.summary(
            f"{tables.size(journal['size_bytes'])} of messages and changes are in the journal "
            "until the next checkpoint: txlog admin checkpoint writes them to their topics now"
        )
