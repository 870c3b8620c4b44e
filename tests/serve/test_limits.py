"""Limits on clients, the addresses that a server may listen at, and its messages to systemd."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from tests.serve.certificates import make_certificate
from txlog.errors import InvalidArgument, LimitExceeded, TryAgain, Usage
from txlog.serve.core.sockets import check_exposed, is_loopback, notify, places_of, systemd_sockets
from txlog.serve.core.tls import TlsContext
from txlog.serve.limits.limits import (
    ConnectionLimit,
    ConnectionSlot,
    Limits,
    RateLimiter,
    fit_limits,
    network_of,
)


def test_limits_are_given_by_name() -> None:
    limits = Limits.parse("--limit", ["connections=10", "memory_bytes=64MiB", "idle_timeout_ms=5s"])
    assert (limits.connections, limits.memory_bytes, limits.idle_timeout_ms) == (10, 64 << 20, 5000)
    assert limits.producers == Limits().producers
    for text in (
        "conections=1",
        "connections",
        "connections=",
        "connections=-1",
        "connections=1e3",
    ):
        with pytest.raises(InvalidArgument, match="--limit"):
            Limits.parse("--limit", [text])
    for text in ("connections=0", "memory_bytes=1KiB", "idle_timeout_ms=1ms", "producers=10000000"):
        with pytest.raises(LimitExceeded, match="it is "):
            Limits.parse("--limit", [text])


def no_drop() -> bool:
    pytest.fail("a connection was dropped")


def test_connections_are_counted_in_all_and_per_address() -> None:
    slots = ConnectionLimit(Limits(connections=3, connections_per_address=2))
    taken = [slots.arrive(address, no_drop) for address in ("a", "a", "b")]
    for slot in taken:
        slot.take(None)
    late = slots.arrive("c", no_drop)
    with pytest.raises(TryAgain, match="3 connections") as caught:
        late.take(None)
    assert caught.value.code == 509
    taken.pop().leave()
    with pytest.raises(TryAgain, match="from this address"):
        slots.arrive("a", no_drop).take(None)
    late.take(None)
    for slot in (*taken, late, late):
        slot.leave()
    assert slots.count == 0
    assert not slots._by_network


def test_a_role_leaves_connections_for_others() -> None:
    """Kills: a role, with any right or none, that occupies all connections."""
    slots = ConnectionLimit(Limits(connections=100, connections_per_address=100))

    def taken(role: str, **more: bool) -> int:
        count = 0
        try:
            while True:
                slots.arrive(role, no_drop).take(role, **more)
                count += 1
        except TryAgain as error:
            assert error.code == 509
            return count

    assert taken("first") == 44
    assert taken("second") == 22
    for at in range(15):
        assert taken(f"other {at}") > 0
    remaining = 100 - slots.count
    assert remaining > 0
    assert taken("boss", is_superuser=True) == remaining


def test_silent_connections_do_not_block_new_ones() -> None:
    """Kills: silent connections that occupy the places of real clients."""
    slots, dropped = ConnectionLimit(Limits(connecting=8, connections=2)), list[str]()

    def arrive(address: str, name: str) -> ConnectionSlot:
        def drop() -> bool:
            dropped.append(name)
            return True

        return slots.arrive(address, drop)

    for at in range(20):
        arrive("10.0.0.1", f"first {at}")
    assert dropped == [
        f"first {at}" for at in range(16)
    ]  # the oldest connections of the same address
    dropped.clear()
    for at in range(20):
        arrive("10.0.0.2", f"second {at}")
    assert all(name.startswith("second") for name in dropped)
    dropped.clear()
    good = [arrive(f"10.0.1.{at}", "good") for at in range(5)]
    assert "good" not in dropped  # the address with most connections loses one instead
    assert slots.waiting <= 8
    assert not slots.is_full
    good[0].take(None)
    assert slots.count == 1
    good[0].leave()
    good[0].leave()
    assert slots.count == 0


def test_a_client_is_not_dropped_while_the_server_is_late() -> None:
    """Kills: a server that drops most of a thousand clients that reconnect at once, unread."""
    slots = ConnectionLimit(Limits(connecting=4))
    for _ in range(4):
        slots.arrive("10.0.0.1", lambda: False)
    assert slots.is_full  # the listener accepts no more for a moment
    slots.arrive("10.0.0.2", no_drop)
    assert slots.is_full
    assert slots.waiting == 5


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_a_network_of_ipv6_is_one_address(address: str, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.parametrize("descriptors", [16, 64, 256, 1_024, 4_096, 20_000, 1 << 20])
def test_limits_fit_the_descriptors_of_the_process(descriptors: int) -> None:
    """Kills: clients within their limits that leave the store no descriptor for its journal."""
    told = list[str]()
    fitting = fit_limits(
        Limits(), descriptors, lambda event, facts: told.append(str(facts["limit"]))
    )
    taken = fitting.connections + fitting.connecting + fitting.consumers_in_all
    assert taken <= descriptors - min(512, descriptors // 3)
    assert min(fitting.connections, fitting.connecting, fitting.consumers_in_all) > 0
    assert (told == []) == (fitting == Limits())
    assert (fitting == Limits()) == (descriptors > 100_000)
    assert fitting.connections_per_address <= fitting.connections


def test_a_pace_is_held_and_a_burst_of_a_second_is_free() -> None:
    now = [0.0]
    pace = RateLimiter(100, lambda: now[0])
    assert pace.spend(100) == 0
    assert pace.spend(50) == 0.5
    now[0] = 1.5
    assert pace.spend(0) == 0
    assert RateLimiter(0, lambda: now[0]).spend(10**9) == 0


# --- who may be listened to ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (("127.0.0.1", 1), True),
        (("127.9.9.9", 1), True),
        (("::1", 1, 0, 0), True),
        (("::ffff:127.0.0.1", 1, 0, 0), True),
        ("/run/txlog.sock", True),
        (("0.0.0.0", 1), False),
        (("::", 1, 0, 0), False),
        (("10.0.0.1", 1), False),
        (("::ffff:10.0.0.1", 1, 0, 0), False),
        (("fe80::1%eth0", 1, 0, 2), False),
        (("localhost", 1), False),
        ((), False),
        (None, False),
    ],
)
def test_loopback_addresses_are_recognised(name: object, expected: bool) -> None:
    assert is_loopback(name) == expected


def test_public_address_needs_tls_and_authentication() -> None:
    with socket.socket() as bound:
        bound.bind(("0.0.0.0", 0))
        for has_tls, has_auth, missing in (
            (False, False, "--tls-cert FILE and --tls-key FILE, and --auth FILE, or --insecure"),
            (True, False, "add --auth FILE, or --insecure"),
            (False, True, "add --tls-cert FILE and --tls-key FILE, or --insecure"),
        ):
            with pytest.raises(Usage, match=missing):
                check_exposed(
                    "--pulsar", bound, has_tls=has_tls, has_auth=has_auth, is_insecure=False
                )
            check_exposed("--pulsar", bound, has_tls=has_tls, has_auth=has_auth, is_insecure=True)
        check_exposed("--pulsar", bound, has_tls=True, has_auth=True, is_insecure=False)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        check_exposed("--pulsar", bound, has_tls=False, has_auth=False, is_insecure=False)


def test_places_for_offloads_have_names() -> None:
    assert places_of("--offload-to", ["a=/mnt/a", "b=s3://bucket/x?region=y"]) == {
        "a": "/mnt/a",
        "b": "s3://bucket/x?region=y",
    }
    for texts in (["a"], ["=/x"], ["a=x"], ["a="], ["a b=/x"], ["a=/x", "a=/y"], ["../a=/x"]):
        with pytest.raises(InvalidArgument, match="--offload-to"):
            places_of("--offload-to", texts)


# --- TLS -------------------------------------------------------------------------------------


def test_a_certificate_is_replaced_while_the_server_runs(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "first.example")
    tls = TlsContext(cert, key)
    assert tls.context.minimum_version == ssl.TLSVersion.TLSv1_2
    other, other_key = make_certificate(tmp_path / "new", "second.example")
    old = cert.read_bytes()
    cert.write_bytes(other.read_bytes())
    with pytest.raises(InvalidArgument, match="no TLS with"):
        tls.reload()  # the key does not belong to the certificate
    assert tls.context.cert_store_stats() is not None
    key.write_bytes(other_key.read_bytes())
    tls.reload()
    assert cert.read_bytes() != old


def test_bad_tls_files_are_refused_in_one_line(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "a.example")
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    for files in ((tmp_path / "no", key), (cert, tmp_path / "no"), (empty, key), (key, cert)):
        with pytest.raises(InvalidArgument, match="no TLS") as caught:
            TlsContext(*files)
        assert "\n" not in str(caught.value)
    with pytest.raises(InvalidArgument, match="no TLS"):
        TlsContext(cert, key, empty)


# --- systemd ---------------------------------------------------------------------------------


def test_sockets_for_another_process_are_not_taken() -> None:
    for environment in (
        {},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1"},
        {"LISTEN_PID": "7", "LISTEN_FDS": "0"},
        {"LISTEN_PID": "7", "LISTEN_FDS": "99"},
        {"LISTEN_PID": "7", "LISTEN_FDS": "x"},
        {"LISTEN_PID": "7"},
    ):
        assert systemd_sockets(environment, 7) == {}


@pytest.mark.parametrize("names", [None, "", "txlog.socket", "pulsar2"])
def test_inherited_socket_without_a_listener_is_refused(names: str | None) -> None:
    """Kills: clients that connect to a socket of systemd, and wait there for ever."""
    environment = {"LISTEN_PID": "7", "LISTEN_FDS": "1"}
    if names is not None:
        environment["LISTEN_FDNAMES"] = names
    with pytest.raises(InvalidArgument, match="neither pulsar nor http"):
        systemd_sockets(environment, 7)


def test_systemd_gets_its_notifications(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.bind(path)
        notify({"NOTIFY_SOCKET": path}, "READY=1")
        assert notifications.recv(100) == b"READY=1"
    notify({"NOTIFY_SOCKET": path}, "READY=1")  # no process listens any more
    notify({"NOTIFY_SOCKET": "relative"}, "READY=1")
    notify({}, "READY=1")
