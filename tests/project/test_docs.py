"""The documents are true: the tour and the examples run, the exit codes match the program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import txlog
from scripts import decisions, ready, released
from tests.source_tree import ROOT, SOURCE
from tests.tiers import graded
from txlog import Client, Consumer, Message, Producer
from txlog.client.topics.subscription import SubscriptionHandle
from txlog.client.topics.topic import TopicHandle

LINES_MAX = {
    "README.md": 120, "docs/watermarks.md": 210, "ARCHITECTURE.md": 310, "docs/format.md": 435,
    "CONTRIBUTING.md": 170, "docs/analytics.md": 250, "docs/cluster.md": 100,
    "docs/tutorial.md": 260, "docs/cookbook.md": 327, "docs/python.md": 385, "docs/index.md": 60,
    "docs/testing.md": 60, "docs/databases.md": 180, "docs/crashtest.md": 110,
    "docs/page.md": 60, "docs/flights.md": 130,
    "docs/serve.md": 350, "docs/http.md": 80,
    "docs/guarantees.md": 40, "docs/comparison.md": 40, "docs/copies.md": 32,
    "docs/exit-codes.md": 35, "docs/container.md": 40, "docs/demonstration.md": 50,
    "docs/features.md": 60,
    "docs/coming-from-kafka.md": 150, "docs/coming-from-pulsar.md": 40,
}  # fmt: skip
PRINTED = {  # by the examples in Python, one text an example
    "README.md": [r"\[b'bill for 3 cups'\]\n"],
    "docs/watermarks.md": [r"before 2000 there were 1150\n", ""],
    "docs/databases.md": [
        r"\[b'3 cups'\]\n\[\('3 cups',\)\]\n",
        r"\[\('3 cups',\)\]\n",
        r"2\n",
        r"b'5 plates'\n",
    ],
    "docs/testing.md": [r"\[b'3 cups'\]\nTrue\n"],
    "docs/python.md": [
        "",
        r"\['invoices', 'orders'\]\n",
        r"\d \d+:0\n2\nFalse\nTrue\n",
        r"True InvalidArgument\('partition 4 is not one of 0 to 3'\)\n",
        r"1 \{'cups': 3, 'who': 'ana'\} 3\n1 \{.*\} 1\n1 \{.*'eve'\} 2\n\['\{\"type.*\n",
        r"1\n\[b'1 lamp', b'1 spoon', b'2 cups', b'3 cups'\]\n4 \['topic', 'partition', .*\n",
        r"who  ms\n---  --\nana  42\n\(1 row\)\n\[\('ana', 42\)\] \['who', 'ms'\]\n",
        r"1\n\[b'ada@two.example'\]\n1 b'ada@two.example' None 2\n",
        r"COMMITTED 4\n\d+:1 aborted\n",
        "",
        r"4 4 1\n",
        r"False 100000\nTrue 100000\n",
        r"302 False topic odrers does not exist \| did you mean orders\?\n",
    ],
}
# The Python of docs/analytics.md is run by tests/spark.
TOURS = [
    "README.md", "docs/watermarks.md", "docs/analytics.md", "docs/tutorial.md",
    "docs/coming-from-kafka.md",
]  # fmt: skip
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "README.md", ROOT / "data" / "README.md",
]  # fmt: skip
NOTES = sorted((ROOT / "docs" / "design").glob("*.md"))
SPECIFICATIONS = [f"docs/spec/{file.name}" for file in sorted((ROOT / "docs/spec").glob("*.md"))]
INNER = {"short", "name", "numbers", "cutoff"}  # of handles: for txlog's own layers
_DURATION = re.compile(r"\b\d+(\.\d+)?(ms|s|m)\b")
_MARK = "=== "


@pytest.mark.parametrize("name", LINES_MAX)
def test_a_document_stays_short(name: str) -> None:
    assert _text(name).count("\n") <= LINES_MAX[name]


@pytest.mark.parametrize("name", TOURS)
def test_the_tour_runs_as_written(name: str, tmp_path: Path) -> None:
    """One shell runs all commands; each ends with 0 and prints the lines below it.

    A time matches any time, and an ellipsis any text. A block of Python with a name is a file in
    the working directory of the shell.
    """
    steps = tour(_text(name))
    assert len(steps) >= 8
    _run_tour(_text(name), tmp_path)


@pytest.mark.deep
def test_the_flights_run_as_written(tmp_path: Path) -> None:
    """Without Spark; tests/spark has the rest."""
    for name in ("examples", "data"):
        (tmp_path / name).symlink_to(ROOT / name)
    assert len(tour(_text("docs/flights.md"))) >= 10
    _run_tour(_text("docs/flights.md"), tmp_path)


@pytest.mark.deep
def test_the_crash_test_runs_as_written(tmp_path: Path) -> None:
    """Its programs are killed sixteen times."""
    assert len(tour(_text("docs/crashtest.md"))) >= 6
    _run_tour(_text("docs/crashtest.md"), tmp_path)


RECIPES = 11


@pytest.mark.parametrize("number", range(1, RECIPES + 1))
def test_a_recipe_runs_as_written(number: int, tmp_path: Path) -> None:
    """A recipe needs no other recipe."""
    first, *recipes = re.split(r"^## \d+\. ", _text("docs/cookbook.md"), flags=re.MULTILINE)
    assert "```" not in first
    assert len(recipes) == RECIPES
    assert len(tour(recipes[number - 1])) >= 4
    _run_tour(recipes[number - 1], tmp_path)


def _run_tour(text: str, folder: Path) -> None:
    for file, program in re.findall(r"^```python (\S+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        (folder / file).write_text(program, encoding="utf-8")
    steps = tour(text)
    script = "\n".join(f"{command}\necho '{_MARK}'$?" for command, _ in steps)
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=folder,
        env=_environment(folder),
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    outputs = re.split(rf"^{_MARK}(\d+)\n", done.stdout, flags=re.MULTILINE)
    assert len(outputs) == 2 * len(steps) + 1, done.stdout
    for number, (command, expected) in enumerate(steps):
        printed, code = outputs[2 * number], outputs[2 * number + 1]
        assert code == "0", f"{command}\n{printed}"
        assert _matches(expected, printed.splitlines()), f"{command}\n{printed}"


@pytest.mark.parametrize("name", graded(PRINTED, PRINTED.keys() - {"docs/python.md"}))
def test_the_python_examples_run(name: str, tmp_path: Path) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", _text(name), re.DOTALL | re.MULTILINE)
    environment = _environment(tmp_path)
    for example, printed in zip(examples, PRINTED[name], strict=True):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", example],
            cwd=tmp_path,
            text=True,
            check=False,
            env=environment,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(printed, done.stdout), done.stdout


def test_guide_to_the_library_names_every_call() -> None:
    """Each call of a table exists, and a handle has no call that is not in its row."""
    rows = re.findall(r"^\| (.*?) \| (.*?) \|$", _text("docs/python.md"), re.MULTILINE)
    owners = {
        "client": Client, "producer": Producer, "consumer": Consumer, "message": Message,
        "txlog": txlog,
    }  # fmt: skip
    calls = 0
    for call, _ in rows:
        owner = None
        for owner_name, attribute in re.findall(r"(?:`|, `)(?:(\w+)\.)?(\w+)\(", call):
            owner = owners[owner_name] if owner_name else owner
            assert hasattr(owner, attribute), f"{owner_name}.{attribute}"
            calls += 1
    assert calls > 40
    for call, handle in (("subscription", SubscriptionHandle), ("topic", TopicHandle)):
        (row_text,) = (text for start, text in rows if start.startswith(f"`client.{call}("))
        public = {name for name in vars(handle) if not name.startswith("_")}
        assert public - INNER == set(re.findall(r"`(\w+)`", row_text))


@pytest.mark.parametrize(
    "name", [*LINES_MAX, *SPECIFICATIONS, *(f"docs/design/{note.name}" for note in NOTES)]
)
def test_files_named_in_backticks_exist(name: str) -> None:
    """A path below src/txlog, scripts, tests or data that is written like one is a file.

    Decisions are left out, as they name files of their time.
    """
    for path in re.findall(r"`((?:src|scripts|tests|data|engine|cli)/[\w./-]*)`", _text(name)):
        places = (ROOT / path, SOURCE / "txlog" / path, SOURCE / "txlog" / f"{path}.py")
        assert any(place.exists() for place in places), f"{name} names {path}"


def test_links_of_a_document_lead_somewhere() -> None:
    """A relative link leads to a file of the project, and its anchor to a heading of that file."""
    for file in DOCUMENTS:
        for target in re.findall(r"\]\(([^)\s]+)\)", _prose(file)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            linked = (file.parent / path).resolve() if path else file
            assert linked.is_relative_to(ROOT), f"{file} links to {target}, outside of the project"
            assert linked.exists(), f"{file} links to {target}, which is not there"
            assert not anchor or anchor in _anchors(linked), (
                f"{file} links to {target}: no such heading"
            )


def test_a_numbered_link_is_defined_and_leads_to_its_record() -> None:
    """In a design note `[3]` is defined below as the file of decision 3."""
    for note in NOTES:
        text = _prose(note)
        defined = dict(re.findall(r"^\[(\d+)\]: (\S+)$", text, re.MULTILINE))
        used = re.findall(r"\[(\d+)\](?!:)", text)
        assert {*used} == {*defined}, f"{note}: {sorted({*used} ^ {*defined})}"
        for number, target in defined.items():
            file = (note.parent / target).resolve()
            assert file.is_file(), f"{note}: {target}"
            assert decisions.read(file).number == int(number), f"{note}: [{number}]"


def test_every_record_that_holds_is_linked_from_a_design_note() -> None:
    """Kills: a decision that a reader finds only by reading the whole archive."""
    linked = {
        name
        for note in NOTES
        for name in re.findall(r"\(?\.\./decisions/([\w-]+\.md)", _prose(note))
    }
    for file in decisions.files():
        if not decisions.read(file).status.startswith("superseded"):
            assert file.name in linked, f"no note of docs/design links to {file.name}"


def test_a_document_that_is_named_exists() -> None:
    """Kills: the old path of a document that was moved."""
    for file in DOCUMENTS:
        if file in decisions.files():
            continue  # a decision describes the project of its time
        for name in re.findall(r"(?<![\w./*<-])([\w./-]+\.md)\b", _prose(file)):
            places = (file.parent / name, ROOT / name, ROOT / "docs" / name)
            assert any(place.is_file() for place in places), f"{file} names {name}"


def test_newest_version_of_the_changelog_is_the_program() -> None:
    """Above it, CHANGELOG has only the section of the next version, which has no number yet."""
    assert _text("CHANGELOG.md").split("\n## ")[1].startswith("Unreleased\n")
    project = tomllib.loads(_text("pyproject.toml"))["project"]
    newest = re.search(r"^## (\S+) - ", _text("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == project["version"] == txlog.__version__


def test_changelog_lists_additions_and_removals() -> None:
    """Kills: a command, an error or an op that no release note mentions; `scripts.released`."""
    assert [*released.untold(_text("CHANGELOG.md"))] == []


def test_every_document_has_a_page_on_the_site() -> None:
    """Decisions are reached by their index."""
    pages = set(re.findall(r"^ +- (?:.*: )?(\S+\.md)$", _text("mkdocs.yml"), re.MULTILINE))
    there = {str(file.relative_to(ROOT / "docs")) for file in (ROOT / "docs").rglob("*.md")}
    there = {name for name in there if not name.startswith("decisions/")}
    of_root = {f"{file.stem.lower()}.md" for file in ROOT.glob("*.md")}
    assert pages == there | {"decisions/index.md"} | of_root


@pytest.mark.deep
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    words = ["mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    pages = {str(file.relative_to(tmp_path / "site")) for file in tmp_path.rglob("*.html")}
    assert {"index.html", "readme.html", "decisions/index.html"} <= pages
    for file in tmp_path.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        assert "<p>```" not in text, f"{file} shows a block of code as text"
        assert not re.search(r'(?:src|href)="https?:(?!//squidfunk)', text), f"{file} loads"


def test_decisions_are_numbered_in_order() -> None:
    """Each file begins like the template, with the number of its name and an existing area."""
    records = [decisions.read(file) for file in decisions.files()]
    assert [each.number for each in records] == list(range(1, len(records) + 1))
    for file, each in zip(decisions.files(), records, strict=True):
        assert file.name == decisions.file_name(each.number, each.title)
        assert each.area in decisions.AREAS, f"{file}: {each.area}"
        links = r"\[\d+\]\([\w-]+\.md\)"
        superseded = rf"(accepted; in part )?superseded by {links}(( and|,) {links})*"
        assert re.fullmatch(rf"accepted|{superseded}", each.status), f"{file}: {each.status}"


def test_the_index_of_decisions_is_current() -> None:
    assert decisions.INDEX.read_text(encoding="utf-8") == decisions.index()


def test_a_new_decision_gets_the_next_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "FOLDER", tmp_path)
    decisions.write(7, "Last of all", "accepted", "project", "**Decision.** Yes.")
    waiting = tmp_path / "waiting.txt"
    waiting.write_text(
        "## 1. `a|b` is read\n\nArea: storage\n\n**Context.** C.\n**Decision.** A.\n\n## Two\nB.\n"
    )
    for draft in decisions.drafts(waiting, "project"):
        decisions.add(draft)
    *_, first, second = decisions.files()
    assert first.name == "0008-a-b-is-read.md"
    assert decisions.read(first) == (8, "`a|b` is read", "accepted", "storage")
    assert first.read_text().endswith("- Area: storage\n\n**Context.** C.\n\n**Decision.** A.\n")
    assert decisions.read(second) == (9, "Two", "accepted", "project")
    for wrong in ("no heading", "## A\n", "## A\nArea: nowhere\nB."):
        waiting.write_text(wrong)
        with pytest.raises(ValueError, match=r"waiting\.txt: "):
            decisions.drafts(waiting, "project")


def tour(text: str) -> list[tuple[str, list[str]]]:
    """The commands of a document with the lines that follow them."""
    steps: list[tuple[str, list[str]]] = []
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for line in "".join(blocks).splitlines():
        if line.startswith("$ "):
            steps.append((line[2:], []))
        else:
            steps[-1][1].append(line)
    return steps


def _matches(expected: list[str], printed: list[str]) -> bool:
    if len(expected) != len(printed):
        return False
    for expected_line, printed_line in zip(expected, printed, strict=True):
        pattern = ".*".join(re.escape(_plain(part)) for part in expected_line.split("…"))
        if re.fullmatch(pattern, _plain(printed_line)) is None:
            return False
    return True


def _plain(line: str) -> str:
    return re.sub(r"\s+", " ", _DURATION.sub("0s", line))


def _environment(folder: Path) -> dict[str, str]:
    """An environment with `txlog` and `python` on the path, without the caller's variables."""
    programs = folder / "bin"
    programs.mkdir()
    ready.tool(programs / "txlog")
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python").chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("TXLOG_")
    }
    search = os.pathsep.join([str(programs), environment.get("PATH", os.defpath)])
    # No test cuts the power here, so the commands need not wait for a disk.
    return {**environment, "PATH": search, "PYTHONPATH": str(SOURCE), "TXLOG_DURABILITY": "os"}


def _prose(file: Path) -> str:
    """The text of a document without its blocks of code."""
    return re.sub(
        r"^```.*?^```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )


def _anchors(file: Path) -> set[str]:
    """The anchors of the headings of a document, as GitHub and the site make them."""
    anchors = set[str]()
    for heading in re.findall(r"^#+ (.+)$", _prose(file), re.MULTILINE):
        words = re.sub(r"[^\w\s-]", "", heading.lower()).strip()
        anchor = re.sub(r"\s", "-", words)
        assert anchor not in anchors, f"{file} has two headings {anchor}"
        anchors.add(anchor)
    return anchors


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
