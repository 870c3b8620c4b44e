"""Owns the job `replay`: messages of a range become messages of another topic, once.

The batch is named by the transaction key, the topic and the range as it was written: whoever brings
all three again gets the first answer, also where the range would mean other messages by now. Each
message says where it came from, in a property.
"""

from __future__ import annotations

from typing import Any

from txlog.api.client import Client
from txlog.errors import InvalidArgument
from txlog.ids import TopicName
from txlog.jobs.engine import Engine, Tell, silent
from txlog.jobs.loads import Transform
from txlog.ranges import Range
from txlog.relation.scans import scans_of
from txlog.relation.spans import Wanted

Answer = dict[str, Any]


def replay(
    client: Client, topic: str, dest: str, wanted: tuple[str, Range], key: str, engine: Engine, *,
    function: tuple[str, Transform] | None = None, dry_run: bool = False, tell: Tell = silent,
) -> Answer:  # fmt: skip
    """Store the committed messages of a range in another topic, once for this key and range.

    wanted:   the range as text, which names the batch, and what it means
    function: its name, which names the batch too, and what changes the messages: columns key,
              value, properties, event_time, deliver_at
    returns:  {topic, dest, read, written, txn, already}; read is None when it was done before
    raises:   InvalidArgument, TopicNotFound, CommandFailed when the function failed; as Bulk.commit
    """
    source, target = (TopicName.parse(name, allow_partition=True) for name in (topic, dest))
    if source.topic.full == target.full:
        raise InvalidArgument("a topic is not replayed into itself")
    text, range_ = wanted
    batch = f"replay {source.full} {text}" + (f" {function[0]}" if function else "")
    answer: Answer = {"topic": source.short, "dest": target.short}
    if client.has_batch(target.full, key, batch):
        done = client.bulk(dest, key=key, batch=batch).stored if not dry_run else None
        return {**answer, "read": None, "written": done and done["messages"],
                "txn": done and done["txn"], "already": True}  # fmt: skip
    content = client._content(topic, Wanted(range=range_))
    if dry_run:
        read = sum(
            table.num_rows
            for scan in scans_of(content.relation) for table in client._scanned(scan, ["lsn"])
        )  # fmt: skip
        return {**answer, "read": read, "written": None, "txn": None, "already": False}
    relation = content.relation
    pin = client._pin([*relation.direct, *relation.unclean, *relation.open, *relation.large_files])
    try:
        tell(f"{source.short}: replaying")
        read, done = engine.replay(
            client, content, target.full, key, batch, function and function[1]
        )
    finally:
        if pin is not None:
            pin.close()
    return {**answer, "read": read, "written": done["messages"], "txn": done["txn"],
            "already": done["already"]}  # fmt: skip
