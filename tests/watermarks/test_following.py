"""`consume -F --watermarks`: a new watermark wakes it, without any message.

Source: spec/cli 8.2.
"""

from __future__ import annotations

import json
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import txlog

WAIT_S = 60  # only a failing test waits for so long


def next_line(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout is not None
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        assert waiting.select(WAIT_S), "nothing came"
    return json.loads(process.stdout.readline())


def test_a_new_watermark_wakes_a_following_consumer(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    txlog.init(path)
    with txlog.open(path) as client:
        client.create_topic("t")
        client.create_subscription("t", "s")
        watermarks = client.topic("t").watermarks
        watermarks.set(1000, "A")
        command = [sys.executable, "-m", "txlog", "-S", path, "consume", "t", "-s", "s"]
        with subprocess.Popen(
            [*command, "--watermarks", "-F"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            try:
                assert next_line(process)["watermark"] == "1970-01-01T00:00:01.000Z"
                watermarks.set(2000, "A")
                line = next_line(process)
                assert line["kind"] == "watermark"
                assert line["watermark"] == "1970-01-01T00:00:02.000Z"
                client.producer("t").send(b"x", event_time=1999)
                assert next_line(process)["late"] is True
                watermarks.set(3000, "A")
                assert next_line(process)["watermark"] == "1970-01-01T00:00:03.000Z"
                process.send_signal(signal.SIGINT)
                assert process.wait(WAIT_S) == 130
            finally:
                process.kill()
