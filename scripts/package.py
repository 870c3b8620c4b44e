"""Build the wheel and the sdist of txlog, and check them by an installation.

usage: python -m scripts.package [FOLDER]

The script first looks for the version in CHANGELOG.md: its section must have a date. It leaves the
two files in FOLDER, by default build/dist. Then pip installs the wheel, with the dependencies that
it declares and nothing else, into a fresh environment. There the script prints the version of
txlog, stores a message and reads it, and looks for the man pages, completion, types and invoices.
`uv tool` and pipx install it, too. twine reads both files, and the sdist must build the same wheel.
The exit code is 1, with one line, when something is wrong, and 3 when no package index can be
reached.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNREACHED = 3
SHELLS = ("bash", "zsh", "fish")
_NO_INDEX = (
    *("NewConnectionError", "ConnectTimeoutError", "Name or service not known"),
    *("error sending request", "Could not connect"),  # uv
)


class Wrong(Exception):
    """A built file is not as users should get it."""


class NoIndex(Exception):
    """No package index answers."""


def main() -> int:
    """Build into a folder and check; 0, 1 or UNREACHED."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "dist")
    folder = parser.parse_args().folder.resolve()
    try:
        release_date((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version())
        wheel, sdist = build(ROOT, folder)
        presentable(wheel, sdist)
        same(wheel, sdist)
        with tempfile.TemporaryDirectory() as place:
            installed(wheel, Path(place))
            installed_as_tool(wheel, Path(place))
    except NoIndex as error:
        print(f"not checked: {error}", file=sys.stderr)
        return UNREACHED
    except Wrong as error:
        print(f"wrong: {error}", file=sys.stderr)
        return 1
    print(f"{wheel}\n{sdist}")
    return 0


def release_date(changelog: str, version: str) -> str:
    """The date in the heading of a version's section, `## 0.2.0 - 2026-11-28`; raises Wrong."""
    heading = re.search(rf"^## {re.escape(version)} - (.+)$", changelog, re.MULTILINE)
    if heading is None:
        raise Wrong(f"CHANGELOG.md has no section for version {version}")
    if re.fullmatch(r"\d{4}-\d\d-\d\d", heading[1]) is None:
        raise Wrong(f"CHANGELOG.md has no date for version {version}: {heading[1]}")
    return heading[1]


def build(source: Path, folder: Path, *targets: str) -> list[Path]:
    """Make the wheel and the sdist of a source tree, or only `targets`; returns their paths."""
    made: list[Path] = []
    for target in targets or ("wheel", "sdist"):
        words = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
        _run(words, source)
        name = f"txlog_store-{version()}*{'.whl' if target == 'wheel' else '.tar.gz'}"
        made += folder.glob(name)
    return made


def presentable(*files: Path) -> None:
    """Raise Wrong if an index would refuse a file, or could not show its description."""
    _run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], files[0].parent)


def same(wheel: Path, sdist: Path) -> None:
    """Raise Wrong if the sdist builds another wheel."""
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(sdist) as archive:
            archive.extractall(place, filter="data")
        (source,) = Path(place).iterdir()
        (again,) = build(source, Path(place) / "dist", "wheel")
        one, other = contents(wheel), contents(again)
    different = sorted(name for name in one | other if one.get(name) != other.get(name))
    if different:
        raise Wrong(f"the sdist builds another wheel: {', '.join(different[:5])}")


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel, by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def installed(wheel: Path, place: Path) -> None:
    """Install a wheel into a fresh environment below `place` and use it; raises Wrong, NoIndex."""
    home = place / "environment"
    _run([sys.executable, "-m", "venv", "--without-pip", str(home)], place)
    if importlib.util.find_spec("pip") is None:  # uv made this environment
        _run([sys.executable, "-m", "ensurepip"], place)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(home)]
    _run([*pip, "install", "--quiet", str(wheel)], place)
    txlog, store = str(home / "bin" / "txlog"), str(place / "store")
    _expect(_run([txlog, "--version"], place), version())
    _run([txlog, "init", store], place)
    _run([txlog, "-S", store, "produce", "orders", "--create", "-m", "hello"], place)
    _expect(_run([txlog, "-S", store, "consume", "orders", "-f", "raw"], place), "hello")
    _expect(_run([txlog, "man", "show", "produce"], place), "produce")
    for shell in SHELLS:
        _expect(_run([txlog, "completion", "show", shell], place), "txlog")
    pages = {path.name for path in (home / "share" / "man").glob("man*/*")}
    wanted = {path.name for path in (ROOT / "man").glob("man*/*")}
    if pages != wanted or not pages:
        raise Wrong(f"man pages: {len(pages)} of {len(wanted)} are installed")
    (package,) = home.glob("lib/python*/site-packages/txlog")
    for name in ("py.typed", "data/online-retail.parquet", "data/README.md"):
        if not (package / name).is_file():
            raise Wrong(f"txlog/{name} is not in the wheel")


def installed_as_tool(wheel: Path, place: Path) -> None:
    """Install a wheel with `uv tool` and with pipx, below `place`; raises Wrong, NoIndex."""
    for tool, *words in (("uv", "tool", "install"), ("pipx", "install")):
        home = place / tool
        places = {
            **{"UV_TOOL_DIR": str(home), "UV_TOOL_BIN_DIR": str(home / "programs")},
            **{"PIPX_HOME": str(home), "PIPX_BIN_DIR": str(home / "programs")},
            "PIPX_MAN_DIR": str(home / "man"),
        }
        python = ["--python", sys.executable]
        _run([sys.executable, "-m", tool, *words, *python, str(wheel)], place, places)
        _expect(_run([str(home / "programs" / "txlog"), "--version"], place), version())


def version() -> str:
    """The version in pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text)["project"]["version"])


def _expect(printed: str, wanted: str) -> None:
    if wanted not in printed:
        raise Wrong(f"{wanted} is not in: {printed[:200]}")


def _run(words: list[str], folder: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a program without our environment; returns its output. Raises Wrong, NoIndex."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TXLOG_", "PYTHON", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        words, cwd=folder, check=False, capture_output=True, text=True, env={**kept, **(env or {})}
    )
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.strip() or done.stdout.strip()
    if any(word in said for word in _NO_INDEX):
        raise NoIndex("no package index can be reached")
    raise Wrong(f"{' '.join(words)} ended with {done.returncode}: {said[-400:]}")


if __name__ == "__main__":
    sys.exit(main())
