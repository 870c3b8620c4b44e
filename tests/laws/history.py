"""Owns random histories with every kind of op, and the state of a store as plain values."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from tests.engine_kit import Bench, begin, ids, kill, prepare, say, session_of
from txlog import Bound, Client, Consumer, TxnId
from txlog.engine.model.ops import Component
from txlog.engine.session.transactions import end
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.view import FOLDS, View
from txlog.errors import TxlogError

STEPS = 150


# weights of the acts in a history: sends and acknowledgements are the most frequent
ACTS = (3, 3, 3, 5, 5, 5, 2, 3, 3, 2, 1, 1, 2, 2, 1, 1, 1, 2, 5, 3, 2, 1, 1, 1, 1, 3)


Dumps = dict[Component, object]


LARGE = 99  # a value repeated so often needs chunks


def live_dumps(client: Client) -> Dumps:
    """The current dumps of a client's folds."""
    client.producer("t").flush()
    return client.store.read(dumps)


def dumps(view: View) -> Dumps:
    """The dump of every component a view knows, as plain values."""
    plains = {key: plain(key, FOLDS[key[0]].dump(view.component(key))) for key in view.known()}
    empty = {kind: plain((kind, 0, 0), fold.dump(fold.new())) for kind, fold in FOLDS.items()}
    return {key: value for key, value in plains.items() if value != empty[key[0]]}


def plain(key: Component, blob: bytes) -> object:
    """A dump as values that do not depend on the storage of a bitmap or the order of a dict."""
    state = FOLDS[key[0]].load(blob)
    if key[0] in ("delayed", "watermark"):
        return msgspec.msgpack.decode(blob)
    if key[0] != "cursor":
        return sort_dicts(msgspec.msgpack.decode(FOLDS[key[0]].dump(state)))
    return [
        state.acked.runs(),
        state.held.runs(),
        state.leases.leased.runs(),
        {
            number: (lease.ids.runs(), [(due, ids.runs()) for due, ids in lease.handouts])
            for number, lease in sorted(state.leases.by_consumer.items())
            if lease.ids
        },
        state.leases.waiting,
        state.leases.waiting_ids.runs(),
        msgspec.msgpack.decode(blob, strict=False)[11],  # the rewinds in the form of the dump
        sort_dicts(msgspec.to_builtins(state.pending, str_keys=False)),
        state.mark_delete,
        state.redelivered,
        state.round,
        state.acked_count,
        state.last_ack_ms,
        msgspec.to_builtins(state.figures),
        state.epoch,
        state.released.runs(),
    ]


def sort_dicts(value: object) -> object:
    if isinstance(value, dict):
        return {key: sort_dicts(value[key]) for key in sorted(value)}
    return [sort_dicts(element) for element in value] if isinstance(value, list | tuple) else value


@contextlib.contextmanager
def fresh(bench: Bench, generation: int | None = None) -> Iterator[View]:
    """A view of the store that has read no frame yet."""
    disk = PosixDisk(bench.path)
    view = View.open(
        disk, bench.client.store.identity.salt, bench.clock.now().boot_id, generation=generation
    )
    try:
        yield view
    finally:
        view.close()
        disk.close()


def random_history(bench: Bench, seed: int, *, checkpoints: bool) -> None:
    """Make STEPS random calls, also refused ones; checkpoints: let some write a checkpoint."""
    chance, later = random.Random(seed), random.Random(seed)
    client = bench.client
    client.create_topic("t", 2)
    client.create_subscription("t", "s")
    client.create_subscription("t", "h", type=chance.choice(("shared", "key-shared", "failover")))
    client.connect("key 0")
    say(client, "A", 1)  # each history has every fold
    open_ones: list[TxnId] = []
    consumers: list[Consumer] = []

    def some_ids() -> list[object]:
        return list(chance.sample(message_ids, min(len(message_ids), chance.randint(1, 4))))

    for step in range(STEPS):
        message_ids = ids(client)
        txn = chance.choice(open_ones) if open_ones and chance.random() < 0.7 else None
        act = chance.choices(range(26), ACTS)[0]
        with contextlib.suppress(TxlogError):
            if act <= 2:
                producer = client.producer("t", chance.choice((None, "a", "b")), chunking=True)
                for _ in range(chance.randint(1, 3)):
                    value = b"%d" % step * chance.choice((1, 1, 1, LARGE))
                    at = later.choice((None, None, bench.clock.now().wall_ms + 500))
                    delay = later.choice((None, 400)) if at is None else None
                    key = b"%d" % chance.randrange(9)
                    number = later.choice((None, None, later.randrange(4 * STEPS)))
                    producer.send(
                        value,
                        key=key,
                        deliver_at=at,
                        deliver_after=delay,
                        sequence_id=number,
                        txn=txn,
                    )
                if later.random() < 0.3:
                    say(client, later.choice("AB"), later.choice((None, step)), txn=txn)
            elif act == 3:
                open_ones.append(begin(client, chance.randint(1000, 9000)))
            elif act <= 5 and message_ids:
                client.acknowledge("t", "s", some_ids(), txn=txn)  # type: ignore[arg-type]
            elif act == 6 and message_ids:
                chosen_ids = [chance.choice(message_ids)]
                client.acknowledge("t", "s", chosen_ids, cumulative=True, txn=txn)
            elif act == 7 and txn is not None:
                for other in list(client.store.read(end.prepared)):
                    end.resolve(client.store, other, commit=other.sequence % 2 == 0)
                client.commit(txn)
            elif act == 8 and txn is not None:
                if chance.random() < 0.3:
                    prepare(client, txn)
                else:
                    client.abort(txn)
            elif act == 9:
                bench.clock.advance(chance.randint(1, 1500))
            elif act == 10 and checkpoints:
                client.checkpoint(roll_all=chance.random() < 0.5)
            elif act == 12:
                name, epoch = f"key {chance.randrange(3)}", chance.choice((None, 0, 1, 2))
                open_ones.append(
                    client.begin(chance.randint(1000, 9000), key=name, epoch=epoch)["txn"]
                )
            elif act == 13:
                client.connect(f"key {chance.randrange(3)}", chance.randrange(-1, 3))
            elif act == 14 and chance.random() < 0.3:
                client.admin.delete_transaction_key(f"key {chance.randrange(3)}")
                client.admin.scale_coordinators(client.settings.coordinators + chance.randrange(2))
            elif act == 15 and message_ids:
                bound = Bound("id", chance.choice(message_ids))
                client.admin.trim("t", bound, force_unacked=chance.random() < 0.5)
            elif act == 16 and checkpoints:
                client.admin.compact("t")
            elif act == 21 and message_ids:
                handle, force = client.subscription("t", chance.choice("sh")), chance.random() < 0.5
                handle.seek(chance.choice(message_ids), force=force)
            elif act == 22:
                client.subscription("t", chance.choice("sh")).skip(chance.randint(1, 3))
                client.admin.compact_topic("t")
            elif act == 23 and chance.random() < 0.4:
                with client.consumer("t", "s", enable_watermarking=True) as consumer:
                    consumer.receive_batch(1)
                client.subscription("t", "s").delete()
                client.create_subscription("t", "s", max_redeliver_count=chance.randint(1, 3))
            elif act == 24:
                client.admin.update_topic(
                    "t", chance.randint(2, 5), ttl_ms=chance.choice((900, None))
                )
                topic = later.choice(("t", None))
                space = later.choice((None, "public/default")) if topic is None else None
                client.admin.remove_delayed_policies([], topic, space)
                client.admin.set_delayed_policies(
                    topic,
                    space,
                    max_delivery_delay_ms=later.choice((0, 450)),
                    fixed_delivery_delay_ms=later.choice((0, 0, 200)),
                    ttl_from=later.choice(("publish", "deliver_at")),
                )
                client.admin.remove_watermark_policies([], topic, space)
                client.admin.set_watermark_policies(
                    topic,
                    space,
                    producer_idle_timeout_ms=later.choice((0, 600)),
                    snapshot_markers_max=later.choice((2, 1000)),
                )
                client.admin.delete_topic(f"more-{chance.randrange(step + 1)}")
            elif act == 11 and chance.random() < 0.3:
                client.create_topic(f"more-{step}", chance.randint(1, 2))
                client.admin.rename_topic("t", "u")
                client.create_topic("t")  # in a directory of its own
                client.producer("t").send(b"other")
                client.admin.rename_topic("t", f"other-{step}")
                client.admin.rename_topic("u", "t")
                has_event = later.random() < 0.7
                with client.consumer("t", "s", enable_watermarking=has_event) as consumer:
                    consumer.receive_batch(1)  # with watermarks an event comes first
                    consumer.acknowledge(consumer.receive_batch(chance.randint(1, 5)))
            elif act == 25:
                bulk(bench, later)
            elif 17 <= act <= 20:
                lease(client, chance, consumers, act - 17, txn)


def bulk(bench: Bench, chance: random.Random) -> None:
    """Stage a batch of files under a random key and name, discard some, and commit it."""
    name = chance.choice((chance.randrange(9), chance.choice("abc")))
    batch = bench.client.bulk("t", key=f"key {chance.randrange(3)}", batch=name)
    now = bench.clock.now().wall_ms
    staged = []
    for task in range(chance.randint(1, 3)):
        count = chance.randint(0, 4)
        times = [chance.choice((None, None, now + 500)) for _ in range(count)]
        keys = [chance.choice((None, b"%d" % chance.randrange(9))) for _ in range(count)]
        staged += batch.stage(
            [
                pa.table(
                    {
                        "value": pa.array([b"x"] * count, pa.binary()),
                        "key": pa.array(keys, pa.binary()),
                        "deliver_at": pa.array(times, pa.timestamp("ms", "UTC")),
                    }
                )
            ],
            task,
        )
    if chance.random() < 0.1:
        batch.abort()
    bench.clock.advance(chance.choice((0, 0, 300)))
    batch.commit(staged)


def lease(
    client: Client, chance: random.Random, consumers: list[Consumer], act: int, txn: TxnId | None
) -> None:
    """Let a consumer open (0), receive and acknowledge (1), nack (2), close or die (3)."""
    if act == 0 and len(consumers) < 3:
        timeout_ms = chance.choice((None, 2000))
        consumers.append(client.consumer("t", "h", ack_timeout_ms=timeout_ms))
        return
    if not consumers:
        return
    consumer = chance.choice(consumers)
    if act == 1:
        table = consumer.receive_batch(chance.randint(1, 6))
        if chance.random() < 0.4:
            consumer.acknowledge(table.slice(chance.randrange(3)), txn=txn)
    elif act == 2:
        message_ids = ids(client)
        picked = chance.sample(message_ids, min(len(message_ids), 6))
        consumer.negative_acknowledge(picked, chance.choice((0, 0, 900)))
    elif act == 3:
        consumers.remove(consumer)
        if chance.random() < 0.5:
            consumer.close()
            return
        kill(consumer)
        if consumers:
            session_of(consumers[0]).member.reap(now=True)
