"""Owns `_README`: a note in the directory of each topic about how to read its files.

No code needs it and no manifest names it. The first checkpoint after the directory is made writes
it once; a crash may leave a part of it, which is harmless. The first checkpoint that finds no file
of a deleted topic removes it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.store.store import Store
from txlog.engine.upkeep.space.sweep import below_topics, names_in
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
    """Write the missing notes, and remove those of deleted topics.

    The caller holds the maintenance lock.

    topics_max: with more topics than this it does nothing
    """
    names = store.read(lambda view: [topic.name for topic in view.catalog.topics.values()])
    if topics_max is not None and len(names) > topics_max:
        return
    disk = store.disk
    topic_dirs = {topic_dir(name) for name in names}
    for path in below_topics(disk, 3):
        if path not in topic_dirs:
            _remove(disk, path)
    for name in names:
        directory = topic_dir(name)
        path = f"{directory}/{NOTE}"
        if disk.exists(directory) and not disk.exists(path):
            with suppress(TxlogError):  # a full disk has no room for it
                disk.write_fresh(path, TEXT)


def _remove(disk: Disk, directory: str) -> None:
    """Remove the note of a deleted topic, unless the directory still has files."""
    names = names_in(disk, directory) or []
    others = [f"{directory}/{name}" for name in names if name != NOTE]
    if NOTE in names and not any(names_in(disk, path) for path in others):
        with suppress(TxlogError):
            disk.unlink(f"{directory}/{NOTE}")
