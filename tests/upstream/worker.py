"""Owns a worker: it reads groups of tests, a JSON list in each line, runs them and prints outcomes.

    python -m tests.upstream.worker CLIENT SECONDS [SOURCES]

It runs in a network namespace of its own, see `crew`. SECONDS is the limit of a test.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
from dataclasses import asdict

from tests.upstream import launcher
from tests.upstream.suites import suite_of

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
PR_SET_PDEATHSIG = 1
IFREQ = "16sh14x"  # name of the device, flags


def main() -> None:
    """Work until there is no more to read."""
    client, limit_s, *sources = sys.argv[1:]
    _raise_loopback()
    door = launcher.listening()
    port: int = door.getsockname()[1]
    servers = os.fork()
    if servers == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with this process
        sys.stdin.close()
        os.dup2(2, 1)
        launcher.launch(door)
    door.close()
    suite = suite_of(client, sources[0] if sources else None)
    suite.prepare()
    try:
        for line in sys.stdin:
            for outcome in suite.run(json.loads(line), port, float(limit_s)):
                print(json.dumps(asdict(outcome)), flush=True)
            print(json.dumps("done"), flush=True)
    finally:
        suite.close()
        os.kill(servers, signal.SIGKILL)


def _raise_loopback() -> None:
    """Switch the loopback device on: in a new network it is off."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        request = fcntl.ioctl(device, SIOCGIFFLAGS, struct.pack(IFREQ, b"lo", 0))
        flags = struct.unpack(IFREQ, request)[1]
        fcntl.ioctl(device, SIOCSIFFLAGS, struct.pack(IFREQ, b"lo", flags | IFF_UP))


if __name__ == "__main__":
    main()
