"""`consume -F --watermarks`: a new watermark wakes it, without any message.

Source: spec/cli 8.2.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import txlog
from tests.harness import Child, txlog_of


def test_a_new_watermark_wakes_a_following_consumer(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    txlog.init(path)
    with txlog.open(path) as client:
        client.create_topic("t")
        client.create_subscription("t", "s")
        watermarks = client.topic("t").watermarks
        watermarks.set(1000, "A")
        words = ("consume", "t", "-s", "s", "--watermarks", "-F")
        with Child(txlog_of(path, *words)) as child:

            def next_line() -> Any:
                return json.loads(child.line())

            assert next_line()["watermark"] == "1970-01-01T00:00:01.000Z"
            watermarks.set(2000, "A")
            line = next_line()
            assert line["kind"] == "watermark"
            assert line["watermark"] == "1970-01-01T00:00:02.000Z"
            client.producer("t").send(b"x", event_time=1999)
            assert next_line()["late"] is True
            watermarks.set(3000, "A")
            assert next_line()["watermark"] == "1970-01-01T00:00:03.000Z"
            assert child.end(signal.SIGINT)[0] == 130
