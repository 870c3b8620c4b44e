"""Owns pulsar-admin as Apache distributes it: one process that runs a command after the other."""

from __future__ import annotations

import json
import subprocess
from types import TracebackType
from typing import Any

from tests.clients import bed

MEMORY = ("-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class Admin:
    """pulsar-admin for a server; raises bed.Unavailable where it cannot be had.

    properties: of client.conf, as NAME=VALUE
    """

    def __init__(self, url: str, *properties: str) -> None:
        source = bed.HERE / "admin"
        out = bed.built(["mvn", "-q", "-B", "dependency:unpack"], source, bed.BUILD / "admin")
        [libraries] = out.glob("apache-pulsar-*/lib")
        self._process = subprocess.Popen(
            [
                "java",
                *MEMORY,
                "-cp",
                f"{libraries}/*",
                str(source / "Admin.java"),
                url,
                *properties,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, *arguments: str) -> tuple[bool, str]:
        """Run a command; returns whether it succeeded, and its output."""
        stdin, printed = self._process.stdin, self._process.stdout
        assert stdin is not None and printed is not None
        print("\t".join(arguments), file=stdin, flush=True)
        output: list[str] = []
        for line in printed:
            if line in ("= true\n", "= false\n"):
                return line == "= true\n", "".join(output).strip()
            output.append(line)
        raise AssertionError(f"it ended: {''.join(output)}")

    def __call__(self, *arguments: str) -> str:
        """Run a command, which must succeed; returns its output."""
        is_done, output = self.run(*arguments)
        assert is_done, f"{' '.join(arguments)}: {output}"
        return output

    def figures(self, *arguments: str) -> Any:
        """The JSON that a command prints."""
        return json.loads(self(*arguments))

    def refused(self, *arguments: str) -> str:
        """Run a command, which must fail; returns the reason that the server gave."""
        is_done, output = self.run(*arguments)
        assert not is_done, f"{' '.join(arguments)} succeeded: {output}"
        return output.rpartition("Reason: ")[2]
