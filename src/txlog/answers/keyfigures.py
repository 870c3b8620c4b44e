"""The metrics of transaction keys, and how many keys a coordinator has.

    pulsar_txn_transaction_key_count   living keys      _epoch   the newest epoch of each
    pulsar_txn_transaction_key_age     summary: how long transactions of the key were open, one
                                       observation an ended one; quantiles over the last 64
    txlog_transaction_key_last_used_seconds             to find keys that nobody uses

Source: the metrics of the transaction-key proposal; spec/transactions 16.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import ceil

from txlog.answers.metric_family import Family, Sample
from txlog.engine.folds.transaction_key import Key
from txlog.engine.view.view import View

QUANTILES = (0.5, 0.9, 0.99)


def living_keys(view: View) -> dict[tuple[int, str], Key]:
    """The keys that are not deleted, by (uid, key)."""
    return {pair: one for _, pair, one in _living(view)}


def living_counts(view: View) -> Counter[int]:
    """How many living keys each coordinator has."""
    return Counter(coordinator for coordinator, _, _ in _living(view))


def _living(view: View) -> Iterator[tuple[int, tuple[int, str], Key]]:
    for component in sorted(view.known()):
        if component[0] == "key":
            for uid, keys in view.keys(component[1]).of.items():
                for key, one in keys.items():
                    if not one.deleted:
                        yield component[1], (uid, key), one


def key_families(keys: dict[tuple[int, str], Key]) -> Iterator[Family]:
    """The metrics of these keys; a label is OWNER&KEY."""
    shown = [(labels, keys[pair]) for pair, labels in _labels(keys)]
    yield Family("pulsar_txn_transaction_key_count", "gauge", "living transaction keys", [
        ("", {}, len(keys))
    ])  # fmt: skip
    yield Family("pulsar_txn_transaction_key_epoch", "gauge", "newest epoch of the key", [
        ("", labels, one.epoch) for labels, one in shown
    ])  # fmt: skip
    yield Family(
        "pulsar_txn_transaction_key_age", "summary",
        "seconds from begin to end of the transactions of the key",
        [sample for labels, one in shown for sample in _ages(labels, one)],
    )  # fmt: skip
    yield Family("txlog_transaction_key_last_used_seconds", "gauge", "when the key was last used", [
        ("", labels, one.used_ms / 1000) for labels, one in shown
    ])  # fmt: skip


def _labels(
    keys: dict[tuple[int, str], Key],
) -> Iterator[tuple[tuple[int, str], dict[str, str]]]:
    """A label for each key; two users of one name are told apart by their numbers."""
    seen: dict[tuple[str, str], int] = {}
    for (_, key), one in keys.items():
        seen[one.owner, key] = seen.get((one.owner, key), 0) + 1
    for (uid, key), one in sorted(keys.items(), key=lambda item: item[0]):
        owner = one.owner if seen[one.owner, key] == 1 else str(uid)
        yield (uid, key), {"transaction_key": f"{owner}&{key}"}


def _ages(labels: dict[str, str], one: Key) -> Iterable[Sample]:
    out: list[Sample] = []
    if one.recent_ms:
        for quantile in QUANTILES:
            value = nearest_rank(one.recent_ms, quantile) / 1000
            out.append(("", {**labels, "quantile": f"{quantile:g}"}, value))
    out.append(("_count", labels, one.ended_count))
    out.append(("_sum", labels, one.open_ms_sum / 1000))
    return out


def nearest_rank(values: Sequence[int], quantile: float) -> int:
    """The smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(0, ceil(quantile * len(values)) - 1)]
