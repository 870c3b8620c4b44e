"""Owns the man pages: one for each command and noun, from their declarations; others from texts/.

`scripts/generate.py` writes them into man/, `txlog man install` into the user's directory. A page
can have more than the command's help: texts/NAME.txt adds to DESCRIPTION and can replace EXIT
STATUS.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from txlog.cli.call.environment import VARIABLES
from txlog.cli.help import markup, topics
from txlog.cli.help.markup import Block, Page
from txlog.cli.line import catalogue, dispatch
from txlog.cli.line.command import Command
from txlog.cli.line.parameters import Parameter, parameters_of

DATED: Final = "November 22, 2026"
_READING: Final = (0, 1, 2, 3, 5, 6, 130, 141)
_CHANGING: Final = (0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 130, 141)
_SIBLINGS_MAX: Final = 12


def page_names() -> list[str]:
    """Names of all pages with their sections, as in `txlog-produce.1`."""
    return sorted(_makers())


def page(name: str) -> Page:
    """Return a page by its name, as in `txlog-produce.1`; KeyError when there is none."""
    return _makers()[name]()


def mdoc(name: str) -> str:
    """Return the source of a page."""
    return markup.as_mdoc(page(name), DATED)


def find(word: str) -> str | None:
    """The page for a word, or None: txlog, produce, txlog-txn-commit, `txn commit`, offsets(7)."""
    bare = word.strip().replace(" ", "-").removesuffix(")").replace("(", ".")
    names = page_names()
    for stem in (bare, f"txlog-{bare}"):
        for name in names:
            if stem in (name, name.rpartition(".")[0]):
                return name
    return None


def _makers() -> dict[str, Callable[[], Page]]:
    makers: dict[str, Callable[[], Page]] = {"txlog.1": lambda: topics.read("txlog")}
    for topic in topics.TOPICS:
        section = 5 if topic == "format" else 7
        makers[f"txlog-{topic}.{section}"] = partial(topics.read, topic)
    for noun in catalogue.NOUNS:
        makers[f"{_dashed(noun)}.1"] = partial(_noun, noun)
    for path in catalogue.COMMANDS:
        makers[f"{_dashed(path)}.1"] = partial(_command_at, path)
    return makers


def _dashed(path: str) -> str:
    return f"txlog-{path.replace(' ', '-')}"


def _noun(noun: str) -> Page:
    page = Page(_dashed(noun), 1, catalogue.NOUNS[noun])
    page.add("SYNOPSIS", Block(text=f"`txlog {noun}` verb [argument ...] [flag ...]"))
    verbs = [path for path in catalogue.COMMANDS if path.startswith(f"{noun} ")]
    terms = [(f"`txlog {path}`", catalogue.COMMANDS[path].help) for path in verbs]
    page.add("COMMANDS", Block(terms=terms))
    others = [word for word, meant in catalogue.ALIASES.items() if meant == noun]
    if others:
        commands = ", ".join(f"`txlog {word}`" for word in others)
        page.add("ALSO", Block(text=f"The same is {commands}."))
    page.add("SEE ALSO", Block(text=_references([*map(_dashed, verbs), "txlog"])))
    return page


def _command_at(path: str) -> Page:
    return _command(dispatch.load(path))


def _command(command: Command) -> Page:
    path = command.path
    more = _more(path)
    page = Page(_dashed(path), 1, more.summary if more else catalogue.COMMANDS[path].help)
    parameters = [each for each in parameters_of(command) if not each.hidden]
    own_parameters = [each for each in parameters if not each.of_all]
    page.add("SYNOPSIS", *_synopsis(path, own_parameters))
    page.add("DESCRIPTION", *_description(command), *_blocks(more, "DESCRIPTION"))
    arguments = [each for each in own_parameters if not each.is_flag]
    if arguments:
        page.add("ARGUMENTS", Block(terms=[_term(each) for each in arguments]))
    flags = [_term(each) for each in own_parameters if each.is_flag]
    common = Block(text="The global flags are in txlog(1).")
    page.add("OPTIONS", *([Block(terms=flags)] if flags else []), common)
    if command.records or command.fields:
        page.add("OUTPUT", *_output(command))
    codes = _CHANGING if command.changes else _READING
    ends = _blocks(more, "EXIT STATUS") or [
        Block(terms=[(code, text) for code, text in topics.exits() if int(code) in codes]),
    ]
    page.add("EXIT STATUS", *ends, Block(text="The errors are in txlog-exit-codes(7)."))
    page.add(
        "ENVIRONMENT",
        Block(terms=_environment(parameters)),
        Block(text="All variables are listed in txlog-environment(7)."),
    )
    page.add(
        "FILES",
        Block(
            terms=[
                ("txlog.toml", "makes a directory a store"),
                ("$XDG_CONFIG_HOME/txlog/config.toml", "settings and profiles of the user"),
            ]
        ),
    )
    page.add("EXAMPLES", Block(lines=list(command.examples)))
    page.add("SEE ALSO", Block(text=_references(_neighbours(path))))
    return page


def _more(path: str) -> Page | None:
    """The text in texts/ that extends the page of a command, if there is one."""
    name = path.replace(" ", "-")
    return topics.read(name) if topics.has(name) else None


def _blocks(more: Page | None, heading: str) -> list[Block]:
    sections = more.sections if more else []
    return [block for title, blocks in sections if title == heading for block in blocks]


def _synopsis(path: str, parameters: Iterable[Parameter]) -> list[Block]:
    flags, arguments = [], []
    for each in parameters:
        many = " ..." if each.repeated else ""
        if not each.is_flag:
            arguments.append(f"{each.name}{many}" if each.required else f"[{each.name}{many}]")
            continue
        text = f"`{each.name}`{_value(each)}"
        flags.append(f"{text}{many}" if each.required else f"[{text}]{many}")
    usual = Block(text=" ".join([f"`txlog {path}`", *flags, *arguments]))
    if not path.startswith("job "):
        return [usual]
    program = f"`spark-submit txlog/spark/jobs/{path[4:].replace('-', '_')}.py`"
    return [usual, Block(text=" ".join([program, "`-S` STORE", *arguments, "[flag ...]"]))]


def _description(command: Command) -> list[Block]:
    text = inspect.getdoc(command.function) or ""
    return [Block(text=" ".join(part.split())) for part in text.split("\n\n")]


def _term(each: Parameter) -> tuple[str, str]:
    names = ", ".join(f"`{name}`" for name in each.names) if each.is_flag else each.name
    text = each.help
    if each.repeated:
        text += "; may be repeated"
    if each.default:
        text += f" (default {each.default})"
    return f"{names}{_value(each)}" if each.is_flag else names, text


def _value(each: Parameter) -> str:
    return f" {each.metavar}" if each.metavar else ""


def _output(command: Command) -> list[Block]:
    if command.records:
        return [Block(text="Messages, in the shapes of txlog-format(5).")]
    start = "With `--json`, a result" if command.changes else "Rows or an object"
    summary = (
        ""
        if command.changes or len(command.table_fields) == len(command.fields)
        else (f"; a table shows the first {len(command.table_fields)}, `-f wide` all")
    )
    terms = [(field.name, f"{field.meaning} ({field.type})") for field in command.row_fields]
    return [Block(text=f"{start} with these fields{summary}."), Block(terms=terms)]


def _environment(parameters: Iterable[Parameter]) -> markup.Terms:
    names = {name for each in parameters for name in each.names}
    variables = ["TXLOG_STORE", "TXLOG_FORMAT", "TXLOG_LOCK_TIMEOUT"]
    variables += ["TXLOG_TXN"] if names & {"--txn-id", "--no-join"} else []
    variables += ["TXLOG_DURABILITY"] if "--durability" in names else []
    return [(name, VARIABLES[name]) for name in variables]


def _neighbours(path: str) -> list[str]:
    noun = path.rpartition(" ")[0]
    others = [each for each in catalogue.COMMANDS if each.rpartition(" ")[0] == noun]
    near = others if noun and len(others) <= _SIBLINGS_MAX else []
    pages = [_dashed(noun)] if noun else []
    return [*pages, *(_dashed(each) for each in near if each != path), "txlog"]


def _references(names: Iterable[str]) -> str:
    return ", ".join(f"{name}(1)" for name in names)
