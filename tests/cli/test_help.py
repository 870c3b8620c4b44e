"""The texts of `txlog help` are true: every code, every verb, every relation; and their layout."""

from __future__ import annotations

import re

import pytest

from txlog.base.ranges import parse_bound, parse_range
from txlog.cli.call.environment import SWITCHES, USER_SETTINGS
from txlog.cli.help import markup, topics
from txlog.cli.help.codes import CODES, EXITS, names_of
from txlog.cli.main import main
from txlog.cli.output.percent import Format
from txlog.cli.terminal.tables import Look
from txlog.errors import error_classes
from txlog.lake.sql.query import LISTS

NOW = 1_795_165_924_000
TOPICS = sorted(topics.TOPICS)


def test_every_code_of_the_program_is_explained_and_no_other() -> None:
    """spec/cli 5: one source for `help`, the exit table and the man pages."""
    assert set(CODES) == {code for cls in error_classes() for code in cls.codes}
    assert list(CODES) == sorted(CODES)
    assert {code // 100 for code in CODES} | {0, 130, 141} == set(EXITS)
    for code, explanation in CODES.items():
        assert names_of(code)
        assert (
            explanation.cause.endswith(".")
            and explanation.fix.endswith(".")
            and explanation.example
        )
        assert not explanation.means.endswith(".")


def test_a_code_is_found_however_it_is_written(capfd: pytest.CaptureFixture[str]) -> None:
    """spec/cli 8.8: each TXL-nnn with cause, fix, example."""
    answers = []
    for word in ("TXL-403", "txl-403", "403"):
        assert main(["help", word]) == 0
        answers.append(capfd.readouterr().out)
    assert len(set(answers)) == 1
    headings = re.findall(r"^[A-Z].*$", answers[0], re.MULTILINE)
    assert headings == ["TXL-403: " + CODES[403].means, "CAUSE", "FIX", "EXAMPLE", "IN PROGRAMS"]
    assert f"    {CODES[403].example}\n" in answers[0]
    assert "exit 4; class TransactionTimedOut" in answers[0]


@pytest.mark.parametrize("name", TOPICS)
def test_a_topic_fits_a_terminal(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Only command lines and data are longer than 79 columns."""
    assert main(["help", name]) == 0
    out = capfd.readouterr().out
    assert out.count("\n") > 20
    assert [ln for ln in out.splitlines() if len(ln) > 79 and not ln.startswith("    ")] == []
    assert "`" not in out
    assert "::" not in out.replace(":: of", "")


def test_help_without_a_word_lists_the_topics(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    out = capfd.readouterr().out
    assert re.findall(r"txlog help ([a-z-]+) ", out) == list(topics.TOPICS)


def test_help_of_a_command_is_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "txn", "begin"]) == 0
    text = capfd.readouterr().out
    assert main(["txn", "begin", "--help"]) == 0
    assert text == capfd.readouterr().out
    assert main(["help", "txn"]) == 0
    assert "txlog txn commit" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["ofsets"], "did you mean: txlog help offsets"),
        (["TXL-999"], "txlog help lists the topics"),
        (["prodcue"], "did you mean: txlog help produce"),
        (["txn", "begn"], "did you mean: txlog txn begin"),
    ],
)
def test_help_on_an_unknown_word(
    words: list[str], hint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """spec/cli 5: 308, with the nearest name."""
    assert main(["help", *words]) == 3
    out, err = capfd.readouterr()
    assert out == ""
    assert hint in err


def test_forms_of_offsets_all_parse() -> None:
    """Every form of the page parses, so a changed spelling must change the page."""
    page = topics.read("offsets")
    terms = {term for _, blocks in page.sections for block in blocks for term, _ in block.terms}
    written = {"N": "5", "L:E:I": "17:4:2", "L:E": "17:4", "TIME": "-1h", "SUB": "billing"}
    bounds = "start, end|+N, -N|L:E, L:E:I|after=L:E, after=L:E:I|@TIME|sub=SUB".split("|")
    assert {*bounds, "unacked=SUB", "txn:TC:SEQ", "BOUND..BOUND"} <= terms
    for text in (word for group in bounds for word in group.split(", ")):
        for name, value in written.items():
            text = text.replace(name, value)
        parse_bound(text, NOW)
    for text in ("unacked=billing", "txn:0:42", "17:4..17:90", ":end", "-10:end", "@-2h:-1h"):
        parse_range(text, NOW)


def test_verbs_of_formatting_all_parse() -> None:
    page = topics.read("formatting")
    (out,) = [blocks for heading, blocks in page.sections if heading == "OUT"]
    verbs = [verb for block in out for term, _ in block.terms for verb in term.split(", ")]
    assert {verb[1] for verb in verbs} == set("vktVKTHhopidxPqw[]gr")
    for verb in verbs:
        Format(verb, watermarks=True, stored=True)


def test_lists_of_sql_are_complete() -> None:
    page = topics.read("sql")
    (lists,) = [blocks for heading, blocks in page.sections if heading == "LISTS"]
    assert {
        name for block in lists for term, _ in block.terms for name in term.split(", ")
    } == LISTS


def test_switches_are_settings_of_the_user() -> None:
    assert set(USER_SETTINGS) >= SWITCHES


def test_markup_is_shown_as_text() -> None:
    """A long term has a line of its own; a literal of several words is quoted."""
    first = "# FIRST\nSee `txlog help` and `x`.\na :: one\nb `c` :: two"
    source = f"x(7): a page\n\n{first}\n    as\n\n    is"
    page = markup.parse(source, {})
    assert markup.as_text(page) == (
        "x: a page\n\nFIRST\n  See 'txlog help' and x.\n\n  a    one\n  b c  two\n\n    as\n\n"
        "    is\n"
    )


def test_a_page_on_a_terminal_says_the_same() -> None:
    """The same words as in a pipe, in the width of the terminal; colours only on request."""

    def look(width: int, color: bool) -> Look:
        return Look(human=True, color=color, utc=True, width=width)

    for name in topics.TOPICS:
        page = topics.read(name)
        text = markup.as_text(page)
        assert topics.shown(page, look(0, True)) == text
        drawn = topics.shown(page, look(100, False))
        assert drawn.split() == text.split()
        assert "\x1b" not in drawn
        assert "\x1b[1m" in topics.shown(page, look(100, True))
    first = "# FIRST\nThe word [b]`a b`[/b] and " + "x " * 40
    source = f"x(7): a page\n\n{first}\nt :: m\n    as it is"
    page = markup.parse(source, {})
    narrow = topics.shown(page, look(30, False))
    assert max(map(len, narrow.splitlines())) <= 30
    assert "[b]'a b'[/b]" in narrow
    colored = re.sub(r"\x1b\[[0-9;]*m", "", topics.shown(page, look(30, True)))
    assert "[b]a b[/b]" in colored and "\n    as it is\n" in colored


PAGE = """x(7): a page

# FIRST
See `a b` and c.

a `b` :: one `two`
longer-than-the-most-that-a-term-takes-`here` :: is below

    as it is
    \n    more

# SECOND
more"""


def test_a_page_is_drawn_so() -> None:
    """A term is left of its meaning, a long term above it; no meaning is cut for lack of room."""
    page = markup.parse(PAGE, {})

    def drawn(width: int, color: bool = False) -> str:
        return topics.shown(page, Look(human=True, color=color, utc=True, width=width))

    remainder = "\n    as it is\n\n    more\n\nSECOND\n  more\n"
    assert drawn(100) == (
        "x: a page\n\nFIRST\n  See 'a b' and c.\n\n  a b                         one two\n"
        f"  longer-than-the-most-that-a-term-takes-here\n{' ' * 30}is below\n{remainder}"
    )
    assert drawn(30) == (
        "x: a page\n\nFIRST\n  See 'a b' and c.\n\n  a b              one two\n"
        "  longer-than-the-most-that-a-\n  term-takes-here\n"
        f"{' ' * 19}is below\n{remainder}"
    )
    for fragment in ("\x1b[1mx\x1b[0m: a page", "\x1b[1mFIRST", "See \x1b[36ma b\x1b[0m and",
                  "  \x1b[36ma b ", "one \x1b[36mtwo\x1b[0m\n", "  \x1b[36mlonger-"):  # fmt: skip
        assert fragment in drawn(79, color=True)
    wide = markup.parse(f"x(7): a page\n\n# FIRST\n{'x ' * 90}", {})
    look = Look(human=True, color=False, utc=True, width=200)
    assert max(map(len, topics.shown(wide, look).splitlines())) == 79


def test_markup_as_mdoc_escapes_macros() -> None:
    page = markup.parse("x(7): a-b\n\n# SECTION\n.txlog \\n `b c`\nd - e :: .f", {})
    assert markup.as_mdoc(page, "November 22, 2026").splitlines()[6:] == [
        ".Sh SECTION",
        r"\&.txlog \en \fBb c\fR",
        ".Bl -tag -width indent",
        r'.It "d \- e"',
        r"\&.f",
        ".El",
    ]
