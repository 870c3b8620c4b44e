"""Two batches; of each, the first attempt of task 0 never ends: STORE PIPE COUNT."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceArrowWriter

from txlog.lake.spark.datasource import TxlogSource
from txlog.spark import session

store, pipe, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
spark = session()


def task() -> TaskContext:
    """The task of this worker."""
    context = TaskContext.get()
    assert context is not None
    return context


def hang_if_first() -> None:
    """Block for ever in the first attempt of task 0, as no process opens the pipe to write."""
    if (task().partitionId(), task().attemptNumber()) == (0, 0):
        os.open(pipe, os.O_RDONLY)


@F.udf(returnType="string", useArrow=False)
def numbered(number: int, hangs: bool) -> str:
    """The number of a row, and of the attempt."""
    if hangs and number == count // 2 - 1:  # the last row of task 0
        hang_if_first()
    return f"{number} {task().attemptNumber()}"


class Late(DataSourceArrowWriter):
    """A sink whose first attempt has staged all its files, but never reports them."""

    def __init__(self, sink: Any) -> None:
        self.sink = sink

    def write(self, iterator: Iterator[Any]) -> Any:
        """Stage, and hang."""
        written = self.sink.write(iterator)
        with open(f"{pipe}.{task().taskAttemptId()}", "w") as file:
            file.writelines(staged.file.path + "\n" for staged in written.staged)
        hang_if_first()
        return written

    def commit(self, messages: Any) -> None:
        """Commit."""
        self.sink.commit(messages)

    def abort(self, messages: Any) -> None:
        """Abort."""
        self.sink.abort(messages)


class LateSource(TxlogSource):
    """txlog with such a sink."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "txlog_late"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """The sink."""
        return Late(super().writer(schema, overwrite))


spark.dataSource.register(LateSource)
rows = spark.range(count, numPartitions=2)
for batch, (form, hangs) in enumerate([("txlog", True), ("txlog_late", False)]):
    options = {"path": store, "topic": "orders", "txnKey": "k", "batchId": str(batch)}
    values = rows.select(numbered("id", F.lit(hangs)).alias("value"))
    values.write.format(form).mode("append").options(**options).save()
spark.stop()
