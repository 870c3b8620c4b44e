"""Owns the diagram of the rooms in ARCHITECTURE.md, which it draws from the imports.

usage: python -m scripts.rooms [--check]

A room is an entry of src/txlog, or of src/txlog/engine. Its floor is one above the highest room
that it imports; rooms that import each other share a floor. After the arrow come the rooms that it
imports, except rooms that another one of them imports. The script writes the diagram into
ARCHITECTURE.md; with --check it only compares.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import Final

from scripts.shape import ENGINE, ROOT, Tree

ARCHITECTURE: Final = ROOT / "ARCHITECTURE.md"
_BLOCK: Final = re.compile(
    r"(<!-- made by python -m scripts\.rooms -->\n```\n).*?(```\n<!-- end -->)", re.DOTALL
)
Arrows = dict[str, set[str]]


def main() -> int:
    """Write the diagram; with --check only compare, and return 1 if it differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    options = parser.parse_args()
    before, now = ARCHITECTURE.read_text(encoding="utf-8"), architecture()
    if before == now:
        return 0
    if options.check:
        print("differs: ARCHITECTURE.md")
        return 1
    ARCHITECTURE.write_text(now, encoding="utf-8")
    return 0


def architecture() -> str:
    """The text that ARCHITECTURE.md should have."""
    block = diagram(rooms(Tree(ROOT)))
    text = ARCHITECTURE.read_text(encoding="utf-8")
    return _BLOCK.sub(lambda match: match[1] + block + match[2], text)


def rooms(tree: Tree) -> Arrows:
    """The rooms of a checkout, each with the rooms that its modules import."""
    arrows: Arrows = {_room(name): set() for name in tree.modules}
    for name, targets in tree.imports().items():
        arrows[_room(name)] |= {_room(target) for target in targets} - {_room(name)}
    return {room: targets for room, targets in arrows.items() if targets or room != "engine"}


def diagram(arrows: Arrows) -> str:
    """A line for each room, the highest floor first."""
    below = {room: _reached(room, arrows) for room in arrows}
    floors: dict[str, int] = {}
    # With itself a room reaches more rooms than any room below it: those have their floors already.
    for room in sorted(arrows, key=lambda name: len(below[name] | {name})):
        lower = [floors[other] for other in below[room] if room not in below[other]]
        floors[room] = 1 + max(lower, default=0)
    width = max(map(len, arrows))
    lines, last = [], 0
    for room in sorted(arrows, key=lambda name: (-floors[name], name)):
        number = "" if floors[room] == last else str(floors[room])
        last = floors[room]
        targets = sorted(_nearest(room, arrows, below), key=lambda name: (-floors[name], name))
        arrow = f"-> {'  '.join(targets)}" if targets else ""
        lines.append(f"{number:>2}  {room:<{width}}  {arrow}".rstrip())
    return "".join(f"{line}\n" for line in lines)


def _nearest(room: str, arrows: Arrows, below: Arrows) -> set[str]:
    """The rooms that a room imports and that it would not reach through another one."""
    others = [other for other in arrows[room] if room not in below[other]]
    implied = set().union(*(below[other] - {other} for other in others))
    return arrows[room] - implied


def _reached(room: str, arrows: Arrows) -> set[str]:
    """The rooms that a room imports, directly or not; among them itself if it is in a circle."""
    reached: set[str] = set()
    waiting = [room]
    while waiting:
        for target in arrows[waiting.pop()] - reached:
            reached.add(target)
            waiting.append(target)
    return reached


def _room(module: str) -> str:
    """The room of a module, as a path below src/txlog; the package itself is called txlog."""
    parts = module.split(".")
    if module.startswith(ENGINE):
        return "/".join(parts[1:3])
    return "".join(parts[1:2]) or parts[0]


if __name__ == "__main__":
    sys.exit(main())
