"""Owns the suite of the Java client: its tests in `org.apache.pulsar:pulsar-broker:tests`.

Maven fetches that jar, the server's distribution, which has the libraries, and TestNG. The classes
in `java` replace the base classes that start a broker in the process of the tests: they start
`txlog serve` instead. A test that uses objects of that broker fails with "needs the broker's
insides".
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import ClassVar

from tests.upstream import verdicts
from tests.upstream.suite import BUILD, Suite, Unavailable, built
from tests.upstream.verdicts import Outcome

FOLDER = BUILD / "java"
SOURCE = Path(__file__).resolve().parent / "java"
TESTS = re.compile(r"org/apache/pulsar/client/api/(\w+Tests?)\.class")
# Base classes of other tests, and tests of an older protocol.
NO_TESTS = ("AbstractMessageDispatchThrottlingTest", "Test")
MEMORY = ("-Xmx640m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
OPENED = (
    "java.base/java.lang java.base/java.util java.base/java.nio java.base/sun.net"
    " java.base/jdk.internal.loader java.base/jdk.internal.misc java.base/jdk.internal.platform"
    " java.management/sun.management jdk.management/com.sun.management.internal"
).split()
# Beyond its limit TestNG interrupts a test; if the test goes on, its process is killed.
GRACE_SECONDS = 40


INSIDES = "needs the broker's insides"


class Java(Suite):
    """The tests of the Java client."""

    name = "java"
    parts = 23
    causes: ClassVar[Mapping[str, str]] = {
        "needs the broker's insides": INSIDES,
        "mockZooKeeper": INSIDES,
        "pulsarTestContext": INSIDES,
        "NoClassDefFoundError": INSIDES,
        "NoSuchMethodError": INSIDES,
        "the one cluster is standalone": "makes a cluster, and a store is the only one",
        "a store has no such setting": "sets a policy that a store does not have",
        "a broker has no settings here": "changes settings of a running broker",
        "cannot be terminated": "terminates a topic, which a store cannot do",
        "non-persistent": "uses topics that are not stored",
        "/admin/persistent/": "names a topic with a cluster, as Pulsar 1 did, to the admin API",
        "TLS: ": "uses a key store of Java for the server's certificate",
    }

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._classes: dict[str, str] = {}

    def prepare(self) -> None:
        """Fetch the tests and their libraries, and compile the stand-ins."""
        for program in ("mvn", "javac"):
            if shutil.which(program) is None:
                raise Unavailable(f"there is no {program} here")
        if not built(FOLDER, SOURCE):
            FOLDER.mkdir(parents=True, exist_ok=True)
            _done("mvn", "-q", "-B", "dependency:copy", "dependency:build-classpath")
            _unpack()
            sources = [str(path) for path in sorted(SOURCE.rglob("*.java"))]
            _done("javac", "-nowarn", "-d", str(FOLDER / "classes"), "-cp", _classpath(), *sources)
            (FOLDER / "built").touch()
        for path in sorted((FOLDER / "tests").glob("org/apache/pulsar/client/api/*.class")):
            name = str(path.relative_to(FOLDER / "tests"))
            match = TESTS.fullmatch(name)
            if match and match[1] not in NO_TESTS:
                self._classes[match[1]] = name.removesuffix(".class").replace("/", ".")

    def tests(self) -> Sequence[str]:
        """The tests with a verdict, and `CLASS.*` for each class without any verdict."""
        known_tests = [
            test for test in verdicts.read(self.name) if self.group(test) in self._classes
        ]
        groups = {self.group(test) for test in known_tests}
        return [*known_tests, *(f"{name}.*" for name in self._classes if name not in groups)]

    def group(self, test: str) -> str:
        """Its class."""
        return test.partition(".")[0]

    def run(self, tests: Sequence[str], launcher: int, limit_s: float) -> Iterator[Outcome]:
        """Run tests of a class; whole, if all that have a verdict are among them."""
        name = self.group(tests[0])
        known_tests = {test for test in self.tests() if self.group(test) == name}
        methods = set() if known_tests <= set(tests) else {_method(test) for test in tests}
        done: set[str] = set()
        while True:
            line = self._classes[name]
            line += f"#{','.join(sorted(methods))}" if methods else ""
            line += f"!{','.join(sorted(done))}" if done else ""
            count_before = len(done)
            for outcome in self._class(line, launcher, limit_s):
                if outcome is None:
                    return
                done.add(_method(outcome.test))
                yield outcome
            # killed: the others of the class run in the next process
            if len(done) == count_before:
                return

    def _class(self, line: str, launcher: int, limit_s: float) -> Iterator[Outcome | None]:
        """The outcomes of a class; a final None means that the class ended by itself.

        line: what `Suite.java` reads
        """
        process = self._running(launcher, limit_s)
        assert process.stdin is not None and process.stdout is not None
        print(line, file=process.stdin, flush=True)
        begun = ""
        while True:
            timer = Timer(limit_s + GRACE_SECONDS, process.kill)
            timer.start()
            text = process.stdout.readline()
            timer.cancel()
            if not text:
                self.close()
                if begun:
                    yield Outcome(begun, False, limit_s, f"killed after {limit_s:.0f} s")
                return
            event = json.loads(text)
            if event["status"] == "done":
                yield None
                return
            begun = event["test"] if event["status"] == "begin" else ""
            if not begun:
                is_passed = event["status"] == "pass"
                error = "" if is_passed else event["error"] or "it was skipped"
                yield Outcome(event["test"], is_passed, event["ms"] / 1000, error)

    def _running(self, launcher: int, limit_s: float) -> subprocess.Popen[str]:
        if self._process is None:
            opened = [part for each in OPENED for part in ("--add-opens", f"{each}=ALL-UNNAMED")]
            with (FOLDER / "log").open("a") as log:
                self._process = subprocess.Popen(
                    [
                        *("java", *MEMORY, *opened, f"-Dupstream.launcher={launcher}"),
                        *("-cp", _classpath(), "upstream.Suite", str(int(limit_s * 1000))),
                    ],
                    cwd=FOLDER,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
        return self._process

    def close(self) -> None:
        """End the process of the tests."""
        if self._process is not None:
            self._process.kill()
            with suppress(BrokenPipeError):
                self._process.communicate()
            self._process = None


def _method(test: str) -> str:
    return test.partition(".")[2].partition("#")[0]


def _done(*command: str) -> None:
    done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise Unavailable(f"{command[0]} did not build it: {' '.join(lines[:3])[:400]}")


def _unpack() -> None:
    """Lay out the tests, their resources where they look for them, and the libraries."""
    for name in ("tests", "libraries", "classes", "src"):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    [tests] = (FOLDER / "fetched").glob("*-tests.jar")
    with zipfile.ZipFile(tests) as jar:
        jar.extractall(FOLDER / "tests")
    resources = FOLDER / "src" / "test" / "resources"
    resources.parent.mkdir(parents=True)
    resources.symlink_to(FOLDER / "tests")
    (FOLDER / "libraries").mkdir()
    # the plugin that fetches it cuts long names off, so it does not unpack it
    [archive] = (FOLDER / "fetched").glob("*.tar.gz")
    with tarfile.open(archive) as files:
        for member in files:
            place = Path(member.name)
            if place.parent.name == "lib" and place.suffix == ".jar":
                source = files.extractfile(member)
                assert source is not None
                with source, (FOLDER / "libraries" / place.name).open("wb") as target:
                    shutil.copyfileobj(source, target)
    archive.unlink()


def _classpath() -> str:
    libraries = (FOLDER / "classpath").read_text(encoding="utf-8").strip()
    # the stand-ins come before the classes that they replace
    return f"{FOLDER}/classes:{FOLDER}/tests:{FOLDER}/libraries/*:{libraries}"
