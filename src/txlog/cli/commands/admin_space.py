"""Owns the commands that give space back: compact, offload, confirm, trim, gc; accept-clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from txlog.base.ranges import parse_bound
from txlog.base.settings import HOUR_MS
from txlog.cli.call.ask import confirm
from txlog.cli.call.call import Call
from txlog.cli.call.progress import Words
from txlog.cli.line.command import command, exclusive
from txlog.cli.line.declared import Argument, Option
from txlog.cli.terminal.tables import counted, duration, size
from txlog.engine.door import disk as remote
from txlog.errors import Usage

if TYPE_CHECKING:
    from txlog.base.rows.space import Trimmed


@command(
    "admin compact",
    examples=("txlog admin compact orders", "txlog admin compact orders -p 0 --dry-run"),
    fields=(
        "topic transactions messages aborted_dropped size_before_bytes size_after_bytes "
        "ledgers_before ledgers_after dry_run"
    ),
    changes=True,
)
def compact(
    call: Call,
    topic: Annotated[str, Argument(metavar="TOPIC", show_default=False)],
    partition: Annotated[int | None, Option("--partition", "-p", metavar="N")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="say what would be done")] = False,
) -> None:
    """Rewrite the sidecar in commit order, without rows of aborted transactions."""
    client = call.client(write=not dry_run)
    with Words(call, f"compacting {topic}"):
        answer = client.admin.compact(topic, partition, dry_run=dry_run)
    before, after = int(answer["size_before_bytes"]), int(answer["size_after_bytes"])
    call.summary(
        f"{_tense(dry_run, 'compact')} {answer['topic']}: "
        f"{counted(int(answer['messages']), 'message')} of "
        f"{counted(int(answer['transactions']), 'transaction')} kept, "
        f"{answer['aborted_dropped']:,} dropped, {size(before)} before, {size(after)} after"
    )
    call.output.result(answer)


@command(
    "admin compact-topic",
    examples=("txlog admin compact-topic orders", "txlog admin compact-topic orders --dry-run"),
    fields=(
        "topic partitions lsn messages keys_kept keys_deleted without_key files "
        "size_before_bytes size_after_bytes dry_run"
    ),
    changes=True,
)
def compact_topic(
    call: Call,
    topic: Annotated[str, Argument(metavar="TOPIC", show_default=False)],
    dry_run: Annotated[bool, Option("--dry-run", help="say what would be done")] = False,
) -> None:
    """Keep the newest message of each key in files that outlive the log.

    All partitions as of one moment. A message without a value deletes its key, and messages
    without a key are left out. The log stays as it is: `consume --read-compacted`, readers with
    read_compacted and table views read the compacted messages first, then what came since. Run it
    again at any time: it reads the compacted messages and what came since, never the whole log.
    From then on the topic's retention lets go only of what was compacted. With `policy retention
    set --compaction-threshold` checkpoints do it.
    """
    client = call.client(write=not dry_run)
    with Words(call, f"compacting {topic}"):
        answer = client.admin.compact_topic(topic, dry_run=dry_run)
    if answer["partitions"]:
        call.summary(
            f"{_tense(dry_run, 'compact')} {answer['topic']}: "
            f"{counted(answer['keys_kept'], 'key')} of {counted(answer['messages'], 'message')}, "
            f"{answer['keys_deleted']:,} deleted, {answer['without_key']:,} without a key; "
            f"{size(answer['size_after_bytes'])}"
        )
    else:
        call.summary(f"nothing came to {answer['topic']} since it was compacted")
    call.output.result(answer)


@command(
    "admin compact-changes",
    examples=("txlog admin compact-changes", "txlog admin compact-changes --json"),
    fields=(
        "log rows_before rows_after files_before files_after size_before_bytes size_after_bytes"
    ),
    changes=True,
)
def compact_changes(call: Call) -> None:
    """Reduce the logs of changes to the newest row of each key, cursor and catalog entry.

    The logs are system/__transaction_key, those of cursors, and system/catalog: DuckDB and Spark
    read them as Parquet, and query has them as transaction_key_log, cursor_log, catalog_log. Older
    rows are gone, as after a compaction of a topic. Each cursor gets a file of its own, in
    _cursors/SUBSCRIPTION of its partition.
    """
    client = call.client(write=True)
    with Words(call, "compacting the logs of changes"):
        rows = client.admin.compact_changes()
    before, after = sum(row["rows_before"] for row in rows), sum(row["rows_after"] for row in rows)
    call.summary(f"{counted(before, 'change')} before, {after:,} after")
    call.output.rows(rows)


@command(
    "admin offload",
    examples=(
        "txlog admin offload orders --to /mnt/archive",
        "txlog admin offload orders --to 's3://bucket/txlog?region=eu-central-1' --dry-run",
    ),
    fields="topic place files size_bytes ledgers_left dry_run",
    changes=True,
)
def offload(
    call: Call,
    topic: Annotated[str, Argument(metavar="TOPIC", show_default=False)],
    to: Annotated[
        str | None, Option("--to", metavar="DIR|URI", help="a directory, s3://bucket/prefix")
    ] = None,
    partition: Annotated[int | None, Option("--partition", "-p", metavar="N")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="say what would be done")] = False,
) -> None:
    """Move sealed files out of the store; readers, queries and Spark find them there.

    Each copy is read back and compared before its ledger switches to it. Local files go once
    reader_grace_ms has passed, with the second checkpoint after the offload, as repair may need
    them until then; on a nearly full disk at once. Offloaded files go when a trim or a deletion
    lets them go and `txlog admin checkpoint` or `txlog admin gc --apply` runs. Credentials for S3
    come from the environment.
    """
    if to is None:
        raise Usage("say where to: --to DIR or --to s3://bucket/prefix")
    client = call.client(write=not dry_run)
    with Words(call, f"offloading {topic}"):
        answer = client.admin.offload(topic, to, partition, dry_run=dry_run)
    left = answer["ledgers_left"]
    stay = "stays" if left == 1 else "stay"
    call.summary(
        f"{_tense(dry_run, 'offload')} {counted(answer['files'], 'file')} of {answer['topic']}, "
        f"{size(answer['size_bytes'])}; {counted(left, 'ledger')} {stay}"
        " (open, in parts, or not clean)"
    )
    call.output.result(answer)


@command(
    "admin confirm",
    examples=(
        "txlog admin confirm /mnt/archive",
        "txlog admin confirm 's3://bucket/txlog?region=eu-central-1'",
    ),
    fields="place",
)
def confirm_place(
    call: Call,
    place: Annotated[str, Argument(help="a directory, s3://bucket/prefix", show_default=False)],
) -> None:
    """Let this user read files of the store at a place that somebody has offloaded them to.

    Whoever made a store may name any file or bucket in it, so nothing outside is opened because a
    store names it. Offloading confirms its place for the user who runs it. A store that came from
    another user, another machine or an older version needs this command, once for each place.
    Files there are not removed because of it.
    """
    answer = call.client(write=False).admin.confirm(place)
    call.summary(f"files of this store are read at {remote.without_options(answer['place'])}")
    call.output.result(answer)


@command(
    "admin trim",
    examples=(
        "txlog admin trim orders --to @-7d",
        "txlog admin trim orders --to sub=billing --dry-run",
        "txlog admin trim orders --by-policy --yes",
    ),
    fields="topic ledgers messages size_bytes partition_list dry_run",
    changes=True,
)
def trim(
    call: Call,
    topic: Annotated[str, Argument(metavar="TOPIC", show_default=False)],
    to: Annotated[str | None, Option("--to", metavar="BOUND", help="everything before it")] = None,
    by_policy: Annotated[
        bool, Option("--by-policy", help="whatever the topic's retention lets go")
    ] = False,
    force: Annotated[bool, Option("--force-unacked", help="even what is not acknowledged")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="say what would be done")] = False,
) -> None:
    """Delete the oldest messages, by whole ledgers."""
    exclusive(to=to, by_policy=by_policy)
    if to is None and not by_policy:
        raise Usage("say what to trim: --to BOUND or --by-policy")
    bound = None if to is None else parse_bound(to, call.now_ms())
    client = call.client(write=not dry_run)
    plan = client.admin.trim(topic, bound, by_policy=by_policy, force_unacked=force, dry_run=True)
    if not dry_run and plan["ledgers"]:
        confirm(call, f"trim {_amount(plan)}")
        plan = client.admin.trim(topic, bound, by_policy=by_policy, force_unacked=force)
    if plan["ledgers"]:
        call.summary(f"{_tense(dry_run, 'trim')} {_amount(plan)}")
    else:
        call.summary(
            f"nothing to trim in {plan['topic']}: only whole ledgers go, and none lies before"
        )
    call.output.result({**plan, "dry_run": dry_run})


@command(
    "admin gc",
    examples=("txlog admin gc", "txlog admin gc --apply --keep 10m"),
    fields="applied files size_bytes file_list",
    changes=True,
)
def gc(
    call: Call,
    apply: Annotated[bool, Option("--apply", help="unlink them")] = False,
    keep: Annotated[str, Option("--keep", metavar="DUR", help="for readers that began before")] = (
        "1h"
    ),
) -> None:
    """Find files that no manifest names; --apply unlinks them."""
    keep_ms = call.duration(keep)
    client = call.client(write=apply)
    answer = client.admin.gc(apply, HOUR_MS if keep_ms is None else keep_ms)
    done = "unlinked" if apply else "found"
    call.summary(f"{done} {counted(answer['files'], 'file')}, {size(answer['size_bytes'])}")
    call.output.result(answer)


@command(
    "admin accept-clock",
    examples=("txlog admin accept-clock", "txlog admin accept-clock --json"),
    fields="ahead_ms was_believed",
    changes=True,
)
def accept_clock(call: Call) -> None:
    """Say that the wall clock is right, so that old data expires by it again.

    A clock that jumped forward by more than clock_jump_max_ms is not trusted: nothing is deleted,
    acknowledged or forgotten by it, and `status` and `check` say so. After a reboot it is trusted
    once it has run for an hour; so is a clock that was set back.
    """
    answer = call.client(write=True).admin.accept_clock()
    ahead = duration(max(0, int(answer["ahead_ms"])))
    if answer["was_believed"]:
        call.summary("the clock was trusted already")
    else:
        call.summary(f"the clock is trusted, {ahead} ahead of what was expected")
    call.output.result(answer)


def _amount(plan: Trimmed) -> str:
    messages, ledgers = counted(plan["messages"], "message"), counted(plan["ledgers"], "ledger")
    return f"{plan['topic']}: {messages} in {ledgers}"


def _tense(dry_run: bool, verb: str) -> str:
    if dry_run:
        return f"would {verb}"
    return f"{verb}med" if verb == "trim" else f"{verb}ed"
