"""Ids and names: their printed form parses again, and text that is no valid name is refused."""

from __future__ import annotations

import copy
import pickle
import string
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from txlog.base.ids import (
    MessageId,
    Position,
    TopicName,
    TxnId,
    check_name,
    encode_component,
)
from txlog.base.ranges import Bound, Range
from txlog.base.settings import Settings
from txlog.errors import InvalidArgument, NotAllowed

WORD = st.integers(0, (1 << 63) - 1)
TXN_IDS = st.builds(TxnId, st.integers(0, 32_767), WORD)
MESSAGE_IDS = st.builds(MessageId, WORD, WORD, WORD)
NAMES = st.text(alphabet=string.ascii_letters + string.digits + "._-=:+@~éß日", min_size=1).filter(
    lambda name: _is_name(name)
)


def _is_name(name: str) -> bool:
    try:
        check_name("topic", name)
    except InvalidArgument:
        return False
    return True


@given(TXN_IDS)
def test_txn_id_round_trips_through_text_and_halves(txn: TxnId) -> None:
    assert TxnId.parse(str(txn)) == txn
    assert TxnId.parse(f"({txn.most},{txn.least})") == txn
    assert TxnId.from_halves(txn.most, txn.least) == txn
    assert 0 <= txn.most < 1 << 63
    assert 0 <= txn.least < 1 << 63


def test_halves_put_the_coordinator_in_the_top_16_bits() -> None:
    assert TxnId.parse("(844424930131968,18)") == TxnId(3, 18)
    assert TxnId(3, 18).most == 844424930131968
    # Pulsar's way to print 3:18; here it is coordinator 0 with a counter never reached.
    assert TxnId.parse("(3,18)") == TxnId(0, 3 << 64 | 18)
    assert (TxnId.parse("(3,18)").most, TxnId.parse("(3,18)").least) == (3, 18)
    assert TxnId.from_halves(-1, -1) == TxnId(65_535, (1 << 112) - 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "3:",
        ":18",
        "3:18:1",
        "-1:2",
        "+1:2",
        "32768:0",
        f"0:{1 << 63}",
        " 3:18",
        "3:18\n",
        "(3)",
        "(1,2",
        f"({1 << 64},0)",
        "٣:1",
        "9" * 5000 + ":1",
        "0x1:2",
    ],
)
def test_bad_txn_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        TxnId.parse(text)
    assert caught.value.code == 203
    assert len(caught.value.message) < 150


@given(MESSAGE_IDS)
def test_message_id_round_trips(message_id: MessageId) -> None:
    assert MessageId.parse(str(message_id)) == message_id


@pytest.mark.parametrize(
    "text", ["", "1", "1:2:0", "1:2:3:4", "a:b", "1:-2", f"{1 << 63}:0", "1:2:", "1::2", "²:1"]
)
def test_bad_message_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        MessageId.parse(text)
    assert caught.value.code == 203


def test_order_is_ledger_entry_index_and_a_marker_is_before_its_messages() -> None:
    ids = [
        MessageId(5, 7),
        MessageId(5, 7, 1),
        MessageId(5, 7, 2),
        MessageId(5, 8),
        MessageId(6, 0),
    ]
    assert sorted(reversed(ids)) == ids
    assert str(MessageId(5, 7)) == "5:7" == str(Position(5, 7))
    assert MessageId(5, 7, 2).position == Position(5, 7)


@pytest.mark.parametrize(
    ("text", "short", "full", "partition"),
    [
        ("orders", "orders", "public/default/orders", None),
        ("orders/2", "orders", "public/default/orders", 2),
        ("orders-partition-2", "orders", "public/default/orders", 2),
        ("public/default/orders", "orders", "public/default/orders", None),
        ("a/b/orders/0", "a/b/orders", "a/b/orders", 0),
        ("persistent://a/b/c-partition-10", "a/b/c", "a/b/c", 10),
    ],
)
def test_topic_forms(text: str, short: str, full: str, partition: int | None) -> None:
    topic = TopicName.parse(text, allow_partition=True)
    assert (topic.short, topic.full, topic.partition) == (short, full, partition)
    assert TopicName.parse(str(topic), allow_partition=True) == topic
    assert topic.topic.partition is None
    if partition is not None:
        with pytest.raises(InvalidArgument):
            TopicName.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "a/b",
        "a/b/c/d",
        "a//b",
        "orders/",
        "/2",
        "orders/02",
        "orders-partition-02",
        "t/-1",
        "t-partition-1/2",
        "t-partition-1-partition-2",
        "persistent://t",
        "non-persistent://a/b/c",
        "persistent://a/b/c/d/1",
        "../x/y",
        "a/../c",
        "t/1234567890",
        "-partition-1",
    ],
)
def test_bad_topic_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        TopicName.parse(text, allow_partition=True)
    assert caught.value.code == 202


@given(st.text(st.sampled_from("_txnlogpartition-019/.:é~ "), max_size=24), st.integers(0, 99))
@example("-", 0)
@example("-x", 3)
@example("_txnlog", 0)
@example("0", 0)
@example("a/b/0", 7)
@example("x-partition-", 1)
def test_a_name_that_may_be_new_is_read_back(text: str, partition: int) -> None:
    """A later call finds a topic by the name that made it: short, full, or with a partition."""
    try:
        name = TopicName.parse(text).check_new()
    except (InvalidArgument, NotAllowed):
        return
    assert TopicName.parse(name.full) == TopicName.parse(name.short) == name
    of_partition = replace(name, partition=partition)
    assert TopicName.parse(str(of_partition), allow_partition=True) == of_partition
    assert unquote(encode_component(name.name)) == name.name


def test_sidecar_is_not_a_topic() -> None:
    with pytest.raises(NotAllowed):
        TopicName.parse("orders-partition-0/_txnlog", allow_partition=True)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "__x",
        "a/b",
        "a b",
        "a\0",
        "a\nb",
        "a%b",
        "a\u202eb",
        "x" * 129,
        "e\u0301",
        "日" * 27,
        "\ud800",
        "a\u00adb",
        "½",
        "a#b",
        "a&b",
        "😀",
    ],
)
def test_bad_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_name("topic", name)
    assert caught.value.code == 202


@pytest.mark.parametrize(
    "name", ["x" * 128, "日" * 26, "_x", ".x", "...", "a=b:c+d@e~f", "Ünïcode١"]
)
def test_good_name_is_returned_unchanged(name: str) -> None:
    assert check_name("topic", name) == name


def test_only_a_topic_may_begin_with_a_dash_and_is_written_in_full() -> None:
    """Stock Go clients make the topic -SUBSCRIPTION-RETRY; a command takes -x for an option."""
    name = TopicName.parse("persistent://public/default/-s-RETRY").check_new()
    assert name.short == str(name) == "public/default/-s-RETRY"
    assert TopicName.parse(name.short) == TopicName.parse("-s-RETRY") == name
    for kind in ("tenant", "namespace", "subscription", "producer", "consumer"):
        with pytest.raises(InvalidArgument, match="begins with -"):
            check_name(kind, "-s")


@given(NAMES)
def test_component_round_trips_and_never_hides(name: str) -> None:
    """decode(encode(n)) == n; no name begins with `_` or `.`: Spark and DuckDB skip such files."""
    text = encode_component(name)
    assert unquote(text) == name
    assert text.isascii()
    assert text[0] not in "_."
    assert not set(text) & set("/=:~@+")


def test_examples_of_components() -> None:
    assert encode_component("_x") == "%5Fx"
    assert encode_component("..") == "%2E."
    assert encode_component("-a=b") == "-a%3Db"


def test_ids_are_equal_within_their_class() -> None:
    """Keys of dictionaries: equal ids have one hash, and a tuple of the same numbers is no id."""
    for first, same, other in (
        (TxnId(3, 18), TxnId(3, 18), TxnId(3, 19)),
        (Position(3, 18), Position(3, 18), Position(4, 18)),
        (MessageId(3, 18), MessageId(3, 18, 0), MessageId(3, 18, 1)),
        (TopicName("a", "b", "c"), TopicName("a", "b", "c", None), TopicName("a", "b", "c", 1)),
    ):
        assert (first == same, first != other, hash(first) == hash(same)) == (True, True, True)
        assert len({first, same, other}) == 2
    others: list[object] = [Position(3, 18), (3, 18), None]
    assert all(TxnId(3, 18) != other for other in others)


@given(st.lists(st.tuples(WORD, WORD, st.integers(0, 3)), max_size=8))
def test_message_ids_sort_as_the_log_runs(numbers: list[tuple[int, int, int]]) -> None:
    ids = [MessageId(*triple) for triple in numbers]
    assert sorted(ids) == [MessageId(*triple) for triple in sorted(numbers)]
    with pytest.raises(TypeError):
        _ = Position(1, 2) < MessageId(1, 2)  # type: ignore[operator]


def test_repr_of_values() -> None:
    assert repr(TxnId(3, 18)) == "TxnId(coordinator=3, sequence=18)"
    assert repr(MessageId(17, 4)) == "MessageId(ledger=17, entry=4, index=0)"
    assert repr(Bound("last", 5)) == "Bound(kind='last', value=5)"


def test_values_do_not_change() -> None:
    for value, name in (
        (TxnId(3, 18), "sequence"),
        (Range(), "start"),
        (Settings(), "coordinators"),
    ):
        changing: Any = value
        with pytest.raises(AttributeError):
            setattr(changing, name, 1)
        with pytest.raises(AttributeError):
            delattr(changing, name)
        with pytest.raises(AttributeError):
            changing.other = 1


def test_values_are_copied_and_pickled() -> None:
    """Spark's workers and the processes of the demonstration receive values by pickle."""
    values = (TxnId(3, 18), Position(3, 18), MessageId(3, 18, 1), TopicName("a", "b", "c", 1))
    for value in (*values, Range(Bound("skip", 1)), Settings(coordinators=3)):
        assert (
            pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == copy.copy(value) == value
        )


def test_ids_are_matched_by_place() -> None:
    match MessageId(17, 4, 2):
        case MessageId(ledger, entry, index):
            assert (ledger, entry, index) == (17, 4, 2)
    with pytest.raises(TypeError):
        Settings(16)  # type: ignore[call-arg]  # settings are given by name
