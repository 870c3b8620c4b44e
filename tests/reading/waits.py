"""Owns a call that waits in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from txlog.errors import TxlogError

LONG_S = 600.0
WOKEN_S = 5.0  # until a call that was woken has its answer


class Thread(threading.Thread):
    """A call that waits."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.answer: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._call()
        except TxlogError as error:
            self.answer = error

    def result(self) -> Any:
        self.join(WOKEN_S)
        assert not self.is_alive(), "nobody woke it"
        return self.answer


def value(message: Any) -> Any:
    return None if message is None else message.value
