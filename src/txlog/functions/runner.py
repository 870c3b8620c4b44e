"""Owns the run of a function: receive, call, produce and acknowledge, until the end.

    inputs      receives messages, at most txn_size at once, as soon as some arrive
    a flow      processes them: `Batches` here, windows on watermarks in `watermarked`
    committing  runs one transaction for each batch

Messages that the function holds back stay unacknowledged and come first in the next batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from txlog.base.ids import TopicName
from txlog.base.times import duration_ms
from txlog.client.client import Client
from txlog.engine.door.topics import function_name
from txlog.errors import InvalidArgument, LimitExceeded, Refused, TxlogError
from txlog.functions.attempt import GivenUp
from txlog.functions.committing import Work
from txlog.functions.context import Context
from txlog.functions.handlers import (
    BatchHandler,
    Handler,
    MessageHandler,
    UserFunction,
    name_of,
)
from txlog.functions.inputs import Inputs
from txlog.functions.options import FunctionOptions, Hooks, Summary
from txlog.functions.watermarked import WatermarkedWindows
from txlog.functions.windows import Windowed, WindowHandler

_STOP_S: Final = 0.2  # how often it calls `stop`, as no event wakes it for that


def run(
    client: Client,
    function: UserFunction | Windowed,
    inputs: Sequence[str] | str,
    output: str | None,
    subscription: str,
    options: FunctionOptions | None = None,
    hooks: Hooks | None = None,
) -> Summary:
    """Run a function until the input is drained, or forever with `follow`.

    function: (message, context) -> outputs, or (message) -> outputs; with `batch` it gets a table
              of received rows; a function of windows gets a list of messages, or a table
    inputs:   topics; each has the subscription
    output:   topic for outputs without one; None: each output names its topic
    raises:   CommandFailed if the function finally fails and on_error is stop; ExpiredTransaction
              if a newer instance runs under the same key; ConsumerBusy, TopicNotFound,
              SubscriptionNotFound, InvalidArgument

    >>> import tempfile, txlog
    >>> from txlog import functions
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = [client.create_topic(topic) for topic in ("orders", "totals")]
    ...         _ = client.create_subscription("orders", "billing")
    ...         _ = client.producer("orders").send(b"2,3", key=b"ana")
    ...         def total(message):
    ...             return {"sum": sum(map(int, message.value.split(b",")))}
    ...         done = functions.run(client, total, "orders", "totals", "billing")
    ...         done.consumed, [message.value for message in client.reader("totals")]
    (1, [b'{"sum":5}'])
    """
    options_used, hooks_used = options or FunctionOptions(), hooks or Hooks()
    runner = Runner(client, function, inputs, output, subscription, options_used, hooks_used)
    try:
        runner.open()
        runner.loop()
        runner.drained()
    except BaseException as error:  # a signal must also release the subscriptions
        with suppress(TxlogError):  # report the first error; a lock ends with its process
            runner.work.abandon(error)
        with suppress(TxlogError):
            runner.close()
        if isinstance(error, GivenUp):
            raise error.error from error.__cause__
        raise
    runner.close()
    return runner.work.summary


class Flow(Protocol):
    """The way in which a run processes its inputs."""

    def open(self) -> None:
        """Acquire resources other than the inputs, before the inputs."""

    def turn(self) -> bool:
        """Receive and process once; returns whether there was any work."""

    def ended(self) -> None:
        """Note that the run ends: the input is drained, or the limit of messages is reached."""

    def close(self) -> None:
        """Release the resources other than the inputs."""


def check_loop(inputs: Sequence[str], outputs: Sequence[str | None], is_allowed: bool) -> None:
    """Refuse outputs that are inputs: the run would never end, and the topic would only grow.

    Topics that the function sets per message are not checked: such a loop may well end.
    raises: Refused (902)
    """
    for topic in outputs:
        if topic is not None and not is_allowed and TopicName.parse(topic).short in inputs:
            raise Refused(
                f"{TopicName.parse(topic).short} is input and output: the function would read its "
                "outputs for ever",
                code=902,
                hint="--allow-loop, or allow_loop=True, permits this",
                topic=topic,
            )


class Runner:
    """One run."""

    def __init__(
        self,
        client: Client,
        function: UserFunction | Windowed,
        inputs: Sequence[str] | str,
        output: str | None,
        subscription: str,
        options: FunctionOptions,
        hooks: Hooks,
    ) -> None:
        input_list = [inputs] if isinstance(inputs, str) else list(inputs)
        names = [TopicName.parse(topic, allow_partition=True) for topic in input_list]
        topics = [name.topic.short for name in names]
        if not names or len(set(topics)) != len(names):
            raise InvalidArgument("a function needs input topics, each only once")
        self._client, self._options, self._hooks = client, options, hooks
        into = None if output is None else TopicName.parse(output).short
        late = function.late_topic if isinstance(function, Windowed) else None
        check_loop(topics, (into, options.dead_letter_topic, late), options.allow_loop)
        name = options.name or function_name(name_of(function), topics, subscription)
        context = Context(
            name,
            options.instance,
            topics,
            into,
            subscription,
            logging.getLogger(f"txlog.function.{name}"),
        )
        self.work = Work(client, context, into, options, hooks)
        for topic in (into, options.dead_letter_topic):
            if topic is not None:
                self.work.producer(TopicName.parse(topic).short)
        watermarks = isinstance(function, Windowed) and function.watermarks
        self._inputs = Inputs(client, input_list, context, options, hooks, watermarks=watermarks)
        self._flow: Flow
        if isinstance(function, Windowed) and function.watermarks:
            self._flow = WatermarkedWindows(
                client, function, context, self._inputs, self.work, options, hooks
            )
        else:
            handler = _made_handler(client, function, names, options, hooks)
            self._flow = Batches(client, handler, context, self._inputs, self.work)

    def open(self) -> None:
        """Connect the key, which fences older instances; then wait for their subscriptions."""
        self.work.connect()
        self._flow.open()
        self._inputs.open(self.work)
        self._hooks.joined()
        self.work.started()

    def drained(self) -> None:
        """Keep the partitions of failover subscriptions: leaving would move peers' partitions."""
        if self._inputs.kinds == {"failover"}:
            self._hooks.drained()

    def close(self) -> None:
        """Release the subscriptions; unacknowledged messages will come again."""
        self._inputs.close()
        self._flow.close()

    def loop(self) -> None:
        """Process batches until the end, and wait for their commits."""
        self._process()
        self.work.land()

    def _process(self) -> None:
        idle_since, waiting = time.monotonic(), self._inputs.waiting()
        while not self._hooks.stop():
            waiting.look()
            if self._flow.turn():
                idle_since, waiting = time.monotonic(), self._inputs.waiting()
                continue
            over_s = idle_since + duration_ms(self._options.max_wait_ms) / 1000
            is_over = not self._options.follow and time.monotonic() >= over_s
            if self._inputs.is_full or is_over:
                self._flow.ended()
                return
            self.work.check_fence()
            self._client.wait_for_change(0)
            ask_s = time.monotonic() + _STOP_S
            waiting.pause(ask_s if self._options.follow else min(over_s, ask_s))


def _made_handler(
    client: Client,
    function: UserFunction | Windowed,
    inputs: Sequence[TopicName],
    options: FunctionOptions,
    hooks: Hooks,
) -> Handler:
    if isinstance(function, Windowed):
        partitions = {
            name.short: int(client.describe_topic(name.topic.short)["partitions"])
            if name.partition is None
            else 1
            for name in inputs
        }
        return WindowHandler(function, partitions, batch=options.batch)
    if options.batch:
        return BatchHandler(function)
    return MessageHandler(function, duration_ms(options.txn_time_ms), hooks.stop)


class Batches:
    """Processes each received batch at once."""

    def __init__(
        self, client: Client, handler: Handler, context: Context, inputs: Inputs, work: Work
    ) -> None:
        self._client, self._handler, self._context = client, handler, context
        self._inputs, self._work = inputs, work
        self._is_settled = True

    def open(self) -> None:
        """Do nothing: it has no other resources."""

    def ended(self) -> None:
        """Do nothing: held back messages stay unacknowledged."""

    def close(self) -> None:
        """Do nothing: it has no other resources."""

    def turn(self) -> bool:
        """Receive a batch, and process it together with the held back rows.

        Without a batch, wait for the commits in flight.
        """
        rows, is_quiet = self._inputs.receive()
        if rows.num_rows or not (self._is_settled or self._work.held is None):
            self._context.is_quiet = is_quiet
            if self._work.held is not None:
                self._work.held = self._inputs.still_held(self._work.held, rows)
            self._work.process(rows, self._handler, self._inputs)
            self._is_settled = is_quiet or not self._handler.wants_quiet
            return True
        if self._work.land():
            return True
        self._check_room()
        return False

    def _check_room(self) -> None:
        """Refuse to hold back more than a consumer may hold: no more messages would ever come."""
        held_rows = self._work.held
        if held_rows is not None and self._inputs.is_blocked:
            most = self._client.settings.unacked_max
            raise LimitExceeded(
                f"{self._context.function_name} holds back {held_rows.num_rows} messages, "
                f"unacked_max is {most}",
                hint="make its windows smaller",
                setting="unacked_max",
                limit=most,
                value=held_rows.num_rows,
            )
