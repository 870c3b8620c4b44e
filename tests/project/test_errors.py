"""The error tree: codes, exits and fields match spec/cli 5 and the drawing."""

from __future__ import annotations

import json
import pickle
import re

import pytest

from tests.source_tree import SOURCE
from txlog import errors
from txlog.base.ids import MessageId, TxnId
from txlog.errors import (
    Corruption,
    InvalidMessage,
    LimitExceeded,
    StoreLocked,
    TransactionNotFound,
    TransactionTimedOut,
    TryAgain,
    TxlogError,
    error_classes,
    error_table,
    printable,
)

CLASSES = list(error_classes())
CATEGORIES = {
    "Usage",
    "NotFound",
    "WrongState",
    "TryAgain",
    "IntegrityError",
    "Failure",
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_exit_is_the_code_without_its_last_two_digits(cls: type[TxlogError]) -> None:
    assert cls.code == cls.codes[0]
    assert cls.exit == cls.code // 100
    for code in cls.codes:
        error = cls("x", code=code)
        assert (error.code, error.exit) == (code, code // 100)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_retryable_exactly_for_exit_5(cls: type[TxlogError]) -> None:
    assert cls.retryable == (cls.exit == 5) == issubclass(cls, TryAgain)


def test_names_are_unique_and_codes_differ_where_the_answer_differs() -> None:
    names = [c.__name__ for c in CLASSES]
    assert len(names) == len(set(names))
    # The twins that share a code: one action, two causes.
    shared = {
        402: {"AlreadyClosed", "InvalidTxnStatus"},
        504: {"SnapshotExpired", "NoResources"},
        601: {"Corruption", "MissingFile"},
        308: {"CoordinatorNotFound"},
        101: {"InternalError", "NameTaken"},
        201: {"InvalidArgument"},
    }
    seen: dict[int, set[str]] = {}
    for cls in CLASSES:
        if cls.__name__ not in CATEGORIES:
            seen.setdefault(cls.code, set()).add(cls.__name__)
    for code, holders in seen.items():
        assert len(holders) == 1 or holders == shared[code]


def test_every_class_is_used() -> None:
    """Kills: an error that nothing raises. `Failure` is only a base class."""
    used: set[str] = set()
    for file in SOURCE.rglob("*.py"):
        if file.name != "errors.py" or file.parent.name != "txlog":
            used.update(re.findall(r"(?<!\")\b[A-Z]\w+", file.read_text(encoding="utf-8")))
    assert {cls.__name__ for cls in CLASSES} - used == {"Failure"}


def test_drawing_names_every_class_with_its_code() -> None:
    drawing = errors.__doc__ or ""
    drawn = re.findall(r"[├└]─ (\w+) +(\d+)", drawing)
    assert {name for name, _ in drawn} == {c.__name__ for c in CLASSES}
    for name, number in drawn:
        cls = getattr(errors, name)
        assert int(number) == (cls.exit if int(number) < 100 else cls.code), name


def test_kinds_are_the_words_of_the_contract() -> None:
    assert {c.kind for c in CLASSES} == {
        *("io", "failure", "usage", "limit", "not-found", "state", "timed-out", "conflict"),
        *("fenced", "not-allowed", "retry", "busy", "unavailable", "corruption", "partial"),
        *("unmet", "refused", "unknown"),
    }


def test_table_has_a_row_and_a_meaning_for_every_class() -> None:
    table = error_table()
    assert set(table) == set(CLASSES)
    assert all(c.__doc__ and "\n" not in c.__doc__ for c in table)
    assert [c.exit for c in table] == sorted(c.exit for c in table)


def test_dict_holds_ids_as_text_and_no_payload() -> None:
    error = TransactionTimedOut(
        "transaction 0:45 was aborted",
        hint="begin again",
        txn=TxnId(0, 45),
        failed_list=[{"name": MessageId(17, 4, 2), "code": 407}],
        value=b"secret",
    )
    assert json.loads(json.dumps(error.as_dict())) == {
        "code": "TXL-403",
        "class": "TransactionTimedOut",
        "kind": "timed-out",
        "exit": 4,
        "message": "transaction 0:45 was aborted",
        "hint": "begin again",
        "retryable": False,
        "txn": "0:45",
        "failed_list": [{"name": "17:4:2", "code": 407}],
        "value": "6 bytes",
    }
    assert str(error) == error.message


def test_codes_of_one_class() -> None:
    assert TransactionNotFound("x").as_dict()["code"] == "TXL-304"
    assert TransactionNotFound("x", code=305).as_dict()["code"] == "TXL-305"
    assert Corruption("x", code=602).exit == 6
    record = InvalidMessage("too large", code=104, line=3).as_dict()
    assert (record["exit"], record["kind"], record["class"]) == (1, "failure", "InvalidMessage")
    assert (InvalidMessage("x").exit, InvalidMessage("x").kind) == (2, "usage")


def test_code_of_another_class_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        LimitExceeded("x", code=301)


def test_message_stays_one_line() -> None:
    assert str(StoreLocked("held by \x1b[31mx\n")) == "held by \\x1b[31mx\\n"
    assert printable("grün 日本") == "grün 日本"
    assert printable("a\u202eb\ud800") == "a\\u202eb\\ud800"


def test_error_survives_a_process_boundary() -> None:
    error = pickle.loads(pickle.dumps(StoreLocked("held", hint="wait", pid=4)))
    assert (error.message, error.hint, error.fields, error.code) == (
        "held",
        "wait",
        {"pid": 4},
        501,
    )
