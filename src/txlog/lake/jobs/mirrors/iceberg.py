"""Owns a mirror as an Iceberg table: its LSN is a property, set in the commit that adds the files.

The directory is a warehouse with the SQL catalog of pyiceberg in a file of SQLite, `catalog.db`;
several topics may share it. The catalog is called `txlog`. The table of `public/default/orders` is
`default.orders`, the table of `acme/eu/orders` is `acme.eu.orders`. Files are partitioned by
day(visible_time), which is a property of the table and not a column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table as Opened
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)
from sqlalchemy.exc import OperationalError

from txlog.base.ids import TopicName
from txlog.errors import DiskFailed, InvalidArgument, TryAgain
from txlog.lake.jobs.mirrors.table import Added, Label, check_ours

CATALOG: Final = "txlog"
FILE: Final = "catalog.db"
_LSN, _SOURCE, _RECORD = "txlog.lsn", "txlog.mirror", "txlog.record"
_TOPIC: Final = "txlog.topic"
_UNFIT: Final = re.compile(r"[%#?\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # a location is a URI
_TYPES: Final = {
    "string": StringType(),
    "binary": BinaryType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "timestamp[us, tz=UTC]": TimestamptzType(),
    "timestamp[us]": TimestampType(),
    "bool": BooleanType(),
    "float": FloatType(),
    "double": DoubleType(),
    "date32[day]": DateType(),
    "time64[us]": TimeType(),
}


class Table:
    """An Iceberg table in a warehouse of its own catalog."""

    def __init__(self, root: Path, label: Label) -> None:
        if _UNFIT.search(str(root)):
            raise InvalidArgument("the path of an Iceberg warehouse has none of % # ?")
        catalog_file = root / FILE
        if not catalog_file.exists():
            check_ours(root)
        self._place = root
        self._label = label
        self._name = identifier(label.topic)
        self._folder = root.joinpath(*(_plain(word) for word in self._name))
        with _telling(catalog_file):
            where = {"uri": f"sqlite:///{catalog_file}", "warehouse": f"file://{root}"}
            self._catalog = SqlCatalog(CATALOG, **where)
            self._table = self._opened()

    def lsn(self) -> int:
        """As Target."""
        return 0 if self._table is None else int(self._table.properties.get(_LSN, "0"))

    def record(self) -> int | None:
        """As Target."""
        return None if self._table is None else int(self._table.properties.get(_RECORD, "0"))

    def folder(self, columns: pa.Schema, record: int) -> Path:
        """As Target."""
        if self._table is None:
            schema = _schema(columns)
            visible = schema.find_field("visible_time").field_id
            with _telling(self._place / FILE):
                self._catalog.create_namespace_if_not_exists(self._name[:-1])
                self._table = self._catalog.create_table(
                    self._name,
                    schema,
                    location=f"file://{self._folder}",
                    partition_spec=PartitionSpec(
                        PartitionField(visible, 1000, DayTransform(), "day"), spec_id=0
                    ),
                    properties={_SOURCE: str(self._label), _LSN: "0", _RECORD: str(record)},
                )
        return self._folder / "data"

    def commit(self, added: list[Added], lsn: int) -> None:
        """As Target."""
        assert self._table is not None
        try:
            with _telling(self._place / FILE), self._table.transaction() as change:
                number = str(self._label.record.number)
                change.set_properties({_LSN: str(lsn), _TOPIC: number})
                change.add_files(
                    [f"file://{file.path}" for file in added], check_duplicate_files=False
                )
        except CommitFailedException as error:
            text = " ".join(str(error).split())
            raise TryAgain(
                f"another process wrote the table meanwhile: {text[:200]}",
                hint="run the export again",
            ) from error

    def close(self) -> None:
        """Close the catalog."""
        self._catalog.close()

    def _opened(self) -> Opened | None:
        try:
            table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None
        place = f"{'.'.join(self._name)} in {self._place}"
        number = table.properties.get(_TOPIC)
        self._label.check(place, table.properties.get(_SOURCE), number and int(number))
        return table


@contextmanager
def _telling(path: Path) -> Iterator[None]:
    """Convert a failure of the catalog's file to a TxlogError."""
    try:
        yield
    except OperationalError as error:
        raise DiskFailed(f"{path}: {error.orig}", path=str(path)) from error


def identifier(topic: TopicName) -> tuple[str, ...]:
    """The name of a topic's table; the tenant `public` is left out."""
    tenant = () if topic.tenant == "public" else (topic.tenant,)
    return (*tenant, topic.namespace, topic.name)


def _plain(word: str) -> str:
    """A name as a directory: quoted as in a URL, with ~ for %, because a location is a URI."""
    return quote(word, safe="").replace("~", "%7E").replace("%", "~")


def _schema(columns: pa.Schema) -> Schema:
    """Columns with the ids that Iceberg needs: first the table's columns, then nested fields."""
    ids = count(len(columns) + 1)
    return Schema(
        *(
            NestedField(number, field.name, _type(field.type, ids), required=False)
            for number, field in enumerate(columns, 1)
        )
    )


def _type(kind: pa.DataType, ids: Iterator[int]) -> IcebergType:
    if pa.types.is_struct(kind):
        return StructType(
            *(
                NestedField(next(ids), field.name, _type(field.type, ids), required=False)
                for field in kind
            )
        )
    if pa.types.is_map(kind):
        key, value = next(ids), next(ids)
        return MapType(key, StringType(), value, _type(kind.item_type, ids), value_required=False)
    if pa.types.is_list(kind):
        return ListType(next(ids), _type(kind.value_type, ids), element_required=False)
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    return _TYPES[str(kind)]
