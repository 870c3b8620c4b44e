"""Owns `_README`: a note in the directory of each topic that says how its files are read.

Nothing needs it and nothing names it. It is written once, by the first checkpoint after the
directory is there; a crash may leave part of it, which harms nobody.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from txlog.engine.store.store import Store
from txlog.engine.view.paths import NOTE, topic_dir
from txlog.errors import TxlogError

TEXT: Final = b"""\
The files below belong to a txlog store. They are not the messages of the topic.

Reading them directly (spark.read.parquet(...), read_parquet('**/*.parquet')) gives wrong rows and
no error: they also hold aborted and open transactions and markers, and the newest messages are
still in the journal. Instead:

  txlog views                               SQL views for any DuckDB
  txlog query "SELECT ... FROM messages"    SQL
  txlog.spark.read(spark, store, topic)     Spark; or spark.read.format("txlog")
  txlog export TOPIC DIR --to delta|iceberg|hive
                                            a table that any engine reads right

Do not change, move or remove anything here, except this file.
"""


def write_notes(store: Store, *, topics_max: int | None = None) -> None:
    """Write the notes that are missing. The caller holds the maintenance lock.

    topics_max: with more topics than this nothing is looked for
    """
    names = store.read(lambda view: [topic.name for topic in view.catalog.topics.values()])
    if topics_max is not None and len(names) > topics_max:
        return
    disk = store.disk
    for name in names:
        directory = topic_dir(name)
        path = f"{directory}/{NOTE}"
        if disk.exists(directory) and not disk.exists(path):
            with suppress(TxlogError):  # a full disk has no room for it
                disk.write_fresh(path, TEXT)
