"""Transaction keys: epochs, take-over, fencing, tombstones, owners; spec/transactions 4, 10."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests.engine_kit import Bench, begin, pending, send, values
from tests.transactions.users import BEN, ROOT, Users
from txlog import Client, MessageId, TxnId
from txlog.engine.decide.draft import Decision
from txlog.engine.folds import transaction_key as keys
from txlog.engine.model.ops import KeyBound, KeyConnected, KeyDeleted, KeyReleased, Op
from txlog.errors import (
    CoordinatorNotFound,
    Corruption,
    ExpiredTransaction,
    InvalidArgument,
    InvalidTxnStatus,
    LimitExceeded,
    NotAllowed,
    ProducerFenced,
    TransactionKeyNotFound,
    TransactionTimedOut,
    TxlogError,
)

pytestmark = [
    pytest.mark.usefixtures("quick_disk", "users"),
    pytest.mark.store({"t": 2}, [("t", "s")]),
]


def lsn(client: Client) -> int:
    """The LSN of the last frame, once every written frame is visible."""
    return client.store.read(lambda view: view.lsn)


def stored_epoch(client: Client, key: str = "k") -> int | None:
    epochs: dict[str, int] = {
        row["transaction_key"]: row["epoch"] for row in client.admin.transaction_keys(deleted=True)
    }
    return epochs.get(key)


# --- the table of epochs ----------------------------------------------------------------------

NONE, LIVING, TOMBSTONE = "none", "living", "tombstone"


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(
    ("state", "presented", "expected"),
    [
        (NONE, -1, 0), (NONE, 0, NotAllowed), (NONE, 5, NotAllowed), (NONE, -2, InvalidArgument),
        (LIVING, -1, 4), (LIVING, 3, 4), (LIVING, 2, NotAllowed), (LIVING, 0, NotAllowed),
        (LIVING, 4, NotAllowed), (LIVING, -2, InvalidArgument),
        (TOMBSTONE, -1, 4), (TOMBSTONE, 3, NotAllowed), (TOMBSTONE, 2, NotAllowed),
        (TOMBSTONE, 0, NotAllowed), (TOMBSTONE, 4, NotAllowed), (TOMBSTONE, -9, InvalidArgument),
    ],
)  # fmt: skip
def test_the_table_of_epochs(
    bench: Bench, state: str, presented: int, expected: int | type[TxlogError], fresh: bool
) -> None:
    """10: every cell; from the process that has the state, and from one that reads a checkpoint."""
    client = bench.client
    if state != NONE:
        for _ in range(4):
            client.connect("k")
    if state == TOMBSTONE:
        client.admin.delete_transaction_key("k")
    if fresh:
        client.checkpoint()
        client = bench.reopen()
    txn = client.begin(key="k", epoch=3)["txn"] if state == LIVING else None
    lsn_before, epoch = lsn(client), stored_epoch(client)
    if isinstance(expected, int):
        answer = client.connect("k", presented)
        assert answer["epoch"] == expected
        assert answer["fenced_txn"] == txn
        assert stored_epoch(client) == expected
    else:
        with pytest.raises(expected) as caught:
            client.connect("k", presented)
        assert type(caught.value) is expected  # exactly this class, no subclass
        assert lsn(client) == lsn_before  # a refused connection changes nothing
        assert stored_epoch(client) == epoch
        if txn is not None:
            assert client.commit(txn)["state"] == "committed"


def test_an_epoch_from_the_future_hints_at_a_restored_copy(bench: Bench) -> None:
    """10: the epoch is newer than the store: was the store restored from a copy?"""
    bench.client.connect("k")
    with pytest.raises(NotAllowed, match="newer than this store knows") as caught:
        bench.client.connect("k", 7)
    assert "copy" in (caught.value.hint or "")
    assert caught.value.fields["transaction_key"] == "k"


@pytest.mark.parametrize(
    ("state", "epoch", "expected"),
    [
        (NONE, None, 0), (NONE, -1, 0), (NONE, 0, ProducerFenced), (NONE, -2, InvalidArgument),
        (LIVING, None, 4), (LIVING, -1, 4), (LIVING, 3, 3), (LIVING, 2, ProducerFenced),
        (LIVING, 4, ProducerFenced), (TOMBSTONE, None, 4), (TOMBSTONE, 3, ProducerFenced),
    ],
)  # fmt: skip
def test_beginning_needs_the_newest_epoch(
    bench: Bench, state: str, epoch: int | None, expected: int | type[TxlogError]
) -> None:
    """10: without an epoch it connects in the same frame; with a stale one no frame is written."""
    client = bench.client
    open_one = None
    if state != NONE:
        for _ in range(4):
            client.connect("k")
        open_one = client.begin(key="k", epoch=3)["txn"]
    if state == TOMBSTONE:
        client.admin.delete_transaction_key("k")
        open_one = None
    lsn_before = lsn(client)
    if isinstance(expected, int):
        answer = client.begin(key="k", epoch=epoch)
        assert (answer["epoch"], answer["transaction_key"]) == (expected, "k")
        assert answer["fenced_txn"] == open_one
        assert lsn(client) == lsn_before + 1  # one frame
    else:
        with pytest.raises(expected):
            client.begin(key="k", epoch=epoch)
        assert lsn(client) == lsn_before
        if open_one is not None:
            assert client.commit(open_one)["state"] == "committed"


def test_a_connection_is_durable_when_it_is_answered(tmp_path: Path) -> None:
    """5.2: connect, delete, and the begin that connects; a reader sees them at once."""
    bench = Bench(tmp_path / "store", durability="sync")
    looker = bench.another(read_only=True)
    bench.client.connect("k")
    assert looker.admin.transaction_key("k")["epoch"] == 0
    # the first begin reserves ids, which is durable by itself
    bench.client.commit(bench.client.begin(key="k")["txn"])
    begun = bench.client.begin(key="k")
    assert looker.admin.transaction_key("k")["txn"] == begun["txn"]
    bench.client.begin(key="k", epoch=begun["epoch"])  # its answer reports a fenced transaction
    assert looker.show_transaction(begun["txn"])["reason"] == "fenced"
    bench.client.admin.delete_transaction_key("k")
    assert looker.admin.transaction_keys() == []


# --- fencing ----------------------------------------------------------------------------------


def zombie(bench: Bench) -> tuple[Client, TxnId, list[MessageId]]:
    """A task with an open transaction under key k: two sends, and an acknowledgement of
    each kind.
    """
    client = bench.another(transaction_key="k")
    message_ids = send(client, b"in 0", b"in 1", b"in 2")
    txn = client.begin()["txn"]
    producer = client.producer("t")
    producer.send(b"zombie 0", partition=0, txn=txn)
    producer.send(b"zombie 1", partition=1, txn=txn)
    client.acknowledge("t", "s", [message_ids[0]], txn=txn)
    return client, txn, message_ids


def operations(client: Client, txn: TxnId, message_ids: list[MessageId]) -> list[Callable[[], Any]]:
    """Every operation on a transaction; a named producer is opened here."""
    producer = client.producer("t", "p")
    return [
        lambda: client.producer("t").send(b"late", partition=0, txn=txn),
        lambda: producer.send(b"late", partition=1, txn=txn, sequence_id=1),
        lambda: client.acknowledge("t", "s", [message_ids[1]], txn=txn),
        lambda: client.acknowledge("t", "s", [message_ids[2]], cumulative=True, txn=txn),
        lambda: client.commit(txn),
        lambda: client.abort(txn),
    ]


FENCES: dict[str, Callable[[Client], Any]] = {
    "connect": lambda client: client.connect("k"),
    "connect with its epoch": lambda client: client.connect("k", 0),
    "begin": lambda client: client.begin(key="k"),
    "begin with its epoch": lambda client: client.begin(key="k", epoch=0),
    "delete": lambda client: client.admin.delete_transaction_key("k"),
}


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("fence", FENCES)
def test_a_fenced_transaction_can_do_nothing(bench: Bench, fence: str, fresh: bool) -> None:
    """10: every operation raises ExpiredTransaction and writes no frame; I-16."""
    task, txn, message_ids = zombie(bench)
    answer = FENCES[fence](bench.client)
    assert txn in (answer.get("fenced_txn"), *answer.get("aborted_list", []))
    if fresh:
        bench.client.checkpoint()
        task = bench.another()
    calls = operations(task, txn, message_ids)
    bench.client.flush()
    lsn_before = lsn(bench.client)
    for _ in range(2):
        for operation in calls:
            with pytest.raises(ExpiredTransaction) as caught:
                operation()
            assert caught.value.fields["txn"] == txn
            assert (caught.value.kind, caught.value.exit) == ("fenced", 4)
    bench.client.flush()
    assert lsn(bench.client) == lsn_before
    assert values(bench.client) == [b"in 0", b"in 1", b"in 2"]
    assert [m.value for m in pending(bench.client)] == [b"in 0", b"in 1", b"in 2"]
    txn_row = bench.client.show_transaction(txn)
    assert (txn_row["state"], txn_row["reason"]) == ("aborted", "fenced")


def test_the_acks_of_the_fenced_come_again(bench: Bench) -> None:
    """10: PENDING again at once, one redelivery more; the next holder may acknowledge them."""
    _, txn, message_ids = zombie(bench)
    task = bench.another(transaction_key="k")
    with task.consumer("t", "s") as consumer, task.transaction() as own_txn:
        table = consumer.receive_batch(10)
        assert table.column("redelivery_count").to_pylist() == [1, 0, 0]
        consumer.acknowledge(table, txn=own_txn)
        task.producer("t").send(b"done", partition=0, txn=own_txn)
    assert own_txn.id != txn
    assert pending(bench.client)[0].value == b"done"
    assert values(bench.client) == [b"in 0", b"in 1", b"in 2", b"done"]
    with pytest.raises(ExpiredTransaction):
        bench.client.acknowledge("t", "s", [message_ids[0]], txn=txn)


def test_a_pending_cumulative_ack_is_given_back(bench: Bench) -> None:
    """The scenario of the proposal: cumulative acknowledgements have no conflict to stop a task."""
    task = bench.another(transaction_key="k")
    message_ids = send(task, b"a", b"b", b"c")
    txn = task.begin()["txn"]
    task.acknowledge("t", "s", [message_ids[1]], cumulative=True, txn=txn)
    assert [m.value for m in pending(bench.client)] == [b"c"]
    other = bench.another(transaction_key="k")
    own_txn = other.begin()["txn"]
    other.acknowledge("t", "s", [message_ids[2]], cumulative=True, txn=own_txn)
    other.commit(own_txn)
    with pytest.raises(ExpiredTransaction):
        task.acknowledge("t", "s", [message_ids[2]], cumulative=True, txn=txn)
    assert pending(bench.client) == []


def test_only_the_open_transaction_of_that_key_is_fenced(bench: Bench) -> None:
    """10: transactions without a key and of other keys go on, in the same coordinator too."""
    client = bench.client
    plain = begin(client)
    other = client.begin(key="other")["txn"]
    own_txn = client.begin(key="k")
    other_txn = client.begin(coordinator=own_txn["coordinator"])["txn"]
    assert client.connect("k")["fenced_txn"] == own_txn["txn"]
    for txn in (plain, other, other_txn):
        assert client.commit(txn)["state"] == "committed"


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_ended_transaction_is_not_fenced(bench: Bench, end: str) -> None:
    """10: the answer stays the same before and after the take-over."""
    client = bench.client
    txn = client.begin(key="k")["txn"]
    getattr(client, end)(txn)
    assert client.connect("k")["fenced_txn"] is None
    assert getattr(client, end)(txn)["already"]
    with pytest.raises(InvalidTxnStatus):
        client.producer("t").send(b"x", partition=0, txn=txn)


@pytest.mark.parametrize("fence", FENCES)
def test_a_timed_out_one_stays_timed_out(bench: Bench, fence: str) -> None:
    """10: fenced and timed out must not be confused, also without a sweep before the take-over."""
    txn = bench.client.begin(1000, key="k")["txn"]
    message_ids = send(bench.client, b"a", b"b", b"c")
    bench.clock.advance(1001)
    other = bench.another()  # has not loaded the coordinator
    answer = FENCES[fence](other)
    assert answer.get("fenced_txn") is None and not answer.get("aborted_list")
    for client in (bench.client, other):
        assert client.show_transaction(txn)["reason"] == "timeout"
        for operation in operations(client, txn, message_ids)[:5]:
            with pytest.raises(TransactionTimedOut):
                operation()
        assert client.abort(txn)["already"]


def test_a_fenced_one_stays_fenced_when_its_time_is_over(bench: Bench) -> None:
    """The other way round: the sweep finds that it has ended."""
    txn = bench.client.begin(1000, key="k")["txn"]
    bench.client.connect("k")
    bench.clock.advance(5000)
    begin(bench.client)
    with pytest.raises(ExpiredTransaction):
        bench.client.commit(txn)


def test_a_swept_one_is_not_the_keys_any_more(bench: Bench) -> None:
    """A time-out ends it; the holder begins the next with the same epoch and fences none."""
    client = bench.another(transaction_key="k")
    txn = client.begin(1000)["txn"]
    bench.clock.advance(1001)
    begin(client)  # sweeps
    assert client.admin.transaction_key("k")["txn"] == client.transactions()[-1]["txn"] != txn
    with pytest.raises(TransactionTimedOut):
        client.commit(txn)


def test_a_committing_one_is_left_to_finish(bench: Bench) -> None:
    """10: it is decided; connect, begin and delete neither wait for it nor abort it."""
    client = bench.client
    txn = client.begin(key="k")["txn"]
    client.create_topic("away")
    client.producer("away").send(b"x", txn=txn)
    client.admin.set_offline("away")
    assert client.commit(txn)["state"] == "committing"
    assert client.connect("k")["fenced_txn"] is None
    second = client.begin(key="k")
    assert second["fenced_txn"] is None
    row = client.admin.transaction_key("k")
    assert [txn_row["state"] for txn_row in row["txn_list"]] == ["open", "committing"]
    assert (row["txn"], row["txn_state"]) == (second["txn"], "open")
    assert client.admin.delete_transaction_key("k")["aborted_list"] == [second["txn"]]
    assert client.commit(txn)["already"]
    (remaining_row,) = [txn_row for txn_row in client.transactions() if txn_row["txn"] == txn]
    assert remaining_row["state"] == "committing"


def test_beginning_again_ends_the_one_before(bench: Bench) -> None:
    """10, I-16: at most one OPEN transaction a key, with the right epoch too."""
    client = bench.another(transaction_key="k")
    txns_before = [client.begin()["txn"] for _ in range(3)]
    last = client.begin()["txn"]
    assert [row["txn"] for row in client.transactions()] == [last]
    for txn in txns_before:
        with pytest.raises(ExpiredTransaction):
            client.commit(txn)
    client.commit(last)


def test_fencing_makes_room(tmp_path: Path) -> None:
    """3: transactions that the same frame ends do not count; a refused begin fences none."""
    bench = Bench(tmp_path / "store", coordinators=1, txn_active_max=2)
    client = bench.client
    first = client.begin(key="k")["txn"]
    begin(client)
    second = client.begin(key="k")
    assert second["fenced_txn"] == first
    with pytest.raises(LimitExceeded):
        client.begin(key="other")
    assert [row["transaction_key"] for row in client.admin.transaction_keys()] == ["k"]
    with pytest.raises(LimitExceeded):
        client.begin(90_000_000, key="k")
    assert client.commit(second["txn"])["state"] == "committed"


# --- deleting ---------------------------------------------------------------------------------


def test_a_tombstone_keeps_its_epoch(bench: Bench) -> None:
    """10, I-1: no old process matches a reborn key, over checkpoints and reopening."""
    client = bench.client
    old = bench.another(transaction_key="k")
    txn = old.begin()["txn"]
    answer = client.admin.delete_transaction_key("k")
    assert answer == {
        "transaction_key": "k",
        "owner": "ana",
        "owner_uid": 1000,
        "epoch": 0,
        "deleted": True,
        "aborted_list": [txn],
    }
    calls: list[Callable[[], object]] = [
        lambda: client.admin.delete_transaction_key("k"),
        lambda: client.admin.transaction_key("k"),
        lambda: client.admin.delete_transaction_key("never"),
    ]
    for call in calls:
        with pytest.raises(TransactionKeyNotFound):
            call()
    assert client.admin.transaction_keys() == []
    assert [row["deleted"] for row in client.admin.transaction_keys(deleted=True)] == [True]
    with pytest.raises(ProducerFenced, match="deleted"):
        old.transaction()
    client.checkpoint()
    client = bench.reopen()
    assert client.connect("k")["epoch"] == 1
    with pytest.raises(NotAllowed):
        client.connect("k", 0)
    with pytest.raises(ExpiredTransaction):
        client.commit(txn)


def test_a_dry_run_deletes_nothing(bench: Bench) -> None:
    """spec/cli 4: the plan as the result would be, no byte changed."""
    txn = bench.client.begin(key="k")["txn"]
    lsn_before = lsn(bench.client)
    rehearsal = bench.another(dry_run=True)
    plan = rehearsal.admin.delete_transaction_key("k")
    assert plan["aborted_list"] == [txn]
    assert rehearsal.admin.scale_coordinators(20) == {"before": 16, "after": 20}
    assert lsn(bench.client) == lsn_before
    assert bench.client.admin.delete_transaction_key("k") == plan


# --- owners -----------------------------------------------------------------------------------


def test_the_same_key_of_another_owner_is_another_key(bench: Bench, users: Users) -> None:
    """10: identity is (uid, key); no user fences another."""
    client, other = bench.client, users.let(bench.another(), BEN)
    own_txn, theirs = client.begin(key="k"), other.begin(key="k")
    assert (own_txn["epoch"], theirs["epoch"]) == (0, 0)
    assert theirs["fenced_txn"] is None
    assert other.connect("k")["epoch"] == 1
    assert client.commit(own_txn["txn"])["state"] == "committed"
    assert client.admin.transaction_key("k")["epoch"] == 0
    assert [(row["owner"], row["epoch"]) for row in client.admin.transaction_keys()] == [
        ("ana", 0),
        ("ben", 1),
    ]
    assert [row["epoch"] for row in client.admin.transaction_keys(owner="ben")] == [1]
    assert [row["epoch"] for row in client.admin.transaction_keys(owner=1000)] == [0]


def test_an_owner_keeps_a_key_under_another_name(bench: Bench, users: Users) -> None:
    """2: the number decides, the name is a label."""
    bench.client.connect("k")
    users.others = (1000, "anna")
    assert bench.another().connect("k")["epoch"] == 1
    assert bench.client.admin.transaction_key("k")["owner"] == "anna"


def test_only_root_may_name_another_owner(bench: Bench, users: Users) -> None:
    """10, ownership: take over, use, delete; root is excepted, and the key stays its owner's."""
    txn = bench.client.begin(key="k")["txn"]
    other, root = users.let(bench.another(), BEN), users.let(bench.another(), ROOT)
    calls: list[Callable[[], object]] = [
        lambda: other.connect("k", owner="ana"),
        lambda: other.begin(key="k", owner=1000),
        lambda: other.admin.delete_transaction_key("k", "ana"),
        lambda: other.admin.transaction_key("k", "ana"),
        lambda: other.commit(txn),
    ]
    for call in calls:
        with pytest.raises(NotAllowed):
            call()
    assert root.admin.transaction_key("k", "ana")["txn"] == txn
    connection = root.connect("k", owner="ana")
    assert (connection["owner"], connection["owner_uid"], connection["epoch"]) == ("ana", 1000, 1)
    assert connection["fenced_txn"] == txn
    own_txn = root.begin(key="k", epoch=1, owner="1000")
    assert (own_txn["owner"], own_txn["coordinator"]) == ("ana", connection["coordinator"])
    assert bench.client.commit(own_txn["txn"])["state"] == "committed"
    assert root.admin.delete_transaction_key("k", 1000)["epoch"] == 1
    assert root.connect("k")["epoch"] == 0  # root's own is another key
    with pytest.raises(TransactionKeyNotFound):
        root.connect("k", owner="carl")
    assert root.connect("k", owner=2000)["owner_uid"] == 2000


def test_a_number_that_no_user_has_is_refused_and_stops_no_checkpoint(
    bench: Bench, users: Users
) -> None:
    """An older program stored any number; the rows of changes accept it all the same."""
    root = users.let(bench.another(), ROOT)
    for owner in (1 << 63, 1 << 32, str(1 << 40)):
        with pytest.raises(InvalidArgument):
            root.connect("k", owner=owner)
    op = KeyConnected(0, (1 << 64) - 1, "odd", "k", 0)
    bench.client.store.write(lambda view, now: Decision([op], sync=True))
    bench.client.checkpoint()
    [row] = root.admin.transaction_keys()
    assert row["owner"] == "odd"


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("key", [None, "k"])
def test_only_the_owner_and_root_use_a_transaction(
    bench: Bench, users: Users, key: str | None, fresh: bool
) -> None:
    """5, ownership: another uid gets NotAllowed for every call, after every reload; root may."""
    message_ids = send(bench.client, b"a", b"b", b"c")
    txn = bench.client.begin(key=key)["txn"]
    if fresh:
        bench.client.checkpoint()
        bench.reopen()
    other, root = users.let(bench.another(), BEN), users.let(bench.another(), ROOT)
    calls = operations(other, txn, message_ids)
    other.flush()
    lsn_before = lsn(other)
    for operation in calls:
        with pytest.raises(NotAllowed, match="belongs to ana"):
            operation()
    assert lsn(other) == lsn_before
    for operation in operations(root, txn, message_ids)[:-1]:
        operation()
    assert bench.client.show_transaction(txn)["owner"] == "ana"
    for operation in (*operations(other, txn, message_ids), lambda: other.commit(txn)):
        # another user may not even read how it ended: ownership is checked first
        with pytest.raises(NotAllowed):
            operation()


def test_the_reason_of_an_abort_is_user_or_admin(bench: Bench, users: Users) -> None:
    """spec/cli 8.5: the reason is `user` or `admin`."""
    for who, reason in ((bench.client, "user"), (users.let(bench.another(), ROOT), "admin")):
        txn = bench.client.begin()["txn"]
        who.abort(txn)
        assert bench.client.show_transaction(txn)["reason"] == reason


def test_a_name_of_two_users_must_be_a_number(bench: Bench, users: Users) -> None:
    """2: the name is a label only."""
    bench.client.connect("k")
    users.let(bench.another(), (1002, "ana")).connect("k")
    root = users.let(bench.another(), ROOT)
    with pytest.raises(InvalidArgument, match="1000, 1002"):
        root.connect("k", owner="ana")
    assert root.connect("k", owner=1002)["epoch"] == 1


def test_a_user_whose_name_has_an_ampersand_has_no_keys(bench: Bench, users: Users) -> None:
    """2: owner&key must be read one way only."""
    client = users.let(bench.another(), (1003, "a&b"))
    with pytest.raises(InvalidArgument):
        client.connect("k")
    begin(client)


@pytest.mark.parametrize(
    ("key", "good"),
    [
        ("k", True), ("nightly import/ä 2", True), ("x" * 512, True), ("é" * 256, True),
        ("", False), ("a&b", False), ("&", False), ("x" * 513, False), ("é" * 257, False),
        ("a\nb", False), ("a\x00", False), ("a\x7f", False), ("\ud800", False),
    ],
)  # fmt: skip
def test_valid_and_invalid_keys(bench: Bench, key: str, good: bool) -> None:
    """2: 1 to 512 bytes UTF-8, no &, no control characters."""
    calls = (bench.client.connect, lambda key: bench.client.begin(key=key))
    for call in (*calls, bench.client.admin.delete_transaction_key):
        if good:
            call(key)
        else:
            with pytest.raises(InvalidArgument):
                call(key)


# --- coordinators -----------------------------------------------------------------------------


def test_a_key_is_bound_to_a_coordinator(bench: Bench) -> None:
    """4: crc32 of uid&key; unkeyed transactions go round without it."""
    client = bench.client
    for key in ("a", "b", "c"):
        number = crc32(f"1000&{key}".encode()) % 16
        assert client.connect(key)["coordinator"] == number
        assert client.begin(key=key)["txn"].coordinator == number
    assert [begin(client).coordinator for _ in range(3)] == [0, 1, 2]
    with pytest.raises(InvalidArgument):
        client.begin(coordinator=1, key="a")


def test_keys_stay_where_they_are_when_coordinators_are_added(tmp_path: Path) -> None:
    """4: the former coordinators are searched, newest first, with tombstones; over checkpoints."""
    bench = Bench(tmp_path / "store", coordinators=2)
    names = [f"key {n}" for n in range(12)]
    homes = {name: bench.client.connect(name)["coordinator"] for name in names}
    bench.client.admin.delete_transaction_key(names[0])
    uid = bench.client.store.disk.owner()[0]
    for count in (3, 7, 40):
        client = bench.client
        assert client.admin.scale_coordinators(count)["after"] == count
        new = f"new in {count}"
        homes[new] = crc32(f"{uid}&{new}".encode()) % count
        client.connect(new)
        client.checkpoint()
        client = bench.reopen()
        for name, number in homes.items():
            if name == names[0]:
                with pytest.raises(NotAllowed):
                    client.connect(name, 0)
            else:
                answer = client.connect(name)
                assert answer["coordinator"] == number
                assert answer["epoch"] > 0 or name == new
    assert bench.client.connect(names[0])["epoch"] == 1
    assert bench.client.connect(names[0])["coordinator"] == homes[names[0]]


def test_another_open_client_learns_of_new_coordinators(tmp_path: Path) -> None:
    """4: settings belong to the store; all processes follow a change."""
    bench = Bench(tmp_path / "store", coordinators=1)
    other = bench.another()
    other.create_topic("t")
    producer = other.producer("t")
    with pytest.raises(CoordinatorNotFound):
        other.begin(coordinator=1)
    assert bench.client.admin.scale_coordinators(3) == {"before": 1, "after": 3}
    txn = bench.client.begin(coordinator=2)["txn"]
    producer.send(b"x", txn=txn)
    other.commit(txn)
    assert values(other) == [b"x"]
    assert other.settings.coordinators == 3
    assert other.begin(coordinator=1)["txn"] == TxnId(1, 0)


@pytest.mark.parametrize(
    ("count", "error"),
    [(0, InvalidArgument), (-1, InvalidArgument), (3, NotAllowed), (32_769, LimitExceeded)],
)
def test_the_number_of_coordinators_only_grows(
    tmp_path: Path, count: int, error: type[TxlogError]
) -> None:
    """3: every refusal names the setting and the numbers; the same number is no change."""
    client = Bench(tmp_path / "store", coordinators=4).client
    lsn_before = lsn(client)
    with pytest.raises(error) as caught:
        client.admin.scale_coordinators(count)
    assert caught.value.fields["setting"] == "coordinators"
    assert client.admin.scale_coordinators(4) == {"before": 4, "after": 4}
    assert lsn(client) == lsn_before


def test_a_late_end_leaves_the_newer_transaction_bound() -> None:
    """10: a transaction that was COMMITTING when the next began ends later; the figures
    count it.
    """
    state = keys.FOLD.new()
    ops: list[Op] = [
        KeyConnected(3, 1000, "ana", "k", 0),
        KeyBound(3, 1000, "k", 0, 7),
        KeyBound(3, 1000, "k", 0, 9),
        KeyReleased(3, 1000, "k", 7, 50),
    ]
    for number, op in enumerate(ops):
        keys.FOLD.apply(state, number, 100 + number, op)
    entry = keys.find(state, 1000, "k")
    assert entry is not None
    assert (entry.sequence, entry.used_ms, entry.recent_ms) == (9, 102, [50])


@pytest.mark.parametrize(
    "op",
    [
        KeyConnected(3, 1000, "ana", "k", 0),
        KeyConnected(3, 1000, "ana", "k", 2),
        KeyConnected(3, 1000, "ana", "new", 1),
        KeyBound(3, 1000, "k", 1, 7),
        KeyBound(3, 1001, "k", 0, 7),
        KeyBound(3, 1000, "gone", 0, 7),
        KeyDeleted(3, 1000, "gone"),
        KeyDeleted(3, 1000, "new"),
        KeyReleased(3, 1000, "new", 1, 1),
    ],
)
def test_the_fold_refuses_what_cannot_be(op: Op) -> None:
    """I-1, I-16: a repeated or skipped epoch, or a bind without the newest, is Corruption."""
    state = keys.FOLD.new()
    for bad_state in (
        KeyConnected(3, 1000, "ana", "k", 0),
        KeyConnected(3, 1000, "ana", "gone", 0),
        KeyDeleted(3, 1000, "gone"),
    ):
        keys.FOLD.apply(state, 1, 1, bad_state)
    dump_before = keys.FOLD.dump(state)
    with pytest.raises(Corruption):
        keys.FOLD.apply(state, 2, 2, op)
    assert keys.FOLD.dump(state) == dump_before
