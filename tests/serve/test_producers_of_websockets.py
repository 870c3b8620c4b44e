"""Producers by WebSocket and by Pulsar's binary protocol share one table of names."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.serve.served import Raw, served_twice
from tests.serve.test_sends import EXCLUSIVE, FENCING
from txlog.serve.pulsar.messages import ERRORS

SHARED, WAITING = 0, 2


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with served_twice(tmp_path_factory.mktemp("s") / "s") as places:
        yield places


def joined(http: str, topic: str, name: str | None = None) -> ClientConnection:
    place = http.replace("http://", "ws://").rstrip("/")
    query = "" if name is None else f"?producerName={name}"
    return connect(f"{place}/ws/v2/producer/persistent/public/default/{topic}{query}")


def is_stored(socket: ClientConnection) -> bool:
    socket.send(json.dumps({"payload": base64.b64encode(b"x").decode()}))
    return bool(json.loads(socket.recv(30))["result"] == "ok")


def opening(topic: str, mode: int, number: int = 1, name: str | None = None) -> dict[str, object]:
    how: dict[str, object] = {"topic": topic, "producer_access_mode": mode}
    return {**how, "producer_id": number, "producer_name": name}


@pytest.mark.parametrize("name", ["till", None])
def test_an_exclusive_producer_sees_one_of_a_websocket(places: list[str], name: str | None) -> None:
    topic = f"seen-{name}"
    with Raw(places[0]) as raw:
        with joined(places[1], topic, name) as socket:
            assert is_stored(socket)
            refused = raw.ask("producer", "error", **opening(topic, EXCLUSIVE))
            assert refused.error == ERRORS["ProducerFenced"]
            waits = raw.ask("producer", "producer_success", **opening(topic, WAITING, 2))
            assert not waits.producer_ready
            assert is_stored(socket)
        assert raw.read("producer_success").producer_ready  # once the WebSocket has gone
        with pytest.raises(InvalidStatus):
            joined(places[1], topic, name)
        raw.ask("close_producer", "success", producer_id=2)
        with joined(places[1], topic, name) as socket:
            assert is_stored(socket)


def test_a_producer_that_takes_over_ends_a_websocket(places: list[str]) -> None:
    with Raw(places[0]) as raw, joined(places[1], "taken") as socket:
        assert is_stored(socket)
        raw.ask("producer", "producer_success", **opening("taken", FENCING))
        with pytest.raises(ConnectionClosed) as caught:
            socket.recv(30)
        assert caught.value.rcvd is not None
        assert (caught.value.rcvd.code, "taken over" in caught.value.rcvd.reason) == (1008, True)
        raw.ask("close_producer", "success", producer_id=1)
        with joined(places[1], "taken") as later:
            assert is_stored(later)


def test_a_name_has_one_producer_over_both_protocols(places: list[str]) -> None:
    with Raw(places[0]) as raw:
        with joined(places[1], "named", "till") as socket:
            assert is_stored(socket)
            refused = raw.ask("producer", "error", **opening("named", SHARED, name="till"))
            assert refused.error == ERRORS["ProducerBusy"]
            with pytest.raises(InvalidStatus):
                joined(places[1], "named", "till")
            with joined(places[1], "named", "other") as other:
                assert is_stored(other)
            # A client that comes again by another connection has its name back.
            fields = {**opening("named", SHARED, name="till"), "epoch": 1}
            raw.ask("producer", "producer_success", **fields)
            with pytest.raises(ConnectionClosed):
                socket.recv(30)
        with pytest.raises(InvalidStatus):
            joined(places[1], "named", "till")
