"""Owns the conversion of a source's rows to columns of messages, as SQL of DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from txlog.base.schemas.schema import names_of_columns
from txlog.base.times import local_zone_name
from txlog.engine.door.segments import RECORD
from txlog.engine.door.sending import COLUMNS
from txlog.errors import InvalidArgument
from txlog.lake.jobs.sources.loads import (
    BASE64,
    BLOCK_BYTES,
    COMMAS,
    LOCAL,
    MILLISECONDS,
    NO_NAME,
    SECONDS,
    SHOWN_TWICE,
    SKIPPED,
    Files,
    encoded,
    no_objects,
)
from txlog.lake.sql.duck import Rows, Session
from txlog.lake.sql.messages import name as _name
from txlog.lake.sql.messages import text as _text
from txlog.lake.sql.messages import unglobbed as _unglobbed

_OTHERS: Final = {
    "properties": "CAST({0} AS MAP(VARCHAR, VARCHAR))",
    "deliver_at": None,
    "sequence_id": "CAST({0} AS BIGINT)",
}

# A column of a CSV has the first type here whose pattern all its texts match.
_WRITTEN: Final = {
    "BOOLEAN": "(true|false)",
    "BIGINT": "-?(0|[1-9][0-9]*)",
    "DOUBLE": r"-?(0|[1-9][0-9]{0,14})(\.[0-9]+)?([eE][-+]?[0-9]+)?",  # longer ones lose digits
    "DATE": "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "TIMESTAMPTZ": r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9:.]+(Z|[-+][0-9]{2}(:?[0-9]{2})?)",
    "TIMESTAMP": r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9:.]+",
}
# Texts of tsv without their escapes: after a pair of backslashes no other escape begins.
_UNESCAPED: Final = (
    r"array_to_string(list_transform(string_split(COLUMNS(*), '\\'), lambda part: replace("
    r"replace(replace(part, '\t', chr(9)), '\n', chr(10)), '\r', chr(13))), '\')"
)
# The name of an Arrow source in the session.
ARROW: Final = "arrow_source"


def _decoded(name: str, text: str, encoding: str) -> str:
    """SQL for the bytes that a text encodes; null if both are null, an error if one is."""
    cases = (
        (f"{text} IS NULL AND {encoding} IS NULL", "NULL"),
        (f"{text} IS NULL", f"error('{name}_encoding without {name}')"),
        (f"{encoding} IS NULL", f"error('{name} without {name}_encoding')"),
        (f"{encoding} = 'utf8'", f"encode({text})"),
        (f"{encoding} <> 'base64'", f"error('{name}_encoding is utf8, base64 or nothing')"),
        (f"regexp_full_match({text}, '{BASE64}')", f"from_base64({text})"),
    )
    whens = " ".join(f"WHEN {test} THEN {then}" for test, then in cases)
    return f"CASE {whens} ELSE error('{name} is not base64') END"


def _instant(millis: str) -> str:
    return f"epoch_ms(CAST({millis} AS BIGINT)) AT TIME ZONE 'UTC'"


# A line must fit in two of the pieces that DuckDB reads at once; by default these are sixteen times
# as long as the longest line.
_LINE_BYTES_MAX: Final = 16 << 20
# DuckDB accepts NaN, Infinity and a comma before a bracket as JSON. Valid JSON has these letters
# only inside texts; texts are removed only from a line that contains them anywhere.
_NO_JSON: Final = r"(?i)nan|inf|,[ \t\r]*[}\]]"
_TEXTS: Final = r'"(?:[^"\\]|\\.)*"'
_IS_JSON: Final = (
    f"json_valid(line) AND NOT (regexp_matches(line, {_text(_NO_JSON)}) AND regexp_matches("
    f"regexp_replace(line, {_text(_TEXTS)}, '\"\"', 'g'), {_text(_NO_JSON)}))"
)
# Valid JSON is an object if it begins with a brace.
_IS_OBJECT: Final = r"starts_with(ltrim(line, E' \t\r\n'), '{')"


def _checked(value: str) -> str:
    """SQL for the value of a line; an error if it is not a JSON object."""
    return f"CASE WHEN {_IS_JSON} AND {_IS_OBJECT} THEN {value} ELSE error('not a JSON object') END"


def message_rows(session: Session, source: Files) -> Rows:
    """The messages of a source, read on demand, in the order of its files.

    raises: SqlError, also for a line that is not a JSON object: `check_lines` names it;
            InvalidArgument for a missing column
    """
    return session.stream(_selected(session, source))


def count_rows(session: Session, source: Files) -> int:
    """The number of messages in a source; it reads every record."""
    row = session.row(f"SELECT count(*) AS n FROM ({_selected(session, source)})")
    return int(str(row["n"]))


def field_names(session: Session, source: Files) -> tuple[str, ...]:
    """The columns that are fields of a record: the chosen ones, or all.

    raises: SqlError; InvalidArgument for a missing column
    """
    scan = _objects(source) if source.form == "ndjson" else _scan(source)
    names = session.stream(f"SELECT * FROM {scan} LIMIT 0").schema.names
    chosen = source.columns.values or tuple(filter(None, [source.columns.value])) or (*names,)
    for field in chosen:
        _check_column(field, names)
    return chosen


def field_types(session: Session, source: Files) -> tuple[tuple[str, str | None], ...]:
    """The columns that are fields of a record, and the SQL of each, as Files.record.

    It reads all rows. raises: as field_names
    """
    scan = _objects(source) if source.form == "ndjson" else _scan(source)
    chosen = field_names(session, source)
    if source.form not in ("csv", "tsv"):
        return tuple((field, None) for field in chosen)
    if len(chosen) == 1 and ";" in chosen[0]:
        raise InvalidArgument(f"the header is one name: {chosen[0]}", hint=COMMAS)
    tests = [
        f"bool_and({_name(field)} IS NULL OR (regexp_full_match({_name(field)}, {_text(how)})"
        f" AND TRY_CAST({_name(field)} AS {kind}) IS NOT NULL)) AND count({_name(field)}) > 0"
        for field in chosen
        for kind, how in _WRITTEN.items()
    ]
    row = session.row(
        f"SELECT {', '.join(f'{t} AS t{n}' for n, t in enumerate(tests))} FROM {scan}"
    )
    fits = iter(row.values())
    kinds_of = [[kind for kind in _WRITTEN if next(fits)] for _ in chosen]
    return tuple(
        (field, f"CAST({{}} AS {kinds[0]})" if kinds else None)
        for field, kinds in zip(chosen, kinds_of, strict=True)
    )


def record_type(
    session: Session, source: Files, fields: tuple[tuple[str, str | None], ...]
) -> pa.Schema:
    """The types of the fields of a record, as a schema; fields: from field_types."""
    scan = _objects(source) if source.form == "ndjson" else _scan(source)
    names = _names_of(source, fields)
    typed = ", ".join(f"{_field(*field)} AS {_name(names[field[0]])}" for field in fields)
    schema = session.stream(f"SELECT {typed} FROM {scan} LIMIT 0").schema
    if source.form == "ndjson":
        return pa.schema([pa.field(field.name, _as_in_json(field.type)) for field in schema])
    return schema


def _names_of(source: Files, fields: tuple[tuple[str, str | None], ...]) -> dict[str, str]:
    """The field of each column; lines of JSON stay as they are, and so do the names in them."""
    columns = [column for column, _ in fields]
    if source.form == "ndjson":
        return dict(zip(columns, columns, strict=True))
    return names_of_columns(columns)


def _field(name: str, how: str | None) -> str:
    return _name(name) if how is None else how.format(_name(name))


def _as_in_json(kind: pa.DataType) -> pa.DataType:
    """The type that JSON text has: DuckDB takes some texts for instants, which stay text here."""
    if pa.types.is_temporal(kind) or pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_decimal(kind):  # integers: the check refuses one that is not a long
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _as_in_json(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_as_in_json(kind.value_type))
    return kind


def as_message(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with the types of messages; instants are cut to milliseconds."""
    columns = [
        column
        if name == RECORD
        else column.cast(COLUMNS[name], safe=not pa.types.is_timestamp(column.type))
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def check_lines(session: Session, source: Files, user_source: Files) -> None:
    """Raises BadRecord when a line of an ndjson source is not a JSON object.

    user_source: the source with the names that its user gave
    """
    if source.form != "ndjson":
        return
    [row] = session.arrow(
        "SELECT count(*) AS n FROM"
        f" {_scan(source)} WHERE line IS NULL OR NOT ({_IS_JSON} AND {_IS_OBJECT})"
    ).to_pylist()
    if row["n"]:
        raise no_objects(user_source, row["n"])


def _local_instants(zone: str | None) -> Iterator[str]:
    """The macros behind local_instant(text, wall): the instant of a wall time in the local zone.

    The offsets of a day before and a day after are the two that a wall time can have. Where the
    clocks change, DuckDB alone picks one offset without an error.
    """
    if zone is None:
        yield f"CREATE OR REPLACE MACRO local_instant(text, wall) AS {_error(NO_NAME)}"
        return
    if zone.removeprefix("Etc/") == "UTC":
        yield ("CREATE OR REPLACE MACRO local_instant(text, wall) AS CAST(text AS TIMESTAMPTZ)")
        return
    yield (
        "CREATE OR REPLACE MACRO local_wall(utc) AS"
        f" timezone({_text(zone)}, utc AT TIME ZONE 'UTC')"
    )
    yield "CREATE OR REPLACE MACRO local_by(wall, near) AS wall - (local_wall(near) - near)"
    yield (
        "CREATE OR REPLACE MACRO local_choice(text, wall, a, b) AS CASE"
        " WHEN local_wall(a) = wall AND (a = b OR local_wall(b) <> wall) THEN a"
        " WHEN local_wall(a) <> wall AND local_wall(b) = wall THEN b"
        f" WHEN local_wall(a) = wall THEN {_error(SHOWN_TWICE)} ELSE {_error(SKIPPED)} END"
    )
    yield (
        "CREATE OR REPLACE MACRO local_instant(text, wall) AS local_choice(text, wall,"
        " local_by(wall, wall - INTERVAL 1 DAY), local_by(wall, wall + INTERVAL 1 DAY))"
        " AT TIME ZONE 'UTC'"
    )


def _error(reason: str) -> str:
    return f"error('not a time: \"' || text || '\": ' || {_text(reason)})"


def _selected(session: Session, source: Files) -> str:
    for macro in _local_instants(local_zone_name()):
        session.execute(macro)
    return f"SELECT {_columns(session, source)} FROM {_scan(source)}"


def _columns(session: Session, source: Files) -> str:
    """SQL that makes the columns of messages from the columns of a source."""
    chosen = source.columns
    if source.form == "ndjson":
        members = {"key": chosen.key, "event_time": chosen.event_time}
        out = [f"{_checked('encode(line)')} AS value"]
        for name, member in members.items():
            if member is not None:
                path = _text(f'$."{member}"')
                value = f"json_extract_string(line, {path})"
                out.append(f"{_shaped(name, value, pa.string())} AS {name}")
        return ", ".join(out)
    schema = session.stream(f"SELECT * FROM {_scan(source)} LIMIT 0").schema
    column_of = {"key": chosen.key, "value": chosen.value, "event_time": chosen.event_time}
    for column in (*column_of.values(), *chosen.values):
        if column is not None:
            _check_column(column, schema.names)
    if source.record:
        fields = _names_of(source, source.record)
        packed = ", ".join(
            f"{_name(fields[column])} := {_field(column, how)}" for column, how in source.record
        )
        out = [f"struct_pack({packed}) AS {RECORD}"]
        return ", ".join(out + _places(source, schema, ("key", "event_time")))
    whole = not chosen.values and chosen.value is None and "value" not in schema.names
    others = () if whole else ("properties", "deliver_at", "sequence_id")
    out = ["encode(CAST(to_json(source) AS VARCHAR)) AS value"] if whole else []
    if chosen.values:
        object_of = ", ".join(f"{_text(field)}, {_name(field)}" for field in chosen.values)
        out.append(f"encode(CAST(json_object({object_of}) AS VARCHAR)) AS value")
    return ", ".join(out + _places(source, schema, ("value", "key", "event_time", *others)))


def _places(source: Files, schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """SQL for each named column of a message that comes from one column of the source."""
    chosen = source.columns
    column_of = {"key": chosen.key, "value": chosen.value, "event_time": chosen.event_time}
    encodings = {name: encoding for name, _, encoding in encoded(source, schema.names)}
    out = []
    for name in names:
        column = column_of.get(name) or (name if name in schema.names else None)
        if column is not None and not (name == "value" and chosen.values):
            kind = schema.field(column).type
            shaped = _shaped(name, _name(column), kind)
            if name in encodings and pa.types.is_string(kind):
                shaped = _decoded(name, _name(column), _name(encodings[name]))
            out.append(f"{shaped} AS {name}")
    return out


def _check_column(name: str, names: Sequence[str]) -> None:
    if name not in names:
        hint = f"it has {', '.join(names)[:200]}"
        raise InvalidArgument(f"the source has no column {name}", hint=hint)


def _shaped(name: str, column: str, kind: pa.DataType) -> str:
    """SQL for a source's column, converted to the type that it has in a message."""
    if name in ("event_time", "deliver_at"):
        if pa.types.is_integer(kind):
            return _instant(column)
        if pa.types.is_string(kind):
            seconds = f"CAST({column} AS BIGINT) * 1000"
            return (
                f"CASE WHEN regexp_full_match({column}, '{SECONDS}') THEN {_instant(seconds)}"
                f" WHEN regexp_full_match({column}, '{MILLISECONDS}') THEN {_instant(column)}"
                f" WHEN regexp_full_match({column}, '{LOCAL}')"
                f" THEN local_instant({column}, CAST({column} AS TIMESTAMP))"
                f" ELSE CAST({column} AS TIMESTAMPTZ) END"
            )
        return f"CAST({column} AS TIMESTAMPTZ)"
    if name in ("key", "value"):
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return column
        return f"encode(CAST({column} AS VARCHAR))"
    if name == "properties" and pa.types.is_string(kind):
        column = f"CAST({column} AS JSON)"
    return str(_OTHERS[name]).format(column)


def _scan(source: Files) -> str:
    if source.form == "arrow":
        return f"{ARROW} AS source"
    paths = ", ".join(_text(_unglobbed(path)) for path in source.paths)
    if source.form == "parquet":
        return f"read_parquet([{paths}], union_by_name = true) AS source"
    if source.form in ("csv", "tsv"):
        # Nothing is guessed: a row of another length or an open quote is an error, not other rows.
        quote, delimiter = ('"', ",") if source.form == "csv" else ("", "\t")
        scan = (
            f"read_csv([{paths}], header = true, all_varchar = true, delim = '{delimiter}',"
            f" quote = '{quote}', escape = '{quote}', comment = '', skip = 0, strict_mode = true,"
            f" {_pieces(source)}{', allow_quoted_nulls = false' if quote else ''})"
        )
        return f"{scan} AS source" if quote else f"(SELECT {_UNESCAPED} FROM {scan}) AS source"
    return (
        f"read_csv([{paths}], columns = {{'line': 'VARCHAR'}}, header = false, delim = '\\x01',"
        f" quote = '', escape = '', auto_detect = false, {_pieces(source)}) AS source"
    )


def _pieces(source: Files) -> str:
    """Options that bound the length of a line; DuckDB reads pieces of twice that length."""
    most = 2 * BLOCK_BYTES if source.has_short_lines() else _LINE_BYTES_MAX
    return f"max_line_size = {most}, buffer_size = {2 * most}"


def _objects(source: Files) -> str:
    """The lines of ndjson as rows, with a type for each member of any line."""
    paths = ", ".join(_text(_unglobbed(path)) for path in source.paths)
    return (
        f"read_json([{paths}], format = 'newline_delimited', sample_size = -1, maximum_depth = -1,"
        " map_inference_threshold = -1, union_by_name = true, maximum_object_size = 16777216)"
    )
