"""Owns the entry of the command `txlog`: it tells when another distribution hides ours.

Our distribution is `txlog-store`, and its package is `txlog`. An unrelated distribution is named
`txlog`, and so is its package. Whoever installs both has the files of one of them in place of the
other's. This module lies beside the package, so that it still runs then and can say so.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in txlog itself
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    Program = Callable[[], NoReturn]


def script() -> NoReturn:
    """Run the command line of this process; exit with 1 and one line if `txlog` is not ours."""
    _program()()


def _program() -> Program:
    """Our program. Ends the process if the package `txlog` is another one."""
    try:
        from txlog.cli.main import script as program

        if "_HOMES" in vars(sys.modules["txlog"]):  # a name of our own top module
            return program
    except Exception:  # the other package may fail in its own way
        reason = hidden_by()
        if reason is None:
            raise
    else:
        reason = hidden_by()
    sys.exit(f"error: {reason or 'the package txlog is not the one of txlog-store'}")


def hidden_by() -> str | None:
    """Return one line if another distribution's files lie in front of ours or over them, or None.

    cost: reads the metadata of one distribution
    """
    # Imported here: the command runs this module at every start.
    from importlib.machinery import PathFinder
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import PurePath

    home = PurePath(__file__).parent / "txlog"
    spec = PathFinder.find_spec("txlog")
    origin = PurePath(spec.origin) if spec is not None and spec.origin else None
    try:
        other = distribution("txlog")
        has_package = any(file.parts[0] == "txlog" for file in other.files or ())
    except PackageNotFoundError:
        other, has_package = None, False
    if other is not None and has_package:
        place = PurePath(str(other.locate_file("txlog")))
        again = "" if place != home else ", then install txlog-store again with --force-reinstall"
        return (
            f"another distribution, txlog {other.version}, has a package txlog like txlog-store, "
            f"at {place}: pip uninstall txlog{again}"
        )
    if origin is None:
        return f"{home} has lost its __init__.py: install txlog-store again with --force-reinstall"
    if origin.parent != home:
        return f"{origin} is imported in place of {home}: remove it from the path of Python"
    return None
