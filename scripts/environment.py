"""Owns the environment: `.venv`, made from requirements.lock with hashes, and txlog in it.

Standard library only, so that `scripts/test` and `scripts/demo` run on a machine that has Python
3.11 or newer and pip. pip's own configuration decides which package index it uses. A second run
only compares: a stamp in `.venv` has the hash of what it was made from.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements.lock"
STAMP = VENV / "made-from"


def ensure() -> Path:
    """Make `.venv` if it is missing or outdated; return its interpreter."""
    if sys.version_info < (3, 11):
        sys.exit(f"txlog needs Python 3.11 or newer, this is {sys.version.split()[0]}")
    wanted = _fingerprint()
    if PYTHON.exists() and STAMP.exists() and STAMP.read_text() == wanted:
        return PYTHON
    print("making .venv from requirements.lock ...", file=sys.stderr, flush=True)
    shutil.rmtree(VENV, ignore_errors=True)
    pip = _make_venv()
    _run([*pip, "install", "--quiet", "--require-hashes", "-r", str(LOCK)])
    _run([*pip, "install", "--quiet", "--no-deps", "--no-build-isolation", "-e", str(ROOT)])
    STAMP.write_text(wanted)
    return PYTHON


def run_in(arguments: list[str]) -> int:
    """Run `.venv`'s Python with arguments from the root of the project; return its exit code."""
    return subprocess.run([str(ensure()), *arguments], cwd=ROOT, check=False).returncode


def _fingerprint() -> str:
    """Return the hash of everything the environment depends on but the code itself."""
    digest = hashlib.sha256()
    for path in (LOCK, ROOT / "pyproject.toml"):
        digest.update(path.read_bytes())
    digest.update(f"{sys.version}\n{os.path.realpath(sys.executable)}\n{ROOT}".encode())
    return digest.hexdigest()


def _make_venv() -> list[str]:
    """Make `.venv`; return the command that is pip in it."""
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(VENV)], check=False, capture_output=True, text=True
    )
    if made.returncode == 0:
        return [str(PYTHON), "-m", "pip", "--disable-pip-version-check"]
    # Some distributions ship venv without ensurepip: then this Python's pip installs into it.
    shutil.rmtree(VENV, ignore_errors=True)
    _run([sys.executable, "-m", "venv", "--without-pip", str(VENV)])
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    return [*pip, "--python", str(PYTHON)]


def _run(command: list[str]) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(f"failed with {done.returncode}: {' '.join(command)}")
