"""Every hint installs our `txlog-store`, and the command names an unrelated `txlog` that hides it.

The tests install the wheel into a real environment. It borrows the dependencies of the environment
that runs the tests, so that no test needs a package index.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts import package
from tests import harness
from tests.source_tree import ROOT

Env = Mapping[str, str]
# The name alone is a stranger's, also with an extra; `pip uninstall txlog` is the remedy.
WRONG = re.compile(
    r"(?<!un)(?:install|inject|uv add|uvx|pipx run|download)(?: +-\S+)* +['\"]*txlog(?![\w.-])"
    r"|(?<![\w.-])txlog\[\s*[a-z{]\w*}?(?:,|\])"
)
TEXT = {".py", ".md", ".txt", ".toml", ".yml", ".yaml", ".json", ".html", ".1", ".5", ".7", ""}


def wrong_hints(text: str) -> list[str]:
    """The pieces of a text that install the distribution `txlog`, which is not ours."""
    return [match[0] for match in WRONG.finditer(text)]


def test_every_hint_installs_our_distribution() -> None:
    """Kills: a documented command that installs the unrelated distribution `txlog`."""
    for wrong in (
        *("pip install txlog", "pip install -U txlog", "uv tool install txlog", "'txlog[spark]'"),
        *("pip install 'txlog[serve]'", 'uv add "txlog[all]"', "pip install 'txlog[{extra}]'"),
    ):
        assert wrong_hints(wrong), wrong
    for right in (
        "pip install '.[serve]'", "pip install 'txlog-store[serve]'", "pip uninstall txlog",
        "uv tool install dist/txlog_store-0.2.0-py3-none-any.whl", "install txlog.service",
    ):  # fmt: skip
        assert not wrong_hints(right), right
    words = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout")
    files = [ROOT / name for name in listed.stdout.splitlines()]
    texts = {
        file: file.read_text(encoding="utf-8")
        for file in files
        if file.suffix in TEXT and file.is_file() and file != Path(__file__)
    }
    assert len(texts) > 1000, "the files of the project were not found"
    wrong_files = {str(file): wrong_hints(text) for file, text in texts.items()}
    assert {file: hints for file, hints in wrong_files.items() if hints} == {}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = package.build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")
    return path


def test_an_index_would_take_the_wheel_and_show_its_description(wheel: Path) -> None:
    """Kills: metadata or a README that an index refuses; a release checks the sdist as well."""
    package.presentable(wheel)
    with pytest.raises(package.Wrong):
        package.presentable(stranger(wheel.parent, ""))


class Environment:
    """A virtual environment that borrows the dependencies of the one that runs the tests."""

    def __init__(self, home: Path) -> None:
        self.home = home
        harness.run([sys.executable, "-m", "venv", "--without-pip", str(home)])
        (self.site,) = home.glob("lib/python*/site-packages")
        (self.site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    def install(self, file: Path) -> None:
        """Install a wheel over the installed files, without its dependencies."""
        self._uv("install", "--no-deps", "--offline", "--reinstall", str(file))

    def uninstall(self, name: str) -> None:
        """Remove the files that a distribution has listed."""
        self._uv("uninstall", name)

    def _uv(self, *words: str) -> None:
        place = ["--python", str(self.home / "bin" / "python")]
        harness.run([sys.executable, "-m", "uv", "pip", words[0], *place, "--quiet", *words[1:]])

    def run(
        self,
        program: str,
        *words: object,
        code: int = 0,
        env: Env | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its programs as a user does, without the source tree."""
        command = [str(self.home / "bin" / program), *map(str, words)]
        return harness.run(command, code=code, env={"PYTHONPATH": "", **(env or {})}, cwd=self.home)


@pytest.fixture
def installed(tmp_path: Path, wheel: Path) -> Environment:
    place = Environment(tmp_path / "environment")
    place.install(wheel)
    return place


def stranger(folder: Path, code: str) -> Path:
    """A wheel of an unrelated distribution `txlog`, whose package has this code."""
    path, info = folder / "txlog-3.1-py3-none-any.whl", "txlog-3.1.dist-info"
    files = {
        "txlog/__init__.py": code,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: txlog\nVersion: 3.1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [*(f"{name},," for name in files), f"{info}/RECORD,,"]
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": "\n".join(record) + "\n"}.items():
            archive.writestr(name, text)
    return path


TOLD = (
    "error: another distribution, txlog 3.1, has a package txlog like txlog-store, at "
    "{site}/txlog: pip uninstall txlog, then install txlog-store again with --force-reinstall\n"
)


@pytest.mark.parametrize("code", ["__version__ = '3.1'\n", "import a_dependency_that_is_missing\n"])
def test_a_stranger_installed_over_ours_is_named(
    installed: Environment, tmp_path: Path, wheel: Path, code: str
) -> None:
    """Kills: a traceback, or two packages mixed in one folder; takes each step of the remedy."""
    assert installed.run("txlog", "--version").stdout == f"txlog {package.version()}\n"
    installed.install(stranger(tmp_path, code))
    site = installed.site
    for words in (["--version"], ["init", "store"], ["doctor"]):
        done = installed.run("txlog", *words, code=1)
        assert (done.stdout, done.stderr) == ("", TOLD.format(site=site))
    installed.uninstall("txlog")  # this also removes our file that it had replaced
    done = installed.run("txlog", "--version", code=1)
    lost = f"error: {site}/txlog has lost its __init__.py: install txlog-store again with "
    assert done.stderr == lost + "--force-reinstall\n"
    installed.install(wheel)
    assert installed.run("txlog", "--version").stdout == f"txlog {package.version()}\n"


def test_a_stranger_in_front_of_ours_is_named(installed: Environment, tmp_path: Path) -> None:
    """The other package is earlier on the path, first without a distribution, then with one."""
    folder = tmp_path / "front"
    (folder / "txlog").mkdir(parents=True)
    (folder / "txlog" / "__init__.py").touch()
    done = installed.run("txlog", "--version", env={"PYTHONPATH": str(folder)}, code=1)
    assert (done.stdout, done.stderr) == (
        "",
        f"error: {folder}/txlog/__init__.py is imported in place of {installed.site}/txlog: remove "
        "it from the path of Python\n",
    )
    with zipfile.ZipFile(stranger(tmp_path, "")) as archive:
        archive.extractall(folder)
    done = installed.run("txlog", "--version", env={"PYTHONPATH": str(folder)}, code=1)
    assert (done.stdout, done.stderr) == (
        "",
        f"error: another distribution, txlog 3.1, has a package txlog like txlog-store, at "
        f"{folder}/txlog: pip uninstall txlog\n",
    )


def test_the_doctor_tells_of_a_stranger_under_ours(
    installed: Environment, tmp_path: Path, wheel: Path
) -> None:
    """Our package was installed last, so it works; uninstalling the other would break it."""
    installed.install(stranger(tmp_path, ""))
    installed.install(wheel)
    installed.run("txlog", "init", "store", "-q")
    words = ("doctor", "-S", "store", "-f", "tsv", "--columns", "name,status,fix")
    rows = dict(line.split("\t", 1) for line in installed.run("txlog", *words).stdout.splitlines())
    assert rows["installation"] == (
        "warn\tpip uninstall txlog, then install txlog-store again with --force-reinstall"
    )


def test_the_doctor_tells_of_modules_without_bytecode(installed: Environment) -> None:
    """uv writes no bytecode, and the user forbids it; the remedy in the answer helps for good."""
    installed.run("txlog", "init", "store", "-q", "--durability", "os")
    for cached in installed.site.rglob("__pycache__"):
        shutil.rmtree(cached)
    words = ("doctor", "-S", "store", "--json")

    def row() -> dict[str, str]:
        done = installed.run("txlog", *words, env={"PYTHONDONTWRITEBYTECODE": "1"})
        return next(row for row in json.loads(done.stdout) if row["name"] == "bytecode")

    told = row()
    assert told["status"] == "warn"
    assert "every command compiles the modules" in told["detail"]
    assert "(PYTHONDONTWRITEBYTECODE is set)" in told["detail"]
    *command, folder = told["fix"].split(" ")
    assert Path(folder) == installed.site
    harness.run([*command, folder])
    assert row()["status"] == "ok"
    (module,) = installed.site.glob("txlog/errors.py")
    module.write_text(module.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert "1 of " in row()["detail"], "the bytecode of a changed module is no longer valid"
