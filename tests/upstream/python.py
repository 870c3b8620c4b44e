"""Owns the suite of the Python client: the tests in a checkout of its repository.

No package manager has these tests: the wheels do not contain them, and there is no source
distribution. A developer with a checkout names it with --sources; without one the suite is
unavailable. The client is the wheel that the environment has.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import jwt

from tests.upstream.servers import Servers
from tests.upstream.suite import BUILD, Suite, Unavailable
from tests.upstream.verdicts import Outcome

FOLDER = BUILD / "python"
# The directory where the tests expect the tokens of upstream's script that starts a broker.
TOKENS = Path("/tmp/pulsar-test-data/tokens")
SECRET = bytes(range(32))
# The largest message, as upstream configures its broker.
SETTINGS = {"max_message_bytes": 1_024_000}
RULES = """
superusers = ["localhost", "superUser", "admin"]
[tokens]
secret_key = "{secret}"
[certificates]
[roles.token-principal]
produce = ["private/auth/*"]
consume = ["private/auth/*"]
"""


class Python(Suite):
    """The tests of the Python client.

    sources: the checkout, or None if there is none
    """

    name = "python"
    parts = 4
    causes: ClassVar[Mapping[str, str]] = {
        "testcontainers": "needs Docker, where it starts a broker of its own",
        "asic": "needs basic authentication, which the server does not have",
    }

    def __init__(self, sources: Path | None) -> None:
        self._tests = sources / "tests" if sources else None

    def prepare(self) -> None:
        """Write the token that the tests log in with."""
        if self._tests is None:
            raise Unavailable("its tests are in no package; --sources names a checkout")
        if not (self._tests / "pulsar_test.py").exists():
            raise Unavailable(f"there is no pulsar_test.py in {self._tests}")
        FOLDER.mkdir(parents=True, exist_ok=True)
        TOKENS.mkdir(parents=True, exist_ok=True)
        (FOLDER / "secret.key").write_bytes(SECRET)
        (TOKENS / "token.txt").write_text(jwt.encode({"sub": "token-principal"}, SECRET))

    def tests(self) -> Sequence[str]:
        """FILE.CLASS.METHOD of all test cases."""
        assert self._tests is not None
        names = []
        for path in sorted(self._tests.glob("*_test.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for case in tree.body:
                if isinstance(case, ast.ClassDef) and any(
                    "Test" in ast.dump(b) for b in case.bases
                ):
                    names += [f"{path.stem}.{case.name}.{name}" for name in _methods(case)]
        return names

    def group(self, test: str) -> str:
        """Itself."""
        return test

    def run(self, tests: Sequence[str], launcher: int, limit_s: float) -> Iterator[Outcome]:
        """Run each in a process of its own, with servers of its own."""
        for test in tests:
            with Servers(launcher, self._options(test), SETTINGS):
                yield self._tried(test, limit_s)

    def _options(self, test: str) -> list[list[str]]:
        assert self._tests is not None
        certificates = self._tests / "test-conf"
        plain = ["--pulsar", "localhost:6650", "--http", "localhost:8080"]
        tls = [
            *("--pulsar", "localhost:6651", "--http", "localhost:8443"),
            *("--tls-cert", str(certificates / "broker-cert.pem")),
            *("--tls-key", str(certificates / "broker-key.pem")),
            *("--tls-client-ca", str(certificates / "cacert.pem")),
        ]
        rules = FOLDER / f"rules-{os.getpid()}.toml"
        rules.write_text(RULES.format(secret=FOLDER / "secret.key"))
        return [plain, [*tls, "--auth", str(rules)]]

    def _tried(self, test: str, limit_s: float) -> Outcome:
        began = time.monotonic()
        error = ""
        with subprocess.Popen(
            [sys.executable, "-m", "unittest", test],
            cwd=self._tests,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                output, _ = process.communicate()
                error = f"killed after {limit_s:.0f} s: "
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        is_passed = process.returncode == 0 and "skipped=" not in output
        lines = [line for line in output.splitlines() if "Error" in line or "xception" in line]
        error += " | ".join(lines[-2:] or output.splitlines()[-2:])[:400]
        return Outcome(test, is_passed, time.monotonic() - began, "" if is_passed else error)


def _methods(case: ast.ClassDef) -> list[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        part.name for part in case.body if isinstance(part, kinds) and part.name.startswith("test")
    ]
