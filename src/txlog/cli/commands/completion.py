"""Owns the commands of completion: the scripts of bash, zsh and fish, shown or installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

from txlog.cli.call.call import Call
from txlog.cli.call.call import install as install_file
from txlog.cli.call.environment import config_home, data_home
from txlog.cli.line.command import Argument, command
from txlog.errors import Usage

SHELLS: Final = ("bash", "zsh", "fish")
_FOLDER: Final = Path(__file__).with_name("shells")
Shell = Annotated[
    str | None, Argument(metavar="bash|zsh|fish", show_default=False, help="default: $SHELL")
]


@command(
    "completion show",
    "print the script that completes txlog",
    examples=("txlog completion show bash", "source <(txlog completion show bash)"),
)
def show(call: Call, shell: Shell = None) -> None:
    """Print the script that completes txlog: verbs, flags and their values, names in the store.

    Names of topics, subscriptions, keys and transactions are read, without a lock, from the store
    that the command line selects.
    """
    call.output.text(script(_shell(shell)))


@command(
    "completion install",
    "install completion where the shell looks for it",
    examples=("txlog completion install bash", "txlog completion install fish --json"),
    rows="tool.FileInstalled",
    changes=True,
)
def install(call: Call, shell: Shell = None) -> None:
    """Write the script where the shell looks for it; repeating it is harmless.

    Bash needs the package bash-completion, zsh a line in .zshrc, which is printed.
    """
    name = _shell(shell)
    path = place(name)
    changed = install_file(call, path, script(name))
    call.summary(f"{path} {'written' if changed else 'was up to date'}; open a new shell")
    if name == "zsh":
        call.summary(f"before compinit in .zshrc: fpath=({path.parent} $fpath)")


def script(shell: str) -> str:
    """The script of a shell."""
    return (_FOLDER / f"txlog.{shell}").read_text(encoding="utf-8")


def place(shell: str) -> Path:
    """The directory in which a shell looks for a user's completions."""
    if shell == "bash":
        return data_home(os.environ) / "bash-completion" / "completions" / "txlog"
    if shell == "zsh":
        return data_home(os.environ) / "zsh" / "site-functions" / "_txlog"
    return config_home(os.environ) / "fish" / "completions" / "txlog.fish"


def _shell(shell: str | None) -> str:
    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    if name not in SHELLS:
        raise Usage(f'a shell is {"|".join(SHELLS)}, not "{name[:40]}"')
    return name
