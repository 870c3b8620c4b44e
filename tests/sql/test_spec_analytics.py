"""docs/spec/analytics.md against the program: columns of relations, options of the data source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spec_page import section, table, words
from txlog.cli.help.fields import relations
from txlog.engine.storage.columns import MESSAGE
from txlog.engine.storage.segment import encode_sealed
from txlog.errors import InvalidArgument
from txlog.lake.spark.options import batch_options, stream_options
from txlog.lake.sql.client_query import columns
from txlog.lake.sql.query import LISTS


def test_relations_have_the_columns_of_the_table() -> None:
    """In order; kills: a relation or a column that only the table or only the program has."""
    documented = {
        words(name)[0]: words(listed)
        for name, listed in table(section("analytics", "4"), "relation")
    }
    helped = [line.split("\t")[0] for line in relations().splitlines()]
    assert documented.pop("messages") == [name for name in helped if "." not in name]
    columns_of_all = [
        name.removeprefix("messages_all.") for name in helped if name.startswith("messages_")
    ]
    assert documented.pop("messages_all") == columns_of_all
    assert not documented.pop("compacted")  # it has the columns of messages
    assert documented == {name: list(columns(name)) for name in LISTS}


def test_options_match_the_source() -> None:
    """Options of batches and of streams; any other option is an error."""
    rows = table(section("analytics", "5"), "option")
    for kind, parse in (("batch", batch_options), ("stream", stream_options)):
        documented = {option for cells in rows if kind in cells[1] for option in words(cells[0])}
        with pytest.raises(InvalidArgument) as refused:
            parse({"path": "shop", "topic": "orders", "xyzzyxyzzy": ""})
        assert refused.value.hint
        assert documented == set(refused.value.hint.split(", "))


def test_a_sealed_file_is_written_as_the_table_says() -> None:
    """Compression, encodings and which columns have statistics."""
    data: Mapping[str, list[Any]] = {
        "kind": [0], "entry": [0], "key": [b"k"], "value": [b"v"], "properties": [[("a", "b")]],
    }  # fmt: skip
    rows = pa.table(
        {field.name: pa.array(data.get(field.name, [None]), field.type) for field in MESSAGE}
    )
    buffers = encode_sealed(rows, has_keys=True, ledger=1)
    group = pq.read_metadata(pa.BufferReader(b"".join(buffers))).row_group(0)
    documented = dict(table(section("analytics", "8"), "what"))
    dictionary = {
        name for cell in documented if documented[cell] == "dictionary" for name in words(cell)
    }
    plain = {name for cell in documented if documented[cell] == "PLAIN" for name in words(cell)}
    assert (dictionary, plain) == ({"kind", "key", "producer"}, {"value", "properties"})
    for number in range(group.num_columns):
        column = group.column(number)
        top = column.path_in_schema.partition(".")[0]
        assert column.compression == "ZSTD"
        assert ("RLE_DICTIONARY" in column.encodings) == (top in dictionary), top
        assert column.is_stats_set == (top not in plain), top
