"""Owns the suite of the Go client: the tests of package `pulsar` in its module.

`go` fetches the module by the version that `tests/clients/go/go.mod` names. Each test runs in a
process of its own, with two new servers of one store at the ports that the tests expect: one
without TLS, and one with the certificates that come with the module.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from tests.clients import bed
from tests.upstream.servers import Servers
from tests.upstream.suite import BUILD, Suite, Unavailable
from tests.upstream.verdicts import Outcome

MODULE = "github.com/apache/pulsar-client-go"
PACKAGE = "pulsar"
FOLDER = BUILD / "go"
# These log in: their server has rules. The others log in nowhere, so theirs has none.
WITH_RULES = re.compile("Auth|Token")
# The largest message, as upstream configures its broker.
SETTINGS = {"max_message_bytes": 1 << 20}
RULES = """
superusers = ["localhost", "superUser", "admin"]
[tokens]
secret_key = "{module}/integration-tests/tokens/secret.key"
[certificates]
[roles.token-principal]
produce = ["private/auth/*"]
consume = ["private/auth/*"]
"""


class Go(Suite):
    """The tests of the Go client."""

    name = "go"
    parts = 7
    causes: ClassVar[Mapping[str, str]] = {
        "Docker not found": "needs Docker, where it starts a broker of its own",
        "BasicAuth": "needs basic authentication, which the server does not have",
        "backlogQuota": "needs backlog quotas, which a store does not have",
        "000000000": "an entry id here is a time, in Pulsar it counts entries",
        "--- SKIP": "it skips itself",
    }

    def __init__(self) -> None:
        self._module = Path()

    def prepare(self) -> None:
        """Fetch the module and build its tests."""
        if shutil.which("go") is None:
            raise Unavailable("there is no go here")
        version = _version()
        fetched = self._go("mod", "download", "-json", f"{MODULE}@{version}")
        self._module = Path(json.loads(fetched)["Dir"])
        program = self._program
        if not program.exists() or program.stat().st_mtime < _version_file().stat().st_mtime:
            FOLDER.mkdir(parents=True, exist_ok=True)
            new_program = program.with_suffix(".new")
            # its go.sum may not be written to, and lists all that its tests need
            self._go("test", "-c", "-mod=readonly", "-o", str(new_program), f"./{PACKAGE}")
            new_program.replace(program)

    @property
    def _program(self) -> Path:
        return FOLDER / f"{_version()}.test"

    def _go(self, *arguments: str) -> str:
        place = self._module if self._module != Path() else FOLDER
        place.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["go", *arguments], cwd=place, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise Unavailable(f"go {arguments[0]}: {' '.join(done.stderr.split()[-40:])}")
        return done.stdout

    def tests(self) -> Sequence[str]:
        """The tests that the program lists."""
        listed = subprocess.run(
            [str(self._program), "-test.list", "."], capture_output=True, text=True, check=True
        )
        return [line for line in listed.stdout.split() if line.startswith("Test")]

    def group(self, test: str) -> str:
        """Itself."""
        return test

    def run(self, tests: Sequence[str], launcher: int, limit_s: float) -> Iterator[Outcome]:
        """Run each with servers of its own."""
        for test in tests:
            with Servers(launcher, self._options(test), SETTINGS):
                yield self._tried(test, limit_s)

    def _options(self, test: str) -> list[list[str]]:
        certificates = self._module / "integration-tests" / "certs"
        plain = ["--pulsar", "localhost:6650", "--http", "localhost:8080"]
        tls = [
            *("--pulsar", "localhost:6651", "--http", "localhost:8443"),
            *("--tls-cert", str(certificates / "broker-cert.pem")),
            *("--tls-key", str(certificates / "broker-key.pem")),
        ]
        if WITH_RULES.search(test):
            rules = FOLDER / f"rules-{os.getpid()}.toml"
            rules.write_text(RULES.format(module=self._module))
            tls += ["--auth", str(rules), "--tls-client-ca", str(certificates / "cacert.pem")]
        return [plain, tls]

    def _tried(self, test: str, limit_s: float) -> Outcome:
        began = time.monotonic()
        with subprocess.Popen(
            [str(self._program), "-test.v", "-test.run", f"^{test}$"],
            cwd=self._module / PACKAGE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            error = ""
            try:
                output, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                output, _ = process.communicate()
                error = f"killed after {limit_s:.0f} s: "
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        seconds = time.monotonic() - began
        if process.returncode == 0 and f"--- SKIP: {test} " not in output:
            return Outcome(test, True, seconds, "")
        return Outcome(test, False, seconds, error + _reason(test, output))


def _version_file() -> Path:
    return bed.HERE / "go" / "go.mod"


def _version() -> str:
    text = _version_file().read_text(encoding="utf-8")
    return text.partition(f"{MODULE} ")[2].split()[0]


def _reason(test: str, output: str) -> str:
    """The first errors that a test printed, in a line."""
    parts = re.findall(r"Error:\s+(.*(?:\n\s+\t\s.*){0,2})", output)
    parts += re.findall(r"^(?:panic: .*|--- SKIP.*)$", output, re.MULTILINE)[:1]
    if "BasicAuth" in test:
        parts.append("BasicAuth")
    if not parts:
        parts = output.splitlines()[-3:]
    return " | ".join(" ".join(part.split()) for part in parts[:3])[:400]
