"""Tests of relation.build and sql.client_query: SQL equals a reader, row for row."""

from __future__ import annotations

import os
import pickle
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.engine_kit import relation_of
from tests.tiers import graded
from txlog import Client, MessageId, Schema, TxnId
from txlog.base.ranges import END, Bound
from txlog.engine.relation.relation import Relation, RelationContent
from txlog.engine.session.transactions.transaction import Transaction
from txlog.engine.store.store import Store
from txlog.engine.view import View
from txlog.errors import Corruption, MissingFile, PartitionUnavailable, SqlError
from txlog.lake.sql.client_query import Query
from txlog.lake.sql.lists import listed
from txlog.lake.sql.messages import Messages, path_below
from txlog.lake.sql.query import LISTS

pytestmark = pytest.mark.usefixtures("quick_disk")
FIRST = random.randrange(10**9) if os.environ.get("HYPOTHESIS_SEED_FREE") == "1" else 0
STEPS = 60
LARGE_BYTES = 200
SAME = (
    "topic", "partition", "ledger", "entry", "key", "value", "properties", "publish_time",
    "event_time", "deliver_at", "visible_time", "producer", "sequence_id",
)  # fmt: skip
WEIGHTS = {
    "send": 8, "begin": 4, "send_in_txn": 12, "send_large": 2, "assert_time": 2, "commit": 5,
    "abort": 3, "checkpoint": 3, "roll": 3, "compact": 2, "trim": 1, "grow": 1, "reopen": 1,
}  # fmt: skip


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """Return a client of a store with a topic `orders` of two partitions."""
    txlog.init(str(tmp_path / "store"))
    with txlog.open(str(tmp_path / "store")) as opened:
        opened.create_topic("orders", partitions=2)
        yield opened


def asked(
    client: Client, sql: str, isolation: str = "committed", **parameters: str
) -> list[dict[str, Any]]:
    """Return the rows of a query."""
    with Query(client, sql, parameters, isolation) as query:
        rows: list[dict[str, Any]] = query.rows().read_all().to_pylist()
        return rows


class History:
    """A store in which random things happen; `seen` counts where rows lay.

    schema: the topic is typed; some values are records with `cups`, others have `note`, too
    """

    def __init__(self, folder: Path, seed: str, schema: Schema | None = None) -> None:
        rng = random.Random(f"{seed}:start")
        self.path = str(folder / f"store-{seed}")
        txlog.init(
            self.path,
            durability="os",
            free_bytes_min=0,
            reader_grace_ms=0,
            max_message_bytes=LARGE_BYTES,
            txn_timeout_default_ms=86_400_000,  # a history with Spark takes minutes
            ledger_entries_max=rng.choice((3, 7, 20, 1000)),
        )
        self.client = self._open()
        self.is_typed = schema is not None
        self.client.create_topic("t", rng.choice((1, 2)), schema=schema)
        if schema is not None:
            self.client.admin.set_schema_policies(
                "t", compatibility="backward", validation="record"
            )
        self.client.create_topic("another/one/t")
        self.txns: list[Transaction] = []
        self.trace: list[str] = []
        self.seen: Counter[str] = Counter()
        self.sent = 0

    def _open(self) -> Client:
        client = txlog.open(self.path)
        client.checkpoint_automatically = False
        return client

    @property
    def partitions(self) -> int:
        return int(self.client.describe_topic("t")["partitions"])

    def rows(self, rng: random.Random, txn: Transaction | None = None) -> None:
        """A few messages with random optional fields."""
        producer = self.client.producer("t", name=rng.choice((None, None, f"p{self.sent}")))
        for _ in range(rng.choice((1, 1, 2, 5))):
            self.sent += 1
            at = 1_700_000_000_000 + self.sent
            values: tuple[bytes | None, ...] = (b"%d" % self.sent, b"", b"\xff\x00", None)
            if self.is_typed and self.sent % 4:
                note = b', "note": "n%d"' % self.sent
                values = (b'{"cups": %d%b}' % (self.sent, note if self.sent % 3 else b""),) * 4
            producer.send(
                rng.choice(values),
                key=rng.choice((None, b"a", b"\xfe")),
                properties=rng.choice((None, {"a": "b", "c": ""})),
                event_time=rng.choice((None, at)),
                deliver_at=rng.choice((None, None, 32_503_680_000_000 + self.sent)),
                partition=rng.randrange(self.partitions),
                txn=txn,
            )
        producer.close()

    def send(self, rng: random.Random) -> None:
        self.rows(rng)

    def load(self, rng: random.Random) -> None:
        """A batch of files, as a job writes them."""
        self.sent += 1
        bulk = self.client.bulk("t", key="job", batch=self.sent)
        at = pa.array([None, 32_503_680_000_000], pa.timestamp("ms", "UTC"))
        staged = [
            file
            for task in range(rng.choice((1, 2)))
            for file in bulk.stage(
                [
                    pa.table(
                        {
                            "value": [b"%d" % self.sent, rng.choice((b"", None))],
                            "key": pa.array([rng.choice((None, b"a")), None], pa.binary()),
                            "deliver_at": at,
                            "partition": [rng.randrange(self.partitions), 0],
                            "properties": pa.array(
                                [[("a", "b")], None], pa.map_(pa.string(), pa.string())
                            ),
                        }
                    )
                ],
                task,
            )
        ]
        bulk.commit(staged)
        self.trace.append("load")

    def begin(self, rng: random.Random) -> None:
        if len(self.txns) < 4:
            self.txns.append(self.client.transaction(write_through=True))

    def send_in_txn(self, rng: random.Random) -> None:
        if not self.txns:
            self.begin(rng)
        self.rows(rng, rng.choice(self.txns))

    def send_large(self, rng: random.Random) -> None:
        self.sent += 1
        self.client.producer("t", chunking=True).send(
            (b"\x00\xff%d" % self.sent) * LARGE_BYTES,
            key=b"large",
            properties={"l": "1"},
            partition=rng.randrange(self.partitions),
            txn=rng.choice([None, *self.txns]),
        )

    def assert_time(self, rng: random.Random) -> None:
        txn = rng.choice([None, *self.txns])
        self.client.topic("t").watermarks.set(1_700_000_000_000 + self.sent, "w", txn=txn)

    def commit(self, rng: random.Random) -> None:
        if self.txns:
            self.txns.pop(rng.randrange(len(self.txns))).commit()

    def abort(self, rng: random.Random) -> None:
        if self.txns:
            self.txns.pop(rng.randrange(len(self.txns))).abort()

    def checkpoint(self, rng: random.Random) -> None:
        self.client.checkpoint()

    def roll(self, rng: random.Random) -> None:
        self.client.checkpoint(roll_all=True)

    def compact(self, rng: random.Random) -> None:
        self.client.admin.compact("t")

    def trim(self, rng: random.Random) -> None:
        self.client.admin.trim("t", Bound("last", rng.choice((3, 8))), force_unacked=True)

    def grow(self, rng: random.Random) -> None:
        if self.partitions < 4:
            self.client.admin.update_topic("t", partitions=self.partitions + 1)

    def reopen(self, rng: random.Random) -> None:
        self.client.close()
        self.txns = []
        self.client = self._open()

    def step(self, rng: random.Random) -> None:
        [name] = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        self.trace.append(name)
        getattr(self, name)(rng)

    def compare(self) -> None:
        """SQL gives what a reader gives: the same rows in the same order."""
        tables = list(self.client.read("t"))
        table = pa.concat_tables(tables) if tables else None
        expected = [] if table is None else table.to_pylist()
        expected.sort(key=lambda row: (row["partition"], row["ledger"], row["entry"], row["index"]))
        actual = asked(self.client, "FROM t ORDER BY partition, ledger, entry, txn_index")
        assert [{name: row[name] for name in SAME} for row in actual] == [
            {name: row[name] for name in SAME} for row in expected
        ]
        assert [(row["txn_index"], row["message_id"], row["size_bytes"]) for row in actual] == [
            (
                row["index"],
                str(MessageId(row["ledger"], row["entry"], row["index"] or 0)),
                len(row["value"] or b""),
            )
            for row in expected
        ]
        [all_of_them] = asked(self.client, "SELECT count(*) AS n, count(lsn) AS l FROM messages")
        assert all_of_them == {"n": len(expected), "l": len(expected)}
        self.compare_uncommitted()
        relation = relation_of(self.client, "t")
        for name in ("direct", "unclean", "open", "large_files"):
            self.seen[name] += len(getattr(relation, name))
        self.seen["tail"] += relation.tail.num_rows
        self.seen["markers"] += relation.markers.num_rows

    def compare_uncommitted(self) -> None:
        """The same with open and aborted messages, as sets, because these have no ids."""
        names = ("ledger", "entry", "value", "key", "partition", "visible_time", "txn_state")
        read = list(self.client.read("t", isolation="uncommitted"))
        rows = [row for table in read for row in table.to_pylist()]
        expected = Counter(tuple(row[name] for name in names) for row in rows)
        actual = asked(self.client, "FROM t", "uncommitted")
        assert Counter(tuple(row[name] for name in names) for row in actual) == expected
        self.seen.update(f"state {row['txn_state']}" for row in actual)
        everything = asked(self.client, "FROM messages_all")
        assert (
            Counter(
                tuple(row[name] for name in names) for row in everything if row["kind"] == "message"
            )
            == expected
        )
        places = Counter((row["stored_ledger"], row["stored_entry"]) for row in everything)
        assert set(places.values()) <= {1}, "a row twice, or two at one place"
        of_messages = {row["message_id"]: row["txn"] for row in everything if row["message_id"]}
        for table in read:
            for row in table.to_pylist():
                if row["ledger"] is not None:
                    at = str(MessageId(row["ledger"], row["entry"], row["index"] or 0))
                    assert of_messages[at] == _txn(row)
        self.seen.update(f"kind {row['kind']} {row['txn_state']}" for row in everything)


def _txn(row: dict[str, Any]) -> str | None:
    """The transaction of a row as text."""
    if row["txn_most"] is None:
        return None
    return str(TxnId.from_halves(row["txn_most"], row["txn_least"]))


def run(folder: Path, seed: str, *, loads: bool = False) -> History:
    """Run one history, comparing after every few steps."""
    history = History(folder, seed)
    try:
        for number in range(STEPS):
            history.step(random.Random(f"{seed}:{number}"))
            if loads and number % 5 == 4:
                history.load(random.Random(f"{seed}:{number} load"))
            if number % 10 == 9:
                history.compare()
    except Exception:
        print(f"seed {seed!r}: {' '.join(history.trace)}")
        raise
    finally:
        history.client.close()
        shutil.rmtree(history.path)
    return history


@pytest.mark.deep
def test_sql_reads_the_messages_of_a_reader(tmp_path: Path) -> None:
    """API = DuckDB, after any history, with rows in files of any kind."""
    seen: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + 6):
        seen += run(tmp_path, str(seed)).seen
    assert set(seen) >= {
        "direct",
        "unclean",
        "open",
        "large_files",
        "tail",
        "markers",
        "state None",
        "state committed",
        "state aborted",
        "state open",
        "kind message None",
        "kind txn_commit committed",
        "kind txn_abort aborted",
        "kind w_set None",
        "kind w_set open",
        "kind w_set committed",
        "kind w_set aborted",
        "kind w_snapshot None",
    }


@pytest.mark.parametrize("seed", graded(range(FIRST, FIRST + 3), 0))
def test_sql_sees_files_that_were_adopted(tmp_path: Path, seed: int) -> None:
    """The same with batches that were written as files between the steps."""
    run(tmp_path, f"load {seed}", loads=True)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(6))
def test_sql_reads_the_messages_of_a_reader_in_many_histories(tmp_path: Path, block: int) -> None:
    """The same, 60 more."""
    for seed in range(FIRST + 1000 + 10 * block, FIRST + 1010 + 10 * block):
        run(tmp_path, str(seed))


def test_lsn_of_a_message_does_not_depend_on_where_it_lies(client: Client) -> None:
    """Kills: the LSN of the row for one that a commit made visible; `lsn <= x` is a version."""
    with client.transaction() as txn:
        client.producer("orders").send(b"in", txn=txn, partition=0)
    client.producer("orders").send(b"plain", partition=0)
    sql = "SELECT text(value) AS v, lsn FROM orders ORDER BY lsn"
    first = asked(client, sql)
    assert [row["v"] for row in first] == ["in", "plain"]
    client.checkpoint()
    assert asked(client, sql) == first
    client.checkpoint(roll_all=True)
    assert asked(client, sql) == first


def test_clean_files_hide_rows_of_trimmed_markers(tmp_path: Path) -> None:
    """Kills: a clean file that is read whole although markers of some rows were trimmed."""
    path = str(tmp_path / "store")
    txlog.init(path, ledger_entries_max=4, free_bytes_min=0)
    with txlog.open(path) as client:
        client.create_topic("t")
        first, second = (
            client.transaction(write_through=True),
            client.transaction(write_through=True),
        )
        for txn, value in ((first, b"first"), (second, b"second")):
            client.producer("t").send(value, txn=txn)
        first.commit()
        for _ in range(4):
            client.producer("t").send(b"plain")
        second.commit()
        client.checkpoint(roll_all=True)
        [clean] = [source for source in relation_of(client, "t").direct if source.role == "s"]
        assert clean.ref.rows == 2
        client.admin.trim("t", Bound("last", 1), force_unacked=True)
        assert asked(client, "SELECT text(value) AS v FROM t WHERE txn_index IS NOT NULL") == [
            {"v": "second"}
        ]
        assert [source.ref.path for source in relation_of(client, "t").unclean] == [clean.ref.path]


def test_files_that_go_meanwhile_are_looked_up_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R21: a checkpoint removes a file of the snapshot; kills: an error, and an endless loop."""
    client.producer("orders").send(b"x", partition=0)
    client.checkpoint(roll_all=True)
    [source] = relation_of(client, "orders").direct
    file = Path(client.path, source.ref.path)
    moment, tries = Client.moment, 0

    def overtaken(
        self: Client, words: list[str], isolation: str, **how: Any
    ) -> tuple[list[RelationContent], dict[str, pa.Table]]:
        nonlocal tries
        contents = moment(self, words, isolation, **how)
        tries += 1
        if tries == 1:  # the file disappears between the plan and the read
            file.rename(file.with_suffix(".away"))
            client.producer("orders").send(b"y", partition=0)
        elif tries == 2:
            file.with_suffix(".away").rename(file)
        return contents

    monkeypatch.setattr(Client, "moment", overtaken)
    assert asked(client, "SELECT count(*) AS n FROM orders") == [{"n": 2}]
    file.unlink()
    tries = 3
    with pytest.raises(MissingFile):
        asked(client, "SELECT count(*) AS n FROM orders")
    assert tries == 5


def test_a_relation_travels(client: Client) -> None:
    """Guards Spark's tasks: a relation is a plain value."""
    client.producer("orders").send(b"x")
    client.checkpoint(roll_all=True)
    client.producer("orders").send(b"y")
    relation = relation_of(client, "orders")
    back: Relation = pickle.loads(pickle.dumps(relation))
    assert (back.direct, back.tail, back.lsn) == (relation.direct, relation.tail, relation.lsn)


@pytest.mark.parametrize(
    "sql",
    [
        "COPY orders TO '{file}' (FORMAT parquet, USE_TMP_FILE false)",
        "WITH gone AS (DELETE FROM orders RETURNING 1) SELECT 1",
        "SELECT 1; SELECT 2",
        "SET threads = 1",
        "ATTACH '{file}'",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM '/etc/hostname'",
        "SELECT * FROM glob('/etc/*')",
        "",
        "SELEC 1",
        "SELECT nothing FROM orders",
        "SELECT * FROM nowhere",
    ],
)
def test_other_statements_than_selects_of_the_store_are_refused(client: Client, sql: str) -> None:
    """The gate: SQL can neither overwrite a ledger nor read other files."""
    client.producer("orders").send(b"x", partition=0)
    client.checkpoint(roll_all=True)
    [source] = relation_of(client, "orders").direct
    file = Path(client.path, source.ref.path)
    data_before = file.read_bytes()
    with pytest.raises(SqlError):
        asked(client, sql.format(file=file))
    assert file.read_bytes() == data_before


def test_a_flipped_bit_is_found_before_a_row_is_given(client: Client) -> None:
    """R5: DuckDB verifies no checksum of a page, so every file is checked before its view."""
    client.producer("orders").send(b"x" * 100, partition=0)
    client.checkpoint(roll_all=True)
    [source] = relation_of(client, "orders").direct
    file = Path(client.path, source.ref.path)
    data = bytearray(file.read_bytes())
    file.chmod(0o600)
    for at in random.Random(7).sample(range(len(data)), 20):
        data[at] ^= 4
        file.write_bytes(data)
        with pytest.raises(Corruption, match=source.ref.path):
            asked(client, "SELECT count(*) FROM orders")
        data[at] ^= 4
    assert asked(client, "SELECT 1 AS one") == [{"one": 1}]


def test_unavailable_partition_is_an_error_or_left_out(client: Client) -> None:
    """Kills: a count that is too small and says nothing."""
    for partition in range(2):
        client.producer("orders").send(b"x", partition=partition)
    client.admin.set_offline("orders", 1)
    with pytest.raises(PartitionUnavailable):
        asked(client, "FROM orders")
    relation = relation_of(client, "orders", skip_unavailable=True)
    assert (relation.unavailable, relation.tail.num_rows) == ([1], 1)
    assert relation_of(client, "orders/0").tail.num_rows == 1


def test_names_of_topics_and_files_are_no_sql(tmp_path: Path) -> None:
    """Kills: a name that ends a string, a path that is a pattern, a topic that hides `messages`."""
    bare = str(tmp_path / "bare")
    txlog.init(bare)
    with txlog.open(bare) as client:
        assert asked(client, "SELECT count(*) AS n FROM messages") == [{"n": 0}]
    path = str(tmp_path / "it's [a] *?" / "key=1")
    Path(path).parent.mkdir()
    txlog.init(path)
    with txlog.open(path) as client:
        for name in ("messages", "a.b/ns/Orders-1"):
            client.create_topic(name)
            client.producer(name).send(name.encode())
        client.checkpoint(roll_all=True)
        assert asked(client, 'SELECT topic FROM "A.B/ns/orders-1"') == [
            {"topic": "a.b/ns/Orders-1"}
        ]
        assert asked(client, "SELECT count(*) AS n FROM messages") == [{"n": 2}]
        assert asked(client, 'SELECT count(*) AS n FROM "public/default/messages"') == [{"n": 1}]
        assert asked(client, "SELECT text(key) AS k, partition FROM messages LIMIT 1") == [
            {"k": None, "partition": 0}
        ]


def test_parameters_are_values(client: Client) -> None:
    """Kills: a parameter that is pasted into the text."""
    client.producer("orders").send(b"x", key=b"k")
    sql = "SELECT count(*) AS n FROM messages WHERE text(key) = $key"
    assert asked(client, sql, key="k") == [{"n": 1}]
    assert asked(client, sql, key="' OR true OR '") == [{"n": 0}]


def test_lists_have_the_fields_of_their_answers(client: Client) -> None:
    """spec/cli 8.2: a relation has the fields of the matching list; kills one that is left out."""
    client.create_subscription("orders", "billing", type="shared")
    client.connect("daily")
    with client.transaction() as txn:
        client.producer("orders").send(b"x", txn=txn, partition=0)
    client.producer("orders").send(b"y", key=b"k", deliver_after=10**9, partition=1)
    client.checkpoint(roll_all=True)
    answers = {
        "topics": client.topics(),
        "subscriptions": client.subscriptions(),
        "transactions": client.transactions(all=True),
        "transaction_keys": client.admin.transaction_keys(deleted=True),
        "delayed_buckets": client.topic("orders").buckets(),
    }
    for name, rows in answers.items():
        assert isinstance(rows, list)
        rows_of_list = asked(client, f"FROM {name}")
        assert len(rows_of_list) == len(rows) > 0
        assert list(rows_of_list[0]) == sorted(rows[0], key=list(rows_of_list[0]).index), name
    assert asked(client, "SELECT txn, state, topic_list FROM transactions") == [
        {"txn": str(txn.id), "state": "committed", "topic_list": ["orders"]}
    ]
    assert asked(client, "SELECT topic, message_id, key, size_bytes FROM delayed") == [
        {"topic": "orders", "message_id": "2:0", "key": b"k", "size_bytes": 1}
    ]
    assert asked(client, "SELECT count(*) AS n FROM delayed WHERE deliver_at > now()") == [{"n": 1}]
    client.producer("orders").send(b"in frames", partition=1)
    sql = "SELECT role, state, sum(rows)::INT AS rows, count(file) AS files FROM segments WHERE "
    sql += "rows > 0 GROUP BY ALL ORDER BY ALL"
    assert asked(client, sql) == [
        {"role": "partition", "state": "open", "rows": 1, "files": 0},
        {"role": "partition", "state": "sealed", "rows": 2, "files": 2},
        {"role": "sidecar", "state": "sealed", "rows": 1, "files": 1},
    ]
    client.create_topic("topics")
    client.producer("topics").send(b"z")
    assert asked(client, "SELECT count(*) AS n FROM topics") == [{"n": 2}]
    assert asked(client, 'SELECT text(value) AS v FROM "public/default/topics"') == [{"v": "z"}]


def test_acknowledgements_are_rows(client: Client) -> None:
    """Kills: an entry that is left out, a pending one among the acknowledged, a lost index."""
    client.create_subscription("orders", "billing", type="shared")
    producer = client.producer("orders")
    for _ in range(4):
        producer.send(b"plain", partition=0)
    with client.transaction() as txn:
        for _ in range(3):
            producer.send(b"in", partition=0, txn=txn)
    ids = [f"1:{entry}" for entry in range(4)] + [f"1:4:{index}" for index in (1, 2, 3)]
    subscription = client.subscription("orders", "billing")
    subscription.acknowledge([MessageId.parse(ids[at]) for at in (0, 2, 5)])
    with client.transaction() as holder:
        subscription.acknowledge([MessageId.parse(ids[at]) for at in (3, 6)], txn=holder)
        names = "topic, subscription, partition, message_id, cumulative, txn_index"
        of = {"topic": "orders", "subscription": "billing", "partition": 0}
        assert asked(client, f"SELECT {names} FROM acks ORDER BY ledger, entry, txn_index") == [
            {**of, "message_id": "1:0", "cumulative": True, "txn_index": None},
            {**of, "message_id": "1:2", "cumulative": False, "txn_index": None},
            {**of, "message_id": "1:4:2", "cumulative": False, "txn_index": 2},
        ]
        pending_rows = asked(client, f"SELECT {names}, txn, since FROM pending_acks ORDER BY entry")
        assert [(row["message_id"], row["txn"]) for row in pending_rows] == [
            ("1:3", str(holder.id)),
            ("1:4:3", str(holder.id)),
        ]
        [begun] = asked(client, "SELECT begin_time FROM transactions WHERE state = 'open'")
        assert {row["since"] for row in pending_rows} == {begun["begin_time"]}
    unacked_sql = "SELECT message_id FROM orders ANTI JOIN acks USING (message_id)"
    assert asked(client, f"{unacked_sql} WHERE NOT (ledger, entry) <= (1, 0) ORDER BY 1") == [
        {"message_id": "1:1"},
        {"message_id": "1:4:1"},
    ]


def test_frames_list_those_in_the_journals(client: Client) -> None:
    """Kills: a frame that is left out or given twice, before and after checkpoints."""
    sql = "SELECT min(lsn) AS low, max(lsn) AS high, count(*) AS n, sum(rows)::INT AS rows FROM"
    client.producer("orders").send(b"x", partition=0)
    [first_counts] = asked(client, f"{sql} frames")
    assert (first_counts["low"], first_counts["n"], first_counts["rows"]) == (
        1,
        first_counts["high"],
        1,
    )
    [frame] = asked(client, "FROM frames ORDER BY lsn DESC LIMIT 1")
    assert frame["durable"] and "Appended" in frame["ops"]
    inspected = client.inspect(f"lsn:{frame['lsn']}")
    assert (inspected["size_bytes"], inspected["file"]) == (frame["bytes"], frame["journal"])
    for _ in range(3):
        client.checkpoint()
        client.producer("orders").send(b"x", partition=0)
        [counts] = asked(client, f"{sql} frames")
        assert counts["high"] == client.store.ask(lambda view: view.lsn)
        assert counts["n"] == counts["high"] - counts["low"] + 1 > 0


def test_watermarks_list_every_producer(client: Client) -> None:
    """Kills: a subscription, a partition or a producer that is left out."""
    client.create_subscription("orders", "billing")
    client.topic("orders").watermarks.set(1_700_000_000_000, "till")
    names = "subscription, partition, producer, holds, epoch_ms(watermark) AS w"
    rows = asked(client, f"SELECT {names} FROM watermarks ORDER BY ALL")
    till = {"producer": "till", "holds": True, "w": 1_700_000_000_000}
    assert rows == [
        {"subscription": subscription, "partition": partition, **till}
        for subscription in ("billing", None)
        for partition in (0, 1)
    ]


def test_left_out_partitions_are_named(client: Client) -> None:
    """Kills: a count that is too small and says nothing."""
    for partition in range(2):
        client.producer("orders").send(b"x", partition=partition)
    client.admin.set_offline("orders", 1)
    sql = "SELECT count(*) AS n FROM messages"
    with Query(client, sql, skip_unavailable=True) as query:
        assert query.left_out == ["orders/1"]
        assert query.rows().read_all().to_pylist() == [{"n": 1}]


def test_a_condition_on_topic_or_partition_leaves_files_out(client: Client) -> None:
    """spec/analytics 4: all topics are one scan, and names of files are looked at before files."""
    client.create_topic("a.b/ns/Ü_1")
    for topic, partition in (("orders", 0), ("orders", 1), ("a.b/ns/Ü_1", 0)):
        client.producer(topic).send(b"x", partition=partition)
    client.checkpoint(roll_all=True)
    for where, pruned in (
        ("true", 0),
        ("topic = 'a.b/ns/Ü_1'", 2),
        ("topic = 'orders' AND partition = 1", 2),
    ):
        with Query(client, f"SELECT count(*) AS n FROM messages WHERE {where}") as query:
            assert (query.files, query.pruned()) == (3, pruned)
            assert query.rows().read_all().to_pylist() == [{"n": 3 - pruned}]


def test_files_without_a_message_are_not_read(client: Client) -> None:
    """Kills a scan of files that hold nothing but markers."""
    for _ in range(2):
        with client.transaction() as txn:
            client.producer("orders").send(b"x", partition=0, txn=txn)
        client.checkpoint(roll_all=True)
    client.producer("orders").send(b"y", partition=1)
    client.checkpoint(roll_all=True)
    assert [source.ref.messages for source in relation_of(client, "orders").direct] == [
        0,
        0,
        1,
        1,
        1,
    ]
    contents = client._contents(["orders"])
    assert Messages(contents, path_below(client.path)).committed().count(".parquet'") == 3
    with Query(client, "SELECT text(value) AS said FROM orders ORDER BY ALL") as query:
        assert query.rows().read_all().column("said").to_pylist() == ["x", "x", "y"]


def test_a_file_is_read_once_for_its_checksum(client: Client) -> None:
    """Kills: a second check of the same file, and trust in a file that changed since its check."""
    client.producer("orders").send(b"x" * 100, partition=0)
    client.checkpoint(roll_all=True)
    [source] = relation_of(client, "orders").direct
    assert [client.check_files([source]) for _ in range(2)] == [1, 0]
    file = Path(client.path, source.ref.path)
    data = bytearray(file.read_bytes())
    data[60] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)
    with pytest.raises(Corruption):
        client.check_files([source])


def test_all_relations_of_a_statement_are_of_one_moment(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/analytics 4: another client writes before each relation, and no relation shows it."""
    other = txlog.open(client.path)

    def write() -> None:
        other.create_topic(f"t{len(other.topics())}")
        with other.transaction() as txn:
            other.producer("orders").send(b"x", partition=0, txn=txn)
        first = other.producer("orders").send(b"x", partition=0).message_id
        row = other.producer("orders").send(b"y", partition=1)
        other.producer("orders").send(b"z", partition=1, deliver_after=3_600_000)
        assert row.message_id is not None and first is not None
        other.topic("orders").watermarks.set(1_700_000_000_000 + len(other.topics()), "till")
        name = f"s{len(other.topics())}"
        other.create_subscription("orders", name, type="shared")
        other.acknowledge("orders", name, [row.message_id])
        other.connect(name)
        open_txn = other.begin()["txn"]
        other.acknowledge("orders", name, [first], txn=open_txn)

    def hooked(view: View, store: Store, name: str) -> pa.Table:
        write()
        return listed(view, store, name)

    write()
    other.checkpoint()
    write()
    names = ["messages", "messages_all", *sorted(LISTS)]
    counts = ", ".join(f"(SELECT count(*) FROM {name}) AS {name}" for name in names)
    [counts_before] = asked(client, f"SELECT {counts}")
    assert 0 not in counts_before.values()
    [lsn] = asked(client, "SELECT max(lsn) AS lsn FROM frames")
    monkeypatch.setattr("txlog.lake.sql.client_query.listed", hooked)
    assert asked(client, f"SELECT {counts}") == [counts_before]
    other.close()
    monkeypatch.undo()
    [counts_after] = asked(client, f"SELECT {counts}")
    assert counts_after["messages"] > counts_before["messages"]
    assert asked(client, "SELECT max(lsn) AS lsn FROM frames")[0]["lsn"] > lsn["lsn"]


def test_frames_that_checkpoints_take_meanwhile_are_looked_up_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R21: the whole statement moves to a newer view then, with the lists made before."""
    moved = [3]

    def hooked(view: View, store: Store, name: str) -> pa.Table:
        if name == "frames" and moved[0]:
            moved[0] -= 1
            with txlog.open(client.path) as other:
                for _ in range(3):
                    other.create_subscription("orders", f"s{len(other.subscriptions())}")
                    other.checkpoint()
        return listed(view, store, name)

    monkeypatch.setattr("txlog.lake.sql.client_query.listed", hooked)
    [row] = asked(
        client, "SELECT count(*) AS n, (SELECT count(*) FROM watermarks) AS w FROM frames"
    )
    assert row["n"] > 0
    assert row["w"] == 2 * (1 + 9)


@pytest.mark.deep
def test_compacted_matches_a_table_view(client: Client) -> None:
    """Through compactions, trims, deletions and moved keys, while other relations do not change."""
    rng = random.Random(f"{FIRST}:compacted")
    client.create_topic("other")
    client.producer("other").send(b"9", key="a")
    producer, admin = client.producer("orders"), client.admin

    def shown() -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
        rows = asked(client, "SELECT key, value FROM compacted WHERE topic = 'orders'")
        assert len({row["key"] for row in rows}) == len(rows)
        with client.table_view("orders") as view:
            return {row["key"]: row["value"] for row in rows}, dict(view.items())

    for step in range(12):
        with client.transaction() as txn:
            for _ in range(6):
                key, value = rng.choice("abcdefg"), rng.choice((b"%d" % step, b"%d" % step, None))
                producer.send(value, key=key, partition=rng.randrange(2), txn=txn)
        producer.send(b"no key")
        if step % 3 == 1:
            admin.compact_topic("orders")
        if step % 4 == 2:
            client.checkpoint(roll_all=True)
        if step == 9:  # from now on the log lacks most of the compacted messages
            client.checkpoint(roll_all=True)
            admin.trim("orders", END, force_unacked=True)
            assert asked(client, "SELECT count(*) AS n FROM orders") == [{"n": 0}]
        for isolation in ("committed", "uncommitted"):
            [other] = asked(client, "FROM compacted WHERE topic = 'other'", isolation)
            assert (other["value"], other["message_id"]) == (b"9", f"{other['ledger']}:0")
        by_sql, by_view = shown()
        assert by_sql == by_view, f"{FIRST}, step {step}"
    assert len(by_sql) > 2
    assert asked(client, "SELECT count(*) AS n FROM orders JOIN compacted USING (message_id)")
