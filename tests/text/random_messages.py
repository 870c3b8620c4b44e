"""Owns tables of messages that are hard to write as text, made from a seed."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from txlog.engine.plan.reading.dispatch import RECEIVED

TEXTS = (
    "", " ", "a", "-", "0", "null", "true", "a,b", 'say "hi"', "tab\there", "line\nbreak",
    "cr\rhere", "back\\slash", "\\n", "\\", '"', "\x00", "\x01\x02", "\x1b[2J", "\x1f\x7f",
    "\x08\x0c", "é", "日本語", "😀", "\u2028\u2029", "\ufeffbom", "�", "/", "</script>", "key",
    "x" * 200, "{", "[1", "%v",
)  # fmt: skip
BYTES = (
    b"\xff", b"\x80abc", b"a\xc3", b"\xa9b", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf4\x90\x80\x80",
    b"\xc0\x80", b"\x00\xff\x00", bytes(range(256)), b"\xff\n", b"{\xff}",
)  # fmt: skip
JSON = (
    b"{}", b"[]", b'{"id":1}', b"[1,\n2]", b' \t\r\n{"a": [1, 2.50, 1e3]}\r\n',
    b'{"a":"\\ud83d\\ude00"}', b'{"a":"\\ud800"}', b'{"n":123456789012345678901234567890}',
    b'{"a":NaN}', b'{"a":1,}', b'{"a":1', b'"b":2}', b"[[1]", b"]", b'{"a":1}{"b":2}',
    b'{"a":1},{"b":2}', b'{"a":"\xff"}', b"[1]x", b"\x0b{}", b'{"\xc3\xa9":"\xe2\x80\xa8"}',
    b"[" * 40 + b"]" * 40, b"\xef\xbb\xbf{}", b'{"tab":"\t"}', b"123", b'"s"',
)  # fmt: skip
_INSTANTS = (
    0, -1, 1, 999, -999, 1_795_165_924_117, 253_402_300_799_999, 253_402_300_800_000,
    -62_135_596_800_000, -62_135_596_800_001, (1 << 63) - 1, -(1 << 63), 951_782_400_000,
)  # fmt: skip


def _some(rng: random.Random, *kinds: tuple[Any, ...], null: float = 0.2) -> Any:
    return None if rng.random() < null else rng.choice(rng.choice(kinds))


def random_table(rng: random.Random, rows: int) -> pa.Table:
    """Rows of RECEIVED, now and then a column of one value, one without nulls, several chunks."""
    texts = tuple(text.encode() for text in TEXTS)
    plain = tuple(b"%d" % number for number in range(30))
    bodies = rng.choice([(texts, BYTES, JSON), (plain,), (texts,), (JSON,), (texts, JSON)])
    keys = rng.choice([(texts, BYTES), (plain,), (texts,), ((b"k",),)])
    null = rng.choice([0, 0, 0.3, 1])
    instants = rng.choice([_INSTANTS, (_INSTANTS[5],), tuple(range(5)), _INSTANTS[:7]])
    names = rng.choice([("a", "b"), TEXTS])
    several = rng.random() < 0.5
    few = [[], None, [("a", rng.choice(TEXTS))], [("a", "1"), ('say "hi"', "x,y"), ("b", "")]]
    recurs = rng.random() < 0.3

    def pairs() -> Any:
        if recurs:
            return rng.choice(few)
        count = rng.choice([0, 1, 2, 5])
        properties = [(rng.choice(names), rng.choice(TEXTS)) for _ in range(count)]
        return None if rng.random() < 0.3 else properties

    def row(at: int) -> dict[str, Any]:
        in_txn = rng.random() < 0.5 if several else null == 0
        has_id = rng.random() < 0.9 or not several
        return {
            "topic": rng.choice(["orders", "public/x/é"]) if several else "orders",
            "partition": rng.randrange(3) if several else 0,
            "ledger": rng.randrange(1 << 40) if has_id and several else 17 if has_id else None,
            "entry": at if has_id else None,
            "index": rng.choice([0, 1, 77]) if in_txn else None,
            "key": _some(rng, *keys, null=null),
            "value": _some(rng, *bodies, null=null / 2),
            "properties": pairs(),
            "publish_time": rng.choice(instants),
            "event_time": _some(rng, instants, null=null),
            "deliver_at": _some(rng, instants, null=0.9),
            "visible_time": _some(rng, instants, null=null),
            "producer": _some(rng, ("p", 'q"', "é\t"), null=null),
            "sequence_id": _some(rng, ((1 << 63) - 1, 0, 5), null=null),
            "txn_most": rng.choice([3 << 48, (1 << 48) + 1])
            if in_txn and several
            else 0
            if in_txn
            else None,
            "txn_least": rng.choice([18, (1 << 63) - 1]) if in_txn else None,
            "txn_state": rng.choice(["committed", "open"]) if in_txn else None,
            "redelivery_count": _some(rng, (0, 3), null=null),
        }

    table = pa.Table.from_pylist([row(at) for at in range(rows)], schema=RECEIVED)
    if rng.random() < 0.5:
        late = pa.array([rng.choice([True, False, None]) for _ in range(rows)], pa.bool_())
        table = table.append_column("is_late", late)
    if rng.random() < 0.5:  # a slice that does not begin at 0, of several chunks
        table = pa.concat_tables([table.slice(rows // 3), table.slice(0, rows // 3)])
        table = table.slice(rng.randrange(3), rows)
    return table
