"""Owns how SQL decodes bytes: the macros, `->>` on a column of bytes, and bytes that are not JSON.

DuckDB casts a BLOB to text with escapes, so `value->>'id'` on the bytes of a message would be NULL
without an error. A statement that does this is rewritten: the column goes through a macro first.
If a value is not JSON, the statement fails, and the error names the message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from txlog.errors import SqlError, TxlogError

MACROS: Final = (
    "CREATE TEMP MACRO text(b) AS decode(b)",
    "CREATE TEMP MACRO json(b) AS CAST(decode(b) AS JSON)",
    "CREATE TEMP MACRO try_json(b) AS TRY(CAST(decode(b) AS JSON))",
    # a column of that name may come from a subquery, and be text or JSON already
    "CREATE TEMP MACRO txlog_json(b) AS CAST(CASE WHEN typeof(b) = 'BLOB' THEN"
    " decode(CAST(b AS BLOB)) ELSE CAST(b AS VARCHAR) END AS JSON)",
)
_TEXT: Final = "TRY(decode(CAST(b AS BLOB)))"
# Bytes that do not begin like JSON are not decoded: a failure of decode costs 0.1 ms.
_IS_JSON: Final = (
    f"regexp_matches(CAST(b AS VARCHAR), '^(\\\\x0[9AD]| )*[[{{\"0-9tfn-]') AND json_valid({_TEXT})"
)
_JSON_OR_NULL: Final = f"CASE WHEN {_IS_JSON} THEN CAST({_TEXT} AS JSON) END"
# The same for conditions that leave out a message that they cannot read.
TOLERANT: Final = (
    MACROS[0],
    f"CREATE TEMP MACRO json(b) AS {_JSON_OR_NULL}",
    f"CREATE TEMP MACRO try_json(b) AS {_JSON_OR_NULL}",
    f"CREATE TEMP MACRO txlog_json(b) AS CASE WHEN typeof(b) = 'BLOB' THEN {_JSON_OR_NULL}"
    " ELSE TRY(CAST(CAST(b AS VARCHAR) AS JSON)) END",
)
_BYTES: Final = frozenset(["key", "value"])
_ARROWS: Final = frozenset(["->", "->>"])
_FUNCTIONS: Final = frozenset(
    "json_extract json_extract_string json_extract_path json_extract_path_text json_value"
    " json_exists json_keys json_array_length json_type json_valid json_contains".split()
)
_OURS: Final = re.compile(r'txlog_json\(((?:"[^"]*"|[\w.])+)\)')
_CAUSES: Final = ("Malformed JSON", "Failure in decode")
_PARSED: Final = r'(?<!\w)json\(\s*((?:\w+\.|"[^"]*"\.)?{column})\s*\)'
_READ: Final = r'(?<!try_json\()((?:\b\w+\.|"[^"]*"\.)?\b{column}\b)(?=\s*(?:->|,\s*\'))'


def as_json(tree: dict[str, Any]) -> bool:
    """Let the columns of bytes in a parsed statement be read as JSON; whether there was any."""
    is_changed, waiting = False, [tree]
    while waiting:
        node: Any = waiting.pop()
        if isinstance(node, list):
            waiting += node
            continue
        if not isinstance(node, dict):
            continue
        if node.get("class") == "FUNCTION" and node["function_name"] in _ARROWS | _FUNCTIONS:
            argument = node["arguments"][0] if node["arguments"] else {}
            is_changed |= _wrapped(argument, "expression")
        elif node.get("class") == "LAMBDA" and node["expr"].get("class") == "CONSTANT":
            is_changed |= _wrapped(node, "lhs")  # DuckDB parses `value->'id'` as a lambda
        waiting += node.values()
    return is_changed


def _wrapped(holder: dict[str, Any], name: str) -> bool:
    """Wrap the column that `holder` has under a name, if it is one of bytes."""
    column = holder.get(name) or {}
    if column.get("class") != "COLUMN_REF" or column["column_names"][-1].casefold() not in _BYTES:
        return False
    holder[name] = {
        "class": "FUNCTION",
        "type": "FUNCTION",
        "alias": "",
        "function_name": "txlog_json",
        "schema": "",
        "catalog": "",
        "arguments": [{"name": "", "expression": column}],
        "filter": None,
        "order_bys": {"type": "ORDER_MODIFIER", "orders": []},
        "distinct": False,
        "is_operator": False,
        "export_state": False,
        "qualified_name": {"path": ["txlog_json"]},
    }
    return True


def _instead(statement: str, column: str) -> str:
    """What to write so that a message that is not JSON gives NULL, in the words of a statement."""
    line = statement
    for pattern in (_PARSED, _READ):
        read = re.compile(pattern.format(column=column), re.IGNORECASE)
        line = read.sub(lambda match: f"try_json({match[1]})", line)
    line = " ".join(line.split("\n"))
    if line == statement:
        return f"try_json({column}) is NULL for such a message"
    return f"for such a message NULL, write: {line.strip()}"


def heading(name: str) -> str:
    """The name of a column of a result, without the function that `as_json` wrote into the query.

    >>> heading('(txlog_json("value") ->> 1)')
    'value ->> 1'
    """
    text = _OURS.sub(lambda match: match[1].replace('"', ""), name)
    if text != name and text.startswith("(") and text.endswith(")") and text.count("(") == 1:
        return text[1:-1]
    return text


def no_json(
    error: Exception, ask: Callable[[str], pa.Table], messages: str, statement: str
) -> TxlogError | None:
    """The error that names the first message that is not JSON; None: that is not the cause.

    ask:       runs a SELECT
    messages:  the relation with topic, partition, message_id, key and value
    statement: what failed; the hint shows which of its words to write differently
    """
    cause = next((cause for cause in _CAUSES if cause in str(error)), None)
    if cause is None:
        return None
    for column in ("value", "key"):
        try:
            rows = ask(
                f"SELECT topic, partition, message_id FROM {messages} WHERE {column} IS NOT NULL"  # noqa: S608
                f" AND NOT coalesce(json_valid(TRY(decode({column}))), false) LIMIT 1"
            ).to_pylist()
        except TxlogError:
            return None
        for row in rows:
            where = f"{row['topic']}/{row['partition']}"
            message_id = row["message_id"] or "of an open transaction"
            why = "not JSON" if cause.startswith("Malformed") else "not UTF-8, so not JSON"
            return SqlError(
                f"{where}: the {column} of message {message_id} is {why}",
                hint=_instead(statement, column),
                topic=row["topic"],
                message_id=row["message_id"],
            )
    return None
