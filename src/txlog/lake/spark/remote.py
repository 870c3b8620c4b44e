"""Owns reading remote files as a data frame: workers fetch them with pyarrow.

Spark itself would need hadoop-aws and its own configuration for S3. Instead, a task fetches the row
groups of some scans with the credentials in its environment, and verifies every checksum. The scans
are an option of the data source, so no worker needs the store.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from txlog.engine.door.relation import Scan
from txlog.engine.door.segments import RECORD
from txlog.lake.spark.datasource import SCHEMA
from txlog.lake.spark.source import Share, read_share, shares_of


def remote_frame(
    spark: SparkSession, scans: Sequence[Scan], record: StructType | None = None
) -> DataFrame:
    """The messages of scans, with the columns of `messages`, and `record` if a type is given."""
    spark.dataSource.register(ScansSource)
    packed = zlib.compress(CPickleSerializer().dumps(list(scans)))  # type: ignore[no-untyped-call]
    text = base64.b64encode(packed).decode()
    reader = spark.read.format(ScansSource.name()).option("scans", text)
    if record is not None:
        reader = reader.schema(f"{SCHEMA}, {RECORD} {record.simpleString()}")
    return reader.load()


class ScansSource(DataSource):
    """The messages of scans that were planned on the driver."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "txlog_scans"

    def schema(self) -> str:
        """The columns of `messages`."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the scans."""
        return ScansReader(self.options["scans"], schema)


class ScansReader(DataSourceReader):
    """Reads scans in tasks of about 64 MB."""

    def __init__(self, scans: str, schema: StructType) -> None:
        self._scans = scans
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The scans of each task; called on the driver."""
        packed = base64.b64decode(self._scans)
        serializer = CPickleSerializer()
        scans: list[Scan] = serializer.loads(zlib.decompress(packed))  # type: ignore[no-untyped-call]
        return shares_of("", scans, {})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a task; called in a worker."""
        return read_share(partition if isinstance(partition, Share) else None, self._schema)
