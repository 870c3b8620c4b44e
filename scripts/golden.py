"""Owns the golden transcripts: runs those in tests/golden/, compares or rewrites them.

    python -m scripts.golden            rewrite all; read the diff line by line
    python -m scripts.golden NAME…      only these

A transcript is a list of blocks: `$ COMMAND`, `---`, the output. Lines of stderr begin with `2> `.
The last line is `[exit N]` if the exit code is not 0. Lines before a command that begin with `#`
are remarks. Commands of one transcript share a directory and the variables that they export;
TXLOG_STORE is `shop`, and the clock stands still. Values that differ between runs are replaced by
<DIR>, <UUID>, <USER>, <UID> or <TIME>; sizes of exported files, which go by the writer, by <SIZE>.
"""

from __future__ import annotations

import getpass
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from scripts import ready

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
NOW = "2026-11-20T09:12:04.123Z"
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ELAPSED = re.compile(r"(?:(?<=, )|(?<=rows \()|(?<=row \())[0-9.]+(?:ms|s|m)(?=\))")
_FILE_SIZE = re.compile(r'(?<="file_bytes":)[1-9][0-9]*|(?<=[1-9] file, )[0-9.]+ [KM]iB(?=, <)')
_ELAPSED_JSON = re.compile(r'(?<="elapsed_ms":)[0-9]+')


@dataclass
class Block:
    """One command, with the remarks before it and its output."""

    remarks: list[str] = field(default_factory=list)
    command: str = ""
    output: list[str] = field(default_factory=list)


def parse(text: str) -> list[Block]:
    """Return the blocks of a transcript."""
    blocks: list[Block] = []
    remarks: list[str] = []
    in_output = False
    for line in text.splitlines():
        if line.startswith("$ "):
            blocks.append(Block(remarks, line[2:]))
            remarks, in_output = [], False
        elif line.startswith("#") and not in_output:
            remarks.append(line)
        elif blocks and not in_output:
            if line == "---":
                in_output = True
            else:
                blocks[-1].command += "\n" + line
        elif blocks:
            # A remark after output belongs to the next command.
            if line.startswith("# "):
                remarks.append(line)
            else:
                blocks[-1].output.append(line)
    return blocks


def render(blocks: list[Block]) -> str:
    """Return the transcript of blocks."""
    lines: list[str] = []
    for block in blocks:
        lines += [*block.remarks, f"$ {block.command}", "---", *block.output]
    return "".join(f"{line}\n" for line in lines)


def play(blocks: list[Block]) -> list[Block]:
    """Run the commands in a fresh directory; return the blocks with their new output."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        (place / "bin").mkdir()
        (place / "work").mkdir()
        ready.tool(place / "bin" / "txlog")
        (place / "state").write_text("")
        environment = {
            "PATH": f"{place / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "PYTHONPATH": str(ROOT / "src"),
            "HOME": str(place),
            "LC_ALL": "C.UTF-8",
            "TXLOG_STORE": "shop",
            "TXLOG_NOW": NOW,
        }
        return [Block(b.remarks, b.command, _run(b.command, place, environment)) for b in blocks]


def _run(command: str, place: Path, environment: dict[str, str]) -> list[str]:
    # Exported variables go from one command to the next, as they would in one shell.
    script = f'. ../state\n{command}\ncode=$?\nexport -p > ../state\nexit "$code"\n'
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=place / "work",
        env=environment,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    lines = _normal(done.stdout.decode("utf-8", "backslashreplace"), place).splitlines()
    errors = _normal(done.stderr.decode("utf-8", "backslashreplace"), place).splitlines()
    lines += [f"2> {line}" for line in errors]
    return [*lines, f"[exit {done.returncode}]"] if done.returncode else lines


def _normal(text: str, place: Path) -> str:
    text = text.replace(str(place / "work"), "<DIR>")
    text = _UUID.sub("<UUID>", text)
    text = _ELAPSED.sub("<TIME>", text)
    text = _ELAPSED_JSON.sub("<TIME>", text)
    text = _FILE_SIZE.sub("<SIZE>", text)
    text = re.sub(rf'("owner": ?)"{re.escape(getpass.getuser())}"', r'\1"<USER>"', text)
    text = re.sub(rf"\bowner {re.escape(getpass.getuser())}(?=,)", "owner <USER>", text)
    text = re.sub(r'"owner_uid":[0-9]+', '"owner_uid":<UID>', text)
    text = re.sub(rf"\b{re.escape(getpass.getuser())}&", "<USER>&", text)
    return re.sub(rf"(?<=\t){re.escape(getpass.getuser())}(?=\t|\n|$)", "<USER>", text)


def main(names: list[str]) -> int:
    """Rewrite the named transcripts, or all."""
    for path in [GOLDEN / f"{name}.txt" for name in names] or sorted(GOLDEN.glob("*.txt")):
        rewrite(path)
    return 0


def rewrite(path: Path) -> None:
    """Play a transcript and write its output."""
    path.write_text(render(play(parse(path.read_text()))))
    print(f"wrote {path.relative_to(ROOT)}")


def unplayed() -> list[Path]:
    """The transcripts in which a command has no line `---` yet."""
    return [path for path in sorted(GOLDEN.glob("*.txt")) if not _is_played(path.read_text())]


def _is_played(text: str) -> bool:
    blocks = text.partition("\n$ ")[2] if not text.startswith("$ ") else text[2:]
    return all("\n---\n" in f"{block}\n" for block in blocks.split("\n$ "))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
