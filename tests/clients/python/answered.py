"""Sends messages to a topic by a plan: answered.py URL TOPIC, with the plan in PLAN.

tests/clients/answered.py explains the fields of the plan. The program prints the messages that were
answered. The client of Python has no transactions.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import timedelta
from threading import Lock
from typing import Any

import pulsar


class Answers:
    """Counts answers, and asks for the server to be killed after some answers."""

    def __init__(self, count: int, kills: int) -> None:
        self.stored: list[str] = []
        self.failed = 0
        self._lock = Lock()
        self._kills = [count * kill // (kills + 1) for kill in range(1, kills + 1)]

    def add(self, value: str, result: pulsar.Result) -> None:
        """Take the answer of a message."""
        with self._lock:
            if result == pulsar.Result.Ok:
                self.stored.append(value)
            else:
                self.failed += 1
            while self._kills and len(self.stored) + self.failed >= self._kills[0]:
                del self._kills[0]
                print('{"pause": "kill"}', flush=True)


def main() -> None:
    """Send all, and wait for the answers."""
    plan = json.loads(os.environ["PLAN"])
    url, topic = sys.argv[1:3]
    quiet = logging.getLogger("pulsar")
    quiet.setLevel(logging.CRITICAL)
    client = pulsar.Client(url, logger=quiet)
    options: dict[str, Any] = {}
    if plan["Keys"]:
        options["batching_type"] = pulsar.BatchingType.KeyBased
    if plan["Named"]:
        options["producer_name"] = f"own-{topic}"
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=plan["DelayMs"],
        block_if_queue_full=True,
        send_timeout_millis=0,
        **options,
    )
    answers = Answers(plan["Count"], plan["Kills"])
    for number in range(plan["Count"]):
        value = str(number)
        producer.send_async(
            value.encode(),
            lambda result, _, value=value: answers.add(value, result),
            **message_of(plan, number),
        )
    while len(answers.stored) + answers.failed < plan["Count"]:
        try:
            producer.flush()
        except pulsar.PulsarException:
            continue  # a refused message; the others are still on their way
    print(json.dumps({"answered": answers.stored, "failed": answers.failed}), flush=True)
    os._exit(0)


def message_of(plan: dict[str, Any], number: int) -> dict[str, Any]:
    """The options of `send` for a message."""
    options: dict[str, Any] = {}
    if plan["Gap"]:
        options["sequence_id"] = number * plan["Gap"]
    if plan["Keys"]:
        options["partition_key"] = f"key {number % plan['Keys']}"
    if plan["Refused"] and number % plan["Refused"] == plan["Refused"] - 1:
        options["partition_key"] = "x" * 70_000
    if plan["Delayed"] and number % plan["Delayed"] == 1:
        options["deliver_after"] = timedelta(milliseconds=1)
    return options


if __name__ == "__main__":
    main()
