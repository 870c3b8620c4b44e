"""The inputs that are kept in the tree, as text: a change of one is a change of one line.

corpus/TARGET.txt   an input a line, base64 of zlib
found/TARGET-*.txt  a sentence on the defect, then the input that showed it, in the same form
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
CORPUS, FOUND = HERE / "corpus", HERE / "found"


def packed(data: bytes) -> str:
    """An input as a line of text."""
    return b64encode(zlib.compress(data, 9)).decode()


def unpacked(line: str) -> bytes:
    """The input in a line."""
    return zlib.decompress(b64decode(line))


def kept(target: str) -> list[bytes]:
    """The inputs of a target that reach different lines."""
    path = CORPUS / f"{target}.txt"
    return [unpacked(line) for line in path.read_text().split()] if path.exists() else []


def keep(target: str, inputs: Iterable[bytes]) -> None:
    """Replace the inputs of a target."""
    CORPUS.mkdir(exist_ok=True)
    text = "".join(f"{packed(data)}\n" for data in inputs)
    (CORPUS / f"{target}.txt").write_text(text)


def findings(target: str) -> dict[str, bytes]:
    """The inputs of a target that once were findings, by the names of their files."""
    return {
        path.stem: unpacked(path.read_text().splitlines()[1])
        for path in sorted(FOUND.glob(f"{target}-*.txt"))
        if path.stem.rpartition("-")[0] == target
    }


def note(target: str, name: str, sentence: str, data: bytes) -> Path:
    """Keep an input that was a finding."""
    FOUND.mkdir(exist_ok=True)
    path = FOUND / f"{target}-{name}.txt"
    path.write_text(f"{' '.join(sentence.split())}\n{packed(data)}\n")
    return path
