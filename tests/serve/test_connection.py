"""Connections: the handshake, refusals, and that a bad client harms no other client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.served import Raw, served
from txlog.serve.pulsar.messages import ERRORS


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("s") / "s") as address:
        yield address


def test_handshake_states_version_and_message_size(url: str) -> None:
    with Raw(url, connects=False) as raw:
        raw.send("connect", client_version="raw", protocol_version=12)
        answer = raw.read("connected")
    assert answer.protocol_version == 12
    assert answer.server_version.startswith("txlog-")
    assert answer.max_message_size == 5 << 20


def test_a_ping_is_answered(url: str) -> None:
    with Raw(url) as raw:
        raw.send("ping")
        raw.read("pong")


def test_command_before_connect_ends_the_connection(url: str) -> None:
    with Raw(url, connects=False) as raw:
        raw.send("ping")
        raw.read("error")
        with pytest.raises(EOFError):
            raw.frame()


@pytest.mark.parametrize(
    "junk",
    [b"\xff\xff\xff\xff", b"\0\0\0\4\0\0\0\1", b"\0\0\0\x08\0\0\0\x04\xff\xff\xff\xff"],
    ids=["huge", "command beyond its frame", "no command"],
)
def test_a_frame_that_cannot_be_read_ends_the_connection(url: str, junk: bytes) -> None:
    with Raw(url) as raw, Raw(url) as other:
        raw.socket.sendall(junk)
        raw.read("error")
        with pytest.raises(EOFError):
            raw.frame()
        other.send("ping")
        other.read("pong")


def test_an_unknown_command_is_refused_by_its_number(url: str) -> None:
    with Raw(url) as raw:
        error = raw.ask("endTxnOnPartition", "error")
    assert (error.request_id, error.error) == (7, ERRORS["NotAllowedError"])


def test_topics_are_looked_up(url: str) -> None:
    with Raw(url) as raw:
        count = raw.ask("partitionMetadata", "partitionMetadataResponse", topic="no")
        assert (count.response, count.partitions) == (0, 0)
        where = raw.ask("lookupTopic", "lookupTopicResponse", topic="persistent://a/b/c")
        assert (where.response, where.brokerServiceUrl) == (1, url)
        wrong = raw.ask("lookupTopic", "lookupTopicResponse", topic="non-persistent://a/b/c")
        assert (wrong.response, wrong.error) == (2, ERRORS["InvalidTopicName"])


@pytest.mark.parametrize(
    ("version", "name"),
    [("Pulsar-Java-v4.0.4", "NotAllowedError"), ("Pulsar Go 0.19", "InvalidTopicName")],
)
def test_client_does_not_repeat_the_lookup_of_a_refused_name(
    url: str, version: str, name: str
) -> None:
    """Java does not know InvalidTopicName, and repeats a request with an error unknown to it."""
    with Raw(url, connects=False) as raw:
        raw.send("connect", client_version=version, protocol_version=21)
        raw.read("connected")
        for command, answer in (
            ("partitionMetadata", "partitionMetadataResponse"),
            ("lookupTopic", "lookupTopicResponse"),
        ):
            for topic in ("non-persistent://a/b/c", "persistent://a/b/c d"):
                assert raw.ask(command, answer, topic=topic).error == ERRORS[name]


def test_a_missing_topic_stays_missing_if_the_server_makes_none(tmp_path: Path) -> None:
    with served(tmp_path / "s", creates_topics=False) as url, Raw(url) as raw:
        error = raw.ask("producer", "error", topic="no", producer_id=1)
    assert error.error == ERRORS["TopicNotFound"]


def test_server_without_http_and_tokens_loads_neither() -> None:
    """The libraries of HTTP and of tokens take longer to load than all other modules."""
    code = "import sys; from txlog.serve.app import Server; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = set(done.stdout.split())
    assert "google.protobuf" in loaded
    assert not loaded & {"cryptography", "jwt", "starlette", "uvicorn"}
