"""Owns the job `bulk-load`: files become messages of a topic, all of them or none, once.

The batch is named by the transaction key and by what is in the files; whoever brings both again
gets the first answer, and nothing is written.
"""

from __future__ import annotations

from typing import Any

from txlog.api.client import Client
from txlog.errors import BadRecord
from txlog.jobs.engine import Engine, Tell, silent
from txlog.jobs.loads import Files
from txlog.jobs.local import Local

Answer = dict[str, Any]


def bulk_load(
    client: Client, source: Files, topic: str, key: str, engine: Engine, *, dry_run: bool = False,
    tell: Tell = silent,
) -> Answer:  # fmt: skip
    """Store the rows of files as messages, once for this key and these bytes.

    returns: {topic, files, messages, size_bytes, ledgers, txn, already}; files: of the source
    raises:  InvalidArgument, TopicNotFound, PartitionUnavailable, NotAllowed; BadRecord,
             CommandFailed when a file cannot be read as it is said to be: nothing was stored
    """
    tell("reading the source for its name")
    batch = source.name()
    already = client.has_batch(topic, key, batch)
    if source.form == "csv" and engine.name != Local.name and not already:
        tell("comparing with what DuckDB reads")
        _check_csv(source, engine)
    if dry_run:
        messages = 0 if already else engine.count(source)
        return {"topic": topic, "files": len(source.paths), "messages": messages,
                "size_bytes": None, "ledgers": None, "txn": None, "already": already}  # fmt: skip
    found = client.bulk(topic, key=key, batch=batch).stored
    if found is None:
        tell("writing")
        found = engine.load(client, source, topic, key, batch)
    return answer_of(found, len(source.paths))


def _check_csv(source: Files, engine: Engine) -> None:
    """Raises BadRecord for what is no csv, or when an engine takes it for other rows."""
    ours, theirs = Local().csv_rows(source), engine.csv_rows(source)
    if ours == theirs or ours.rows == theirs.rows == 0:
        return
    what = "with other values"
    if ours.columns != theirs.columns:
        what = f"with the columns {', '.join(theirs.columns)[:200]}"
    elif ours.rows != theirs.rows:
        what = f"as {theirs.rows} rows, not {ours.rows}"
    raise BadRecord(
        f"{engine.name} reads these csv files {what}",
        hint="--engine duckdb; it may be blank lines, blanks around quotes, or names of columns",
    )


def answer_of(found: Answer, files: int) -> Answer:
    """What a job says of Bulk.commit's answer."""
    return {
        "topic": found["topic"], "files": files, "messages": found["messages"],
        "size_bytes": found["size_bytes"], "ledgers": found["files"], "txn": found["txn"],
        "already": found["already"],
    }  # fmt: skip
