"""A store of a version that kept no index: its messages with a time wait all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_kit import Bench, rows
from txlog.base.choices import SubscriptionType
from txlog.base.settings import Settings
from txlog.engine.decide.sending import send

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.mark.parametrize("kind", ["shared", "key-shared"])
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_delayed_messages_without_an_op_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionType, is_checkpointed: bool
) -> None:
    """A missing index costs time, and never makes a message due."""
    mapping = Settings().to_mapping()
    old = {name: value for name, value in mapping.items() if "deli" not in name}
    with monkeypatch.context() as patch:
        patch.setattr(Settings, "to_mapping", lambda self: old)
        patch.setattr(send, "times_of", lambda rows: None)
        bench = Bench(tmp_path / "store")
        client, now = bench.client, bench.clock.now().wall_ms
        client.create_topic("t")
        client.create_subscription("t", "s", type=kind)
        producer = client.producer("t")
        producer.send(b"later", key=b"k", deliver_at=now + 500)
        producer.send(b"now", key=b"k")
        with client.transaction() as txn:
            producer.send(b"last", deliver_at=now + 900, txn=txn)
        if is_checkpointed:
            client.checkpoint(roll_all=True)
    client = bench.reopen()
    client.producer("t").send(b"new", deliver_at=now + 700)
    with client.consumer("t", "s") as consumer:
        seen = []
        for _ in range(4):
            table = consumer.receive_batch(10)
            seen.append([message.value for message in rows([table])])
            consumer.acknowledge(table)
            bench.clock.advance(300)
    assert seen == [[b"now"], [], [b"later"], [b"new", b"last"]] or seen == [
        [b"now"],
        [],
        [b"later"],
        [b"last", b"new"],
    ]
    bench.close()
