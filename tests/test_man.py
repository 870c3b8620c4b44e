"""The man pages of jobs tell the options that the commands have, and are well formed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.source_tree import ROOT
from txlog.cli import catalogue, failures
from txlog.cli.dispatch import load

PAGES = sorted((ROOT / "man" / "man1").glob("*.1"))
JOBS = sorted(path for path in catalogue.COMMANDS if path.startswith("job "))


def test_every_job_has_a_page_and_a_program_for_spark_submit() -> None:
    names = [f"txlog-{path.replace(' ', '-')}" for path in JOBS]
    assert [page.stem for page in PAGES] == names
    programs = ROOT / "src" / "txlog" / "spark" / "jobs"
    for path in JOBS:
        assert (programs / f"{path.removeprefix('job ').replace('-', '_')}.py").is_file()


@pytest.mark.parametrize("path", JOBS)
def test_a_page_has_the_options_of_its_command(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kills: an option that only the page has, or only the command."""
    page = (ROOT / "man" / "man1" / f"txlog-{path.replace(' ', '-')}.1").read_text()
    synopsis, options = (_section(page, name) for name in ("SYNOPSIS", "OPTIONS"))
    told = set(re.findall(r"^\.It Fl -([\w-]+)", options, re.MULTILINE))
    short = set(re.findall(r"^Also written\n\.Fl -([\w-]+)", options, re.MULTILINE))
    assert load(path).invoke(["-h"], _report()) == 0
    shown = capsys.readouterr().out
    known = set(re.findall(r"--([\w-]+)", shown[shown.index("Options:") :]))
    assert told == known - {"store", "format", "json", "help"} - short
    assert set(re.findall(r"Fl -([\w-]+)", synopsis)) == told
    for example in load(path).examples:
        assert example in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.skipif(shutil.which("man") is None, reason="there is no man here")
def test_a_page_gives_no_warning(page: Path) -> None:
    done = subprocess.run(
        ["man", "--warnings", "-l", str(page)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def _section(page: str, name: str) -> str:
    return page.split(f".Sh {name}\n", 1)[1].split("\n.Sh ", 1)[0]


def _report() -> failures.Report:
    return failures.Report(json=False, store=None)
