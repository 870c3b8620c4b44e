"""`txlog serve` as a service: sockets of systemd, pid files, signals, a structured log."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import signal
import socket
from pathlib import Path

import pytest

import txlog
from tests.harness import Server, python
from tests.serve.served import Raw
from txlog.engine.storage.disk.locks import PidFile
from txlog.errors import AlreadyExists
from txlog.serve.pulsar.wire import encode_command

pytestmark = pytest.mark.deep
NO_HTTP = ("--pulsar", "127.0.0.1:0", "--http", "off")
BOTH = ("--pulsar", "127.0.0.1:0", "--http", "127.0.0.1:0")


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "store")
    txlog.init(path)
    return path


def listener(host: str = "127.0.0.1") -> socket.socket:
    bound = socket.create_server(
        (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
    )
    bound.set_inheritable(True)
    return bound


def port(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


def activated(store: str, names: str, sockets: list[socket.socket]) -> Server:
    """A server that inherits sockets."""
    numbers = [bound.fileno() for bound in sockets]
    wrapped = python("activate", names, ",".join(map(str, numbers)))
    return Server(store, wrapped=wrapped, pass_fds=numbers)


def test_sockets_of_systemd_are_served_and_outlive_a_server(store: str) -> None:
    """Kills: a server that opens its own port besides, and clients that lose their connection."""
    pulsar, web = listener(), listener()
    early = socket.create_connection(("127.0.0.1", port(web)))  # before there is a server
    with pulsar, web, early:
        for turn in range(2):
            with activated(store, "pulsar:http", [pulsar, web]) as server:
                server.until("http://")
                early.sendall(
                    b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                assert b" 200 " in early.recv(1 << 16)
                with Raw(f"pulsar://127.0.0.1:{port(pulsar)}") as raw:
                    response = raw.ask("producer", "producer_success", topic="t", producer_id=1)
                    assert response.producer_ready
                early.close()
                early = socket.create_connection(("127.0.0.1", port(web)))
                with Server(store, *NO_HTTP) as other:
                    other.until("pulsar://")  # a second server with its own sockets also serves
                assert server.end(signal.SIGTERM)[0] == 0, turn
            early.close()
            # no server accepts now, but a client can connect, and waits for the next server
            early = socket.create_connection(("127.0.0.1", port(web)))
        early.close()


def test_one_name_may_have_several_sockets(store: str) -> None:
    """Kills: a socket for the other version of IP that the server ignores."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("there is no IPv6 here")
    four, six = listener(), listener("::1")
    with four, six, activated(store, "pulsar:pulsar", [four, six]) as server:
        server.until("pulsar://")
        for host, bound in (("127.0.0.1", four), ("::1", six)):
            with socket.create_connection((host, port(bound))) as client:
                client.sendall(encode_command("connect", client_version="x", protocol_version=19))
                assert client.recv(1 << 16)


def test_a_socket_without_a_known_name_ends_the_start(store: str) -> None:
    with listener() as bound, activated(store, "txlog.socket", [bound]) as server:
        code, output = server.end()
    assert (code, "FileDescriptorName=pulsar" in output) == (2, True), output


def test_systemd_is_notified_of_start_and_stop(store: str, tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.bind(path)
        notifications.settimeout(60)
        with Server(store, *NO_HTTP, env={"NOTIFY_SOCKET": path}) as server:
            assert notifications.recv(100) == f"READY=1\nMAINPID={server.pid}".encode()
            server.end(signal.SIGTERM)
            assert notifications.recv(100) == b"STOPPING=1"


# --- pid files -------------------------------------------------------------------------------


def test_pid_file_belongs_to_the_running_server(store: str, tmp_path: Path) -> None:
    """Kills: a second server that takes the file away from the first, a stale file that keeps a
    server from starting, a file that is no pid file and is overwritten."""
    file = tmp_path / "txlog.pid"
    options = (*NO_HTTP, "--pidfile", str(file))
    file.write_text(f"{os.getpid()}\n")  # alive, and no server
    with Server(store, *options) as server:
        server.until("pulsar://")
        assert file.read_text() == f"{server.pid}\n"
        with Server(store, *options) as second:
            code, output = second.end()
        assert (code, f"is of process {server.pid}, which serves" in output) == (4, True)
        assert file.read_text() == f"{server.pid}\n"
        server.kill()
    assert file.exists()  # stale
    with Server(store, *options) as server:
        server.until("pulsar://")
        assert file.read_text() == f"{server.pid}\n"
        server.end(signal.SIGTERM)
    assert not file.exists()
    file.write_text("my thesis")
    with Server(store, *options) as server:
        code, output = server.end()
    assert (code, "has no process id" in output) == (4, True), output
    assert file.read_text() == "my thesis"


def test_lock_of_a_pid_file_shows_whether_its_server_runs(tmp_path: Path) -> None:
    """In two containers that share a volume both are process 1, and see no other process."""
    path = str(tmp_path / "txlog.pid")
    first, second, third = PidFile(path), PidFile(path), PidFile(path)
    first.begin()
    second.begin()  # the file has no pid yet
    first.write()
    with pytest.raises(AlreadyExists, match="which serves"):
        third.begin()
    with pytest.raises(AlreadyExists, match="which serves"):
        second.write()
    second.end()
    assert Path(path).read_text() == f"{os.getpid()}\n"
    first.end()
    assert not list(tmp_path.iterdir())
    third.begin()
    third.write()
    third.end()


def test_a_pid_file_of_another_is_left(store: str, tmp_path: Path) -> None:
    file = tmp_path / "txlog.pid"
    options = (*NO_HTTP, "--pidfile", str(file))
    with Server(store, *options) as server:
        server.until("pulsar://")
        file.write_text("1\n")
        server.end(signal.SIGTERM)
    assert file.read_text() == "1\n"


# --- signals and log -------------------------------------------------------------------------

SENT = 2_000


def test_sigterm_answers_and_stores_received_messages(store: str) -> None:
    """Kills: a receipt without its message, a message that is stored twice, a server that hangs."""
    with Server(store, *BOTH) as server:
        pulsar, web = server.urls
        events = http.client.HTTPConnection(web.partition("://")[2], timeout=60)
        with Raw(pulsar) as raw, Raw(pulsar):  # the second one is idle
            raw.ask("producer", "producer_success", topic="t", producer_id=1, producer_name="p")
            events.request("GET", "/topics/persistent/public/default/t/events")
            tail = events.getresponse()
            for number in range(SENT):
                head = {"sequence_id": number}
                raw.message("send", b"%d" % number, head, producer_id=1, sequence_id=number)
            code = server.end(signal.SIGTERM)[0]
            receipts = []
            with contextlib.suppress(EOFError, ConnectionError):
                while True:
                    body = raw.frame().body
                    if hasattr(body, "sequence_id"):
                        receipts.append(body.sequence_id)
            tail.read()  # it has an end
        events.close()
    assert code == 0
    with txlog.open(store) as client:
        values = [int(message.value or b"-1") for message in client.reader("t")]
    assert values == list(range(len(values)))
    assert receipts == list(range(len(receipts)))
    assert len(receipts) <= len(values)


@pytest.mark.parametrize(("seconds", "code"), [(2, 10), (60, 0)])
def test_blocked_call_does_not_delay_the_stop(store: str, seconds: int, code: int) -> None:
    """Kills: SIGTERM that waits for a blocked call, which here waits for another process."""
    with Server(store, *NO_HTTP, "--limit", f"stop_timeout_ms={seconds}s") as server:
        (pulsar,) = server.urls
        with Raw(pulsar) as raw, open(f"{store}/lock", "rb") as lock:
            raw.ask("producer", "producer_success", topic="t", producer_id=1, producer_name="p")
            fcntl.flock(lock, fcntl.LOCK_EX)
            raw.message("send", b"x", {"sequence_id": 0}, producer_id=1, sequence_id=0)
            server.signal(signal.SIGTERM)
            if code == 0:
                fcntl.flock(lock, fcntl.LOCK_UN)
            assert server.end(signal.SIGTERM)[0] == code


def test_the_log_is_an_object_a_line(store: str, tmp_path: Path) -> None:
    (tmp_path / "secret.key").write_bytes(bytes(range(32)))
    rules = tmp_path / "rules.toml"
    rules.write_text('[tokens]\nsecret_key = "secret.key"\n')
    with Server(store, *NO_HTTP, "--auth", str(rules)) as server:
        [url] = server.urls
        with Raw(url, connects=False) as raw:
            raw.send("connect", client_version="a\nb", protocol_version=19)
            raw.read("error")
        refused = json.loads(server.until("refused"))
        assert {"level", "time", "event", "peer", "reason"} <= refused.keys()
        assert refused["level"] == "warning"
        rules.write_text("what = 1")
        server.signal(signal.SIGHUP)
        failed = json.loads(server.until("is not known"))
        assert (failed["event"], failed["what"]) == ("failed", "rules")
        _, rest = server.end(signal.SIGTERM)
    lines = map(json.loads, [*server.heard, *rest.splitlines()])
    assert all({"level", "time"} <= line.keys() for line in lines)
