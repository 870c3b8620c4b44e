"""Owns the virtual machine: its kernel, its disks and the program that it runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
KERNEL = "linux.uml"
MEMORY = "1G"
DISKS_MAX = 15  # of one machine, besides the first
BOUND_S = 600
ENDED = "the program ended with code"  # says init.sh


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A file system of the machine: how to make and to mount it, and the size of its disk."""

    type: str
    make: Sequence[str]
    options: str
    size: int


FILE_SYSTEMS = {
    "ext4-ordered": FileSystem("ext4", ("mkfs.ext4", "-qF", "-b", "4096"), "data=ordered", 128),
    "ext4-journal": FileSystem("ext4", ("mkfs.ext4", "-qF", "-b", "4096"), "data=journal", 128),
    "xfs": FileSystem("xfs", ("mkfs.xfs", "-qf"), "defaults", 320),
    "btrfs": FileSystem("btrfs", ("mkfs.btrfs", "-qf"), "defaults", 320),
}


class Unavailable(Exception):
    """A program that the machine needs is not here."""


class Broken(Exception):
    """The machine did not do its work; the text ends with its console."""


def missing(names: Iterable[str]) -> list[str]:
    """Programs that machines with these file systems need and that are not on PATH."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    wanted = [KERNEL, "cc", *sorted({FILE_SYSTEMS[name].make[0] for name in names})]
    return [name for name in wanted if shutil.which(name, path=path) is None]


def library(folder: Path) -> Path:
    """Compile the library that records writes and flushes."""
    target = folder / "device.so"
    words = ["cc", "-O1", "-Wall", "-Wextra", "-fPIC", "-shared", "-o"]
    subprocess.run([*words, str(target), str(HERE / "device.c")], check=True)
    return target


def blank(system: FileSystem, path: Path) -> None:
    """Make an empty disk with a file system."""
    with path.open("wb") as file:
        file.truncate(system.size << 20)
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    subprocess.run([*system.make, str(path)], check=True, env=environment, capture_output=True)


def boot(
    folder: Path,
    disks: Sequence[Path],
    job: Mapping[str, Any],
    name: str,
    more: Mapping[str, str] | None = None,
    interface: str = "",
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Run a job in a new machine, then cut its power; raises Broken.

    name:      of the job's file in `folder`, and of its console
    interface: of this machine, that leads to it
    meanwhile: what to do outside while it runs
    """
    (folder / f"{name}.job").write_text(json.dumps(job))
    console = folder / f"{name}.console"
    words = [
        KERNEL,
        f"mem={MEMORY}",
        "root=none",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        f"init={HERE / 'init.sh'}",
        "con=null",
        "con0=fd:0,fd:1",
        "ssl=null",
        "quiet",
        f"uml_dir={folder}/",
        *(f"ubd{number}={path}" for number, path in enumerate(disks)),
        *([f"eth0=tuntap,{interface}"] if interface else []),
        f"POWERCUT_PYTHON={sys.executable}",
        f"POWERCUT_ROOT={ROOT}",
        f"POWERCUT_OUT={folder}",
        f"POWERCUT_JOB={name}.job",
    ]
    machine = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(more or {})},
        start_new_session=True,
    )
    ended = threading.Event()
    reader = threading.Thread(target=follow, args=(machine, console, ended))
    reader.start()
    try:
        meanwhile()
        is_over = ended.wait(BOUND_S)
    finally:
        os.killpg(machine.pid, signal.SIGKILL)  # this is how the power goes off
        machine.wait()
        reader.join()
    if not is_over:
        raise Broken(f"it did not end within {BOUND_S} s: {tail(console)}")
    if f"{ENDED} 0" not in console.read_text(errors="replace"):
        raise Broken(tail(console))


def follow(machine: subprocess.Popen[bytes], console: Path, ended: threading.Event) -> None:
    """Copy what the machine prints, and tell when its program has ended, or the machine has."""
    assert machine.stdout is not None
    with console.open("wb", buffering=0) as out, machine.stdout as lines:
        for line in lines:
            out.write(line)
            if ENDED.encode() in line:
                ended.set()
    ended.set()


def tail(console: Path) -> str:
    """The last lines of a console."""
    return "\n".join(console.read_text(errors="replace").splitlines()[-30:])


# --- the network ----------------------------------------------------------------------------------

NETWORKS = 200  # machines with a network at one time
BITS = 30


class Network(NamedTuple):
    """An interface of this machine, and the addresses at both of its ends."""

    interface: str
    outside: str
    inside: str


@contextmanager
def network() -> Iterator[Network]:
    """A network with one machine; raises Unavailable where we may not make one."""
    for number in range(NETWORKS):
        made = Network(f"powercut{number}", f"10.213.{number}.1", f"10.213.{number}.2")
        words = ["ip", "tuntap", "add", "dev", made.interface, "mode", "tap"]
        if subprocess.run(words, check=False, capture_output=True).returncode == 0:
            break
    else:
        raise Unavailable("`ip tuntap add` makes no network to a machine; it needs root")
    try:
        address = ["addr", "add", f"{made.outside}/{BITS}", "dev", made.interface]
        for words in (address, ["link", "set", made.interface, "up"]):
            subprocess.run(["ip", *words], check=True, capture_output=True)
        yield made
    finally:
        subprocess.run(["ip", "link", "delete", made.interface], check=False, capture_output=True)
