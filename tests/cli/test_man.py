"""The man pages are up to date, well formed, and complete."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.source_tree import ROOT
from txlog.cli.help import man_pages, markup
from txlog.cli.line import catalogue, dispatch
from txlog.cli.line.parameters import parameters_of
from txlog.cli.main import main
from txlog.cli.terminal import say

PATHS = sorted(catalogue.COMMANDS)
JOBS = [path for path in PATHS if path.startswith("job ")]
NAMES = man_pages.page_names()


def test_each_command_noun_and_topic_has_a_page() -> None:
    dashed = {f"txlog-{path.replace(' ', '-')}.1" for path in [*PATHS, *catalogue.NOUNS]}
    assert dashed < set(NAMES)
    assert set(NAMES) - dashed == {
        "txlog.1",
        "txlog-format.5",
        "txlog-offsets.7",
        "txlog-transactions.7",
        "txlog-formatting.7",
        "txlog-sql.7",
        "txlog-environment.7",
        "txlog-exit-codes.7",
    }


def test_every_handwritten_text_belongs_to_a_page() -> None:
    """Kills: a text in topics/ that no page shows, because its command was renamed."""
    folder = ROOT / "src" / "txlog" / "cli" / "topics"
    for path in folder.glob("*.txt"):
        assert man_pages.find(path.stem) is not None, path.stem


@pytest.mark.parametrize("path", PATHS)
def test_a_page_has_every_flag_of_its_command(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page lists the flags that Typer shows for -h, each with its meaning."""
    command = dispatch.load(path)
    assert dispatch.invoke(command, ["-h"], say.Report(json=False, store=None)) == 0
    help_text = capsys.readouterr().out
    listed = help_text.partition("\n\n")[2]
    heads = re.findall(r"^  (-.*?)(?:  |$)", listed, re.MULTILINE)
    flags_of_help = {
        name for head in heads for name in re.findall(r"(?<![\w|:-])--?[a-zA-Z][\w-]*", head)
    }
    parameters = [each for each in parameters_of(command) if not (each.of_all or each.hidden)]
    flags_of_page = {name for each in parameters for name in each.names}
    common = {"--store", "-S", "--format", "-f", "--json", "--help", "-h"}
    if command.asks:
        common |= {"--yes", "-y"}
    assert flags_of_help - common <= flags_of_page
    assert flags_of_page - {"--format"} <= set(re.findall(r"--?[\w-]+", listed)) | {
        each.name for each in parameters if not each.is_flag
    }
    assert [each.name for each in parameters if not each.help] == []
    page = markup.as_text(man_pages.page(f"txlog-{path.replace(' ', '-')}.1"))
    for each in parameters:
        assert each.name in page
    for example in command.examples:
        assert f"    {example}\n" in page


def test_every_job_has_a_program_for_spark_submit() -> None:
    programs = ROOT / "src" / "txlog" / "spark" / "jobs"
    for path in JOBS:
        program = f"{path.removeprefix('job ').replace('-', '_')}.py"
        assert (programs / program).is_file()
        page = markup.as_text(man_pages.page(f"txlog-{path.replace(' ', '-')}.1"))
        assert program in page


@pytest.mark.needs("groff")
def test_no_page_gives_a_warning() -> None:
    """All pages in one process: faster and stricter than `man --warnings` for each page."""
    pages = sorted(str(path) for path in (ROOT / "man").glob("*/*"))
    done = subprocess.run(
        ["groff", "-z", "-ww", "-mandoc", "-Tutf8", *pages],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.needs("man")
def test_man_itself_gives_no_warning() -> None:
    pages = sorted(str(path) for path in (ROOT / "man").glob("*/*"))
    done = subprocess.run(
        ["man", "--warnings", "-l", *pages], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_references_lead_to_pages() -> None:
    """Kills: SEE ALSO with the wrong section of a page, or the name of a removed command."""
    for path in (ROOT / "man").glob("*/*"):
        for name, section in re.findall(r"^\.Xr ([\w-]+) (\d)", path.read_text(), re.MULTILINE):
            assert f"{name}.{section}" in NAMES, f"{path.name} refers to {name}({section})"


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("txlog", "txlog.1"),
        ("produce", "txlog-produce.1"),
        ("txn commit", "txlog-txn-commit.1"),
        ("txlog-txn-commit", "txlog-txn-commit.1"),
        ("offsets(7)", "txlog-offsets.7"),
        ("format", "txlog-format.5"),
        ("nothing", None),
    ],
)
def test_page_is_found_by_its_usual_spellings(word: str, name: str | None) -> None:
    assert man_pages.find(word) == name


@pytest.mark.deep
def test_man_install_may_be_repeated(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/cli 8.8: the command lists the pages that it wrote; a second run writes nothing."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert main(["man", "install", "-f", "ndjson"]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {Path(row["path"]).name for row in rows} == set(NAMES)
    assert all(row["changed"] and Path(row["path"]).is_file() for row in rows)
    broken = Path(rows[3]["path"])
    broken.write_text("another version")
    assert main(["man", "install", "-f", "ndjson"]) == 0
    rows_again = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [row["path"] for row in rows_again if row["changed"]] == [str(broken)]
    assert main(["man", "path", "produce"]) == 0
    assert capfd.readouterr().out == f"{tmp_path}/man/man1/txlog-produce.1\n"
    assert main(["man", "show", "produce"]) == 0
    assert capfd.readouterr().out.startswith("txlog-produce: write messages")
    assert main(["man", "show", "prodcue"]) == 3
