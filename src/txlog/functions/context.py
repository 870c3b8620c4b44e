"""Owns Context, the second argument of a function."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from txlog.functions.outputs import FROM_INPUT, Outbox, Output, _Origin

if TYPE_CHECKING:
    from txlog.base.ids import MessageId
    from txlog.engine.door.reading import Message


class Window(NamedTuple):
    """The extent of a window: its number of messages, and for time its bounds, ms since 1970 UTC.

    is_late: the window was closed already; these messages came too late for it
    """

    messages: int
    start: int | None
    end: int | None
    is_late: bool = False


class Context:
    """Facts about a function and its input, and the way to publish.

    The names are those of Pulsar Functions without `get_`. In a function of batches, `message` and
    its parts are None, its properties {}. `window` is None in a function without windows, and
    `watermark` (ms since 1970 UTC) without windows that close on watermarks.

    >>> from txlog.functions import Context
    >>> def total(message, context):
    ...     context.logger.debug("attempt %d", context.attempt)
    ...     context.publish("audit", message.value, properties={"from": context.function_name})
    """

    __slots__ = (
        "_held",
        "_outbox",
        "attempt",
        "function_name",
        "input_topics",
        "instance_id",
        "is_quiet",
        "logger",
        "message",
        "output_topic",
        "subscription",
        "watermark",
        "window",
    )

    def __init__(
        self,
        function_name: str,
        instance_id: int,
        input_topics: Sequence[str],
        output_topic: str | None,
        subscription: str,
        logger: logging.Logger,
    ) -> None:
        self.function_name = function_name
        self.instance_id = instance_id
        self.input_topics = tuple(input_topics)
        self.output_topic = output_topic
        self.subscription = subscription
        self.logger = logger
        self.attempt = 1  # number of the attempt at this input
        self.message: Message | None = None
        self.window: Window | None = None
        self.watermark: int | None = None
        self.is_quiet = False  # the input was drained when this batch was received
        self._outbox: Outbox | None = None
        self._held: pa.Array | None = None

    @property
    def message_id(self) -> MessageId | None:
        """The id of the current message."""
        return None if self.message is None else self.message.message_id

    @property
    def message_key(self) -> bytes | None:
        """Its key."""
        return None if self.message is None else self.message.key

    @property
    def message_eventtime(self) -> int | None:
        """Its event time, ms since 1970 UTC."""
        return None if self.message is None else self.message.event_time

    @property
    def message_properties(self) -> dict[str, str]:
        """Its properties."""
        return {} if self.message is None else self.message.properties

    @property
    def current_message_topic_name(self) -> str | None:
        """The topic it came from."""
        return None if self.message is None else self.message.topic

    def publish(
        self,
        topic: str,
        value: object,
        *,
        key: bytes | str | _Origin | None = FROM_INPUT,
        properties: Mapping[str, str] | None = None,
        event_time: int | _Origin | None = FROM_INPUT,
        deliver_at: int | None = None,
        deliver_after: int | None = None,
    ) -> None:
        """Produce to any topic, in the transaction of this batch; the arguments of Output.

        value:  or a pa.Table of messages, without the other arguments
        raises: InvalidMessage, TopicNotFound
        """
        assert self._outbox is not None, "a context publishes while its function runs"
        if isinstance(value, pa.Table | pa.RecordBatch):
            self._outbox.add_table(topic, value)
            return
        output = Output(value, key, properties, event_time, deliver_at, topic, deliver_after)
        self._outbox.add(output, self.message)

    def hold_back(self, mask: pa.Array) -> None:
        """Leave rows of a batch unacknowledged where mask is true; the next batch begins with them.

        Only for functions of batches whose results belong to complete groups of messages.
        """
        self._held = mask

    def begin(self, outbox: Outbox) -> None:
        """Prepare the context for a new attempt."""
        self._outbox = outbox
        self._held = None
        self.message = self.window = None
        self.attempt = 1

    @property
    def held(self) -> pa.Array | None:
        """The mask of hold_back in this attempt."""
        return self._held
