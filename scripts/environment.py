"""Owns the environment: `.venv`, made from the lock files with hashes, and txlog in it.

Standard library only, so that `scripts/test` and `scripts/demo` run on a machine that has Python
3.11 or newer and pip. There are two levels. DEMO has what txlog needs and no more; TEST adds Spark,
Java and the tools of the tests to the same `.venv`. uv installs where it is on PATH, otherwise pip
does. Their own configuration decides which package index they use. A second run only compares: a
stamp in `.venv` has the hash of what it was made from, and its level.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
# Not the one in `.venv`, which would delete itself.
INTERPRETER: str = getattr(sys, "_base_executable", sys.executable)
STAMP = VENV / "made-from"
_NEWS = re.compile(r"\s*(Collecting|Downloading|Downloaded|Installing|Prepared|Building) .*")


class Level(NamedTuple):
    """What `.venv` has: the packages of a lock file."""

    name: str
    lock: Path
    purpose: str


DEMO = Level(
    "demo", ROOT / "requirements-demo.lock", "what txlog needs; scripts/test adds the rest"
)
TEST = Level("test", ROOT / "requirements.lock", "with Spark, Java and the tools of the tests")


def ensure(level: Level = TEST) -> Path:
    """Make `.venv` if it is missing or outdated, or add what it lacks; return its interpreter."""
    if sys.version_info < (3, 11):
        sys.exit(f"txlog needs Python 3.11 or newer, this is {sys.version.split()[0]}")
    wanted = _fingerprint()
    made_from, _, has = STAMP.read_text().partition(" ") if STAMP.exists() else ("", "", "")
    is_current = PYTHON.exists() and made_from == wanted
    if is_current and has in (level.name, TEST.name):
        return PYTHON
    began = time.monotonic()
    count = _packages(level)
    _say(f"installing {count} packages into .venv: {level.purpose}")
    if not is_current:
        shutil.rmtree(VENV, ignore_errors=True)
        _run([INTERPRETER, "-m", "venv", "--without-pip", str(VENV)])
    _install(["--require-hashes", "-r", str(level.lock)], count)
    _install(["--no-deps", "--no-build-isolation", "-e", str(ROOT)], 0)
    # Python may be forbidden to write bytecode, and would then compile txlog at each command.
    _quiet([str(PYTHON), "-m", "compileall", "-q", str(ROOT / "src")])
    STAMP.write_text(f"{wanted} {level.name}")
    _say(f".venv is ready: {_megabytes()} MB in {time.monotonic() - began:.0f} s")
    return PYTHON


def run_in(arguments: list[str]) -> int:
    """Run `.venv`'s Python with arguments from the root of the project; return its exit code."""
    return subprocess.run([str(ensure()), *arguments], cwd=ROOT, check=False).returncode


def _fingerprint() -> str:
    """Return the hash of everything the environment depends on but the code itself."""
    digest = hashlib.sha256()
    for path in (DEMO.lock, TEST.lock, ROOT / "pyproject.toml"):
        digest.update(path.read_bytes())
    digest.update(f"{sys.version}\n{os.path.realpath(INTERPRETER)}\n{ROOT}".encode())
    return digest.hexdigest()


def _packages(level: Level) -> int:
    """How many packages a lock has for this system; those of others have a marker."""
    entries = re.findall(r"^[a-z].*==.*", level.lock.read_text(), re.MULTILINE)
    return sum("== 'win32'" not in entry for entry in entries)


def _install(arguments: list[str], count: int) -> None:
    """Install into `.venv` with uv, or with pip where uv is missing or fails."""
    uv = shutil.which("uv")
    if uv is not None:
        into = [uv, "pip", "install", "--python", str(PYTHON), "--compile-bytecode"]
        if _watched([*into, "--no-progress", *arguments], count) is None:
            return
        _say("uv could not install them; pip tries")
    command = [*_pip(), "install", "--progress-bar", "off", *arguments]
    output = _watched(command, count)
    if output is not None:
        sys.exit(f"{output}failed: {' '.join(command)}")


def _pip() -> list[str]:
    """The command of a pip that installs into `.venv`: this Python's, otherwise its own."""
    pip = [INTERPRETER, "-m", "pip", "--disable-pip-version-check"]
    if _quiet([*pip, "--version"]):
        return [*pip, "--python", str(PYTHON)]
    _run([str(PYTHON), "-m", "ensurepip"])
    return [str(PYTHON), "-m", "pip", "--disable-pip-version-check"]


def _watched(command: list[str], count: int) -> str | None:
    """Run an installer; a terminal shows one line of progress. Returns its output if it fails."""
    is_terminal = sys.stderr.isatty()
    lines, packages = list[str](), 0
    process = subprocess.Popen(
        command, cwd=ROOT, env=_environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if is_terminal and _NEWS.match(line):
            packages += "Collecting" in line
            number = f"{min(packages, count)} of {count}: " if packages and count else ""
            news = number + line.strip().partition(" (from ")[0]
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{news[:width]}")
            sys.stderr.flush()
    if is_terminal:
        sys.stderr.write("\r\x1b[K")
    return None if process.wait() == 0 else "".join(lines[-20:])


def _megabytes() -> int:
    """What `.venv` takes on the disk."""
    files = (os.lstat(Path(place, name)) for place, _, names in os.walk(VENV) for name in names)
    return sum(file.st_blocks * 512 for file in files) // 1_000_000


def _environment() -> dict[str, str]:
    unwanted = ("PYTHONPATH", "PYTHONHOME")
    return {name: value for name, value in os.environ.items() if name not in unwanted}


def _quiet(command: list[str]) -> bool:
    """Run a command whose output nobody needs; return whether it succeeded."""
    done = subprocess.run(command, cwd=ROOT, env=_environment(), check=False, capture_output=True)
    return done.returncode == 0


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, env=_environment(), check=False)
    if done.returncode != 0:
        sys.exit(f"failed with {done.returncode}: {' '.join(command)}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
