"""Functions of `txlog run`; files in the folder of a copy say when to die or to wait."""

from __future__ import annotations

import os
import signal
from typing import Any

from txlog import Message
from txlog.functions import Context, tumbling

HERE = os.path.dirname(__file__)


def up(message: Message) -> bytes:
    """Print, and give the value in capitals."""
    print("said on stdout")
    return (message.value or b"").upper()


def keep(message: Message) -> bytes | None:
    """Give the value."""
    return message.value


def fail(message: Message, context: Context) -> bytes | None:
    """Fail at the third message."""
    context.logger.warning("see %s", message.message_id)
    if message.value == b"3":
        raise ValueError("no three")
    return message.value


def fail_late(message: Message) -> bytes | None:
    """Fail at a message of many."""
    if message.value == b"300":
        raise ValueError("no 300")
    return message.value


def table(rows: Any) -> Any:
    """Give a batch."""
    return rows


@tumbling(count=2)
def pairs(messages: list[Message]) -> bytes:
    """Join two values."""
    return b"+".join(message.value or b"" for message in messages)


@tumbling(count=7)
def sevens(messages: list[Message]) -> list[bytes | None]:
    """Give seven values."""
    return [message.value for message in messages]


@tumbling(duration_ms=2, watermarks=True, late_topic="late")
def timed(messages: list[Message]) -> list[bytes | None]:
    """Give the values of a window; die, once a file, by SIGKILL."""
    return [kill(message) for message in messages]


def number(message: Message) -> int:
    """Give what is no output."""
    return 3


def block(message: Message, context: Context) -> bytes | None:
    """Wait, once, until a process opens the pipe for writing."""
    if message.value == b"2" and os.path.exists(f"{HERE}/block"):
        os.unlink(f"{HERE}/block")
        context.logger.info("blocked")
        with open(f"{HERE}/pipe") as pipe:
            pipe.read()
    return message.value


def kill(message: Message) -> bytes | None:
    """Die, once a file, by SIGKILL."""
    path = f"{HERE}/kill-{(message.value or b'').decode()}"
    if os.path.exists(path):
        os.unlink(path)
        os.kill(os.getpid(), signal.SIGKILL)
    return message.value


def deadly(message: Message) -> None:
    """Die at every message."""
    os.kill(os.getpid(), signal.SIGKILL)


def which(message: Message, context: Context) -> bytes:
    """Give the number of the instance."""
    return str(context.instance_id).encode()
