"""Owns the commands that free disk space: compact, offload, confirm, trim, gc; accept-clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from txlog.base.ranges import parse_bound
from txlog.cli.call.call import Call, confirm
from txlog.cli.call.progress import Words
from txlog.cli.line.command import Argument, Duration, Option, command, exclusive
from txlog.cli.terminal.tables import counted, duration, size
from txlog.engine.door import disk as remote
from txlog.errors import Usage

if TYPE_CHECKING:
    from txlog.base.rows.space import Trimmed


@command(
    "admin compact",
    "rewrite a sidecar without aborted messages",
    examples=("txlog admin compact orders", "txlog admin compact orders -p 0 --dry-run"),
    rows="space.Compacted",
    changes=True,
)
def compact(
    call: Call,
    topic: Annotated[str, Argument(metavar="TOPIC", show_default=False)],
    partition: Annotated[int | None, Option("--partition", "-p", metavar="N")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="print the planned changes")] = False,
) -> None:
    """Rewrite the sidecar in commit order, without rows of aborted transactions."""
    client = call.client(write=not dry_run)
    with Words(call, f"compacting {topic}"):
        answer = client.admin.compact(topic, partition, dry_run=dry_run)
    old_bytes, new_bytes = int(answer["size_before_bytes"]), int(answer["size_after_bytes"])
    call.summary(
        f"{_tense(dry_run, 'compact')} {answer['topic']}: "
        f"{counted(int(answer['messages']), 'message')} of "
        f"{counted(int(answer['transactions']), 'transaction')} kept, "
        f"{answer['aborted_dropped']:,} dropped, {size(old_bytes)} before, {size(new_bytes)} after"
    )
    call.output.result(answer)


@command(
    "admin compact-topic",
    "keep the newest message of each key",
    examples=("txlog admin compact-topic orders", "txlog admin compact-topic orders --dry-run"),
    rows="space.TopicCompacted",
    changes=True,
    loses="data",
)
def compact_topic(
    call: Call,
    topic: Annotated[str, Argument(metavar="TOPIC", show_default=False)],
    dry_run: Annotated[bool, Option("--dry-run", help="print the planned changes")] = False,
) -> None:
    """Keep the newest message of each key in files that outlive the log.

    It compacts all partitions as of one moment. A message without a value deletes its key, and
    messages without a key are left out. The log does not change: `consume --read-compacted`,
    readers with read_compacted and table views read the compacted messages first, then newer ones.
    Run it again at any time: it reads only the compacted messages and newer ones. From then on the
    topic's retention deletes only messages that were compacted. With `policy retention set
    --compaction-threshold` checkpoints compact the topic.
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
        call.summary(f"{answer['topic']} has no new messages since it was compacted")
    call.output.result(answer)


@command(
    "admin compact-changes",
    "shorten the logs of keys and cursors",
    examples=("txlog admin compact-changes", "txlog admin compact-changes --json"),
    rows="space.ChangesCompacted",
    changes=True,
)
def compact_changes(call: Call) -> None:
    """Reduce the logs of changes to the newest row of each key, cursor and catalog entry.

    The logs are system/__transaction_key, system/catalog, and one for the cursors: DuckDB and Spark
    read them as Parquet, and query has them as transaction_key_log, cursor_log, catalog_log. It
    deletes older rows, as the compaction of a topic does. Each cursor gets its own file, in
    _cursors/SUBSCRIPTION of its partition.
    """
    client = call.client(write=True)
    with Words(call, "compacting the logs of changes"):
        rows = client.admin.compact_changes()
    rows_before, rows_after = (
        sum(row["rows_before"] for row in rows),
        sum(row["rows_after"] for row in rows),
    )
    call.summary(f"{counted(rows_before, 'change')} before, {rows_after:,} after")
    call.output.rows(rows)


@command(
    "admin offload",
    "move sealed files to a directory or to S3",
    examples=(
        "txlog admin offload orders --to /mnt/archive",
        "txlog admin offload orders --to 's3://bucket/txlog?region=eu-central-1' --dry-run",
    ),
    rows="space.Offloaded",
    changes=True,
)
def offload(
    call: Call,
    topic: Annotated[str, Argument(metavar="TOPIC", show_default=False)],
    to: Annotated[
        str | None, Option("--to", metavar="DIR|URI", help="a directory, s3://bucket/prefix")
    ] = None,
    partition: Annotated[int | None, Option("--partition", "-p", metavar="N")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="print the planned changes")] = False,
) -> None:
    """Move sealed files out of the store; readers, queries and Spark still read them.

    Each copy is read back and compared before its ledger switches to it. The second checkpoint
    after the offload removes local files, once reader_grace_ms has passed, as repair may need them
    until then; on a nearly full disk they go at once. A trim or deletion frees offloaded files, and
    `txlog admin checkpoint` or `txlog admin gc --apply` removes them. Credentials for S3 come from
    the environment.
    """
    if to is None:
        raise Usage("the target is missing: --to DIR or --to s3://bucket/prefix")
    client = call.client(write=not dry_run)
    with Words(call, f"offloading {topic}"):
        answer = client.admin.offload(topic, to, partition, dry_run=dry_run)
    remaining = answer["ledgers_left"]
    stay = "stays" if remaining == 1 else "stay"
    call.summary(
        f"{_tense(dry_run, 'offload')} {counted(answer['files'], 'file')} of {answer['topic']}, "
        f"{size(answer['size_bytes'])}; {counted(remaining, 'ledger')} {stay}"
        " (open, in parts, or not clean)"
    )
    call.output.result(answer)


@command(
    "admin confirm",
    "check the copies at an offload target",
    examples=(
        "txlog admin confirm /mnt/archive",
        "txlog admin confirm 's3://bucket/txlog?region=eu-central-1'",
    ),
    rows="space.Confirmed",
)
def confirm_place(
    call: Call,
    place: Annotated[str, Argument(help="a directory, s3://bucket/prefix", show_default=False)],
) -> None:
    """Let this user read files of the store at a place that another user has offloaded to.

    The user who makes a store can name any file or bucket in it, so txlog opens nothing outside
    just because a store names it. Offloading confirms its place for the user who runs it. Run this
    command once for each place if the store came from another user, another machine or an older
    version. It does not allow txlog to remove files there.
    """
    answer = call.client(write=False).admin.confirm(place)
    call.summary(f"files of this store are read at {remote.without_options(answer['place'])}")
    call.output.result(answer)


@command(
    "admin trim",
    "delete the oldest messages",
    examples=(
        "txlog admin trim orders --to @-7d",
        "txlog admin trim orders --to sub=billing --dry-run",
        "txlog admin trim orders --by-policy --yes",
    ),
    rows="space.Trimmed",
    changes=True,
    loses="data",
    asks=True,
)
def trim(
    call: Call,
    topic: Annotated[str, Argument(metavar="TOPIC", show_default=False)],
    to: Annotated[str | None, Option("--to", metavar="BOUND", help="everything before it")] = None,
    by_policy: Annotated[
        bool, Option("--by-policy", help="all messages that the topic's retention no longer keeps")
    ] = False,
    force: Annotated[bool, Option("--force-unacked", help="also unacknowledged messages")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="print the planned changes")] = False,
) -> None:
    """Delete the oldest messages, by whole ledgers."""
    exclusive(to=to, by_policy=by_policy)
    if to is None and not by_policy:
        raise Usage("the bound is missing: --to BOUND or --by-policy")
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
            f"nothing to trim in {plan['topic']}: only whole ledgers go, and none is before"
        )
    call.output.result({**plan, "dry_run": dry_run})


@command(
    "admin gc",
    "files that no manifest names",
    examples=("txlog admin gc", "txlog admin gc --apply --keep 10m"),
    rows="space.GarbageCollected",
    changes=True,
    loses="data",
)
def gc(
    call: Call,
    *,
    apply: Annotated[bool, Option("--apply", help="unlink them")] = False,
    keep_ms: Annotated[int, Duration("--keep", help="age of protected files", default="1h")],
) -> None:
    """Find files that no manifest names; --apply unlinks them."""
    client = call.client(write=apply)
    answer = client.admin.gc(apply, keep_ms)
    done = "unlinked" if apply else "found"
    call.summary(f"{done} {counted(answer['files'], 'file')}, {size(answer['size_bytes'])}")
    call.output.result(answer)


@command(
    "admin accept-clock",
    "trust the clock as it is",
    examples=("txlog admin accept-clock", "txlog admin accept-clock --json"),
    rows="store.ClockAccepted",
    changes=True,
)
def accept_clock(call: Call) -> None:
    """Declare the wall clock correct, so that old data expires by it again.

    After a forward jump of more than clock_jump_max_ms txlog does not trust the clock: it deletes,
    acknowledges and forgets nothing by it, and `status` and `check` report that. After a reboot it
    trusts the clock again after an hour; it also trusts a clock that was set back.
    """
    answer = call.client(write=True).admin.accept_clock()
    ahead = duration(max(0, int(answer["ahead_ms"])))
    if answer["was_believed"]:
        call.summary("the clock was trusted already")
    else:
        call.summary(f"the clock is trusted, {ahead} ahead of the expected time")
    call.output.result(answer)


def _amount(plan: Trimmed) -> str:
    messages, ledgers = counted(plan["messages"], "message"), counted(plan["ledgers"], "ledger")
    return f"{plan['topic']}: {messages} in {ledgers}"


def _tense(dry_run: bool, verb: str) -> str:
    if dry_run:
        return f"would {verb}"
    return f"{verb}med" if verb == "trim" else f"{verb}ed"
