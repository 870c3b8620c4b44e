"""Chromium over its own protocol: a test opens a page, reads it, types, and takes screenshots."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
DEADLINE_S = 60


class Gone(AssertionError):
    """The page was replaced by another one before it answered."""


class Page:
    """A page in a browser of its own; a context manager."""

    def __init__(self, folder: Path) -> None:
        program = next(filter(None, map(shutil.which, BROWSERS)))
        self._process = subprocess.Popen(
            [
                program,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--remote-debugging-port=0",
                "--hide-scrollbars",
                f"--user-data-dir={folder / 'profile'}",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                "about:blank",
            ],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Debian's command is a shell that starts the browser
        )
        self._count = 0
        self.events: list[dict[str, Any]] = []
        self._session = ""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "DevTools listening on " in line:
                break
        url = line.split("DevTools listening on ")[1].strip()
        self._stack = ExitStack()
        self._socket = self._stack.enter_context(connect(url, max_size=None))
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        found = self.tell("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.tell(f"{domain}.enable")

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def tell(self, method: str, **params: Any) -> dict[str, Any]:
        """Run a command of the protocol; returns its result."""
        self._count += 1
        command = {"id": self._count, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        self._socket.send(json.dumps(command))
        while True:
            heard: dict[str, Any] = json.loads(self._socket.recv(DEADLINE_S))
            if heard.get("id") == self._count:
                if "navigated" in heard.get("error", {}).get("message", ""):
                    raise Gone(method)
                assert "error" not in heard, heard
                result: dict[str, Any] = heard["result"]
                return result
            self.events.append(heard)

    def look(self, width: int, height: int, scheme: str) -> None:
        """Emulate a screen of this size, light or dark; a narrow one is a phone."""
        phone = width < 600
        self.tell(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.tell("Emulation.setEmulatedMedia", features=features)

    def ask(self, script: str) -> Any:
        """The value of an expression; a promise is awaited."""
        answer = self.tell(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + DEADLINE_S
        while not self._is_true(script):
            assert time.monotonic() < deadline, f"never true: {script}"

    def _is_true(self, script: str) -> bool:
        try:
            return bool(self.ask(f"new Promise((r) => setTimeout(() => r(!!({script})), 30))"))
        except Gone:
            return False

    def reload(self) -> None:
        """Load the page anew, and wait until it is the new one."""
        self.ask("window.isOld = true")
        self.tell("Page.reload")
        self.until("!window.isOld")

    def press(self, key: str, *, ctrl: bool = False) -> None:
        """Press a key, as a keyboard does."""
        codes = {"Enter": 13, "Escape": 27}
        text = key if len(key) == 1 else "\r" if key == "Enter" else ""
        fields = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0].upper()))}
        down = "keyDown" if text and not ctrl else "rawKeyDown"
        self.tell(
            "Input.dispatchKeyEvent",
            type=down,
            modifiers=2 if ctrl else 0,
            **({"text": text} if text and not ctrl else {}),
            **fields,
        )
        self.tell("Input.dispatchKeyEvent", type="keyUp", **fields)

    def write(self, text: str) -> None:
        """Type text into the element that has the focus."""
        self.tell("Input.insertText", text=text)

    def photograph(self, file: Path, *, whole: bool = False) -> None:
        """Save a screenshot as PNG; whole: of the whole page, not only the visible part."""
        found = self.tell(
            "Page.captureScreenshot", captureBeyondViewport=whole, **self._clip(whole)
        )
        file.write_bytes(base64.b64decode(found["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.tell("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {**size, "x": 0, "y": 0, "scale": 1}}
