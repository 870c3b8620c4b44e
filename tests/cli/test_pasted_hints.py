"""A hint about SQL is a line: pasted back into the command it works, or leads to the next one."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

import txlog
from tests.cli.test_store import Tool, tool

_ = tool
LINE = re.compile(r"(?:write|in single quotes): (.+)")
MEANT = re.compile(r"did you mean (\S+)\?")
HINTS_MAX = 3  # a column that is a member, which is a number, of a value that is no JSON


@pytest.fixture
def store(tool: Tool) -> Tool:
    """Topics with JSON (one value of `rough` is no JSON) and a typed one."""
    kind = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
    with txlog.open(str(tool.path)) as client:
        client.create_topic("rough")
        client.create_topic("typed", schema=kind)
        client.producer("typed").send({"id": 5, "amount": 4.5})
        for topic, values in (("orders", (b'{"n":1}', b'{"n":5}')), ("rough", (b'{"n":1}', b"no"))):
            for value in values:
                client.producer(topic).send(value)
    return tool


@pytest.mark.parametrize(
    ("words", "sql"),
    [
        (words, sql)
        for words in (("consume", "orders", "--where"), ("peek", "rough", "--where"))
        for sql in (
            "n > 3", "value.n > 3", "value->>'n' > 3", "value->>'n' > 3.5", "n = 5 and key = ana",
            "json(value).n > 3", "(value->>'n') > 3", "value.n = 'no n in it'", "n = n",
        )
    ]
    + [(("peek", "typed", "--where"), "key = ana")]
    + [
        (("query",), sql)
        for sql in (
            "SELECT n FROM orders", "SELECT * FROM orders WHERE n > 3", "SELECT sum(n) FROM rough",
            "SELECT value.n FROM orders", "SELECT o.value.n FROM orders o",
            "SELECT * FROM orders\nWHERE value->>'n' > 3", "SELECT json(value)->>'n' FROM rough",
            "SELECT o.n, t.id FROM orders o JOIN typed t ON o.n = t.id",
            "SELECT t.amount FROM typed t JOIN orders o ON t.id = o.n",
            "SELECT amount FROM typed", "SELECT typed.amount FROM typed", "SELECT vlue FROM orders",
            "SELECT r.key FROM rough r JOIN orders o ON json(r.value)->>'n' = json(o.value)->>'n'",
            "SELECT rough.key FROM rough JOIN orders ON rough.value->>'n' = orders.value->>'n'",
            "SELECT n FROM typed t JOIN orders AS o ON true", "SELECT 'n', n AS m FROM orders",
            'SELECT "Unit Price" FROM orders', "SELECT n FROM messages", "FROM ordrs",
        )
    ],
)  # fmt: skip
def test_a_hint_about_sql_works_when_it_is_pasted(
    store: Tool, words: tuple[str, ...], sql: str
) -> None:
    for _ in range(HINTS_MAX + 1):
        code, _, text = store(*words, sql)
        if code == 0:
            return
        hint = text.partition("hint")[2]
        print(sql, text, sep="\n")
        if line := LINE.search(hint):
            assert line[1].strip() != sql
            sql = line[1].strip()
        else:
            meant = MEANT.search(hint)
            assert meant is not None, text
            wrong = re.search(r'"(\w+)"', text)
            assert wrong is not None
            name = re.compile(rf"(?:\b[a-z]+\.)?(?<!record\.)\b{wrong[1]}\b")
            sql = name.sub(meant[1], sql)
    pytest.fail(f"still a hint after {HINTS_MAX}: {sql}")
