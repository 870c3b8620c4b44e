"""Owns the steps of the crash workload that commit a batch of files under KEY."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING
from unittest import mock

import pyarrow as pa

from txlog.engine.plan import staging
from txlog.engine.plan.staging import Staged, StagePlan, Stager

if TYPE_CHECKING:
    from tests.crash.world import Model, Workload

TOPIC, KEY = "t", "k"


def bulk(
    work: Workload, model: Model, rng: random.Random
) -> tuple[Model, Callable[[], None]] | None:
    """Store some messages in up to three files; a batch of one task is stored as rows.

    Every second batch is spilled: the limits are 0, so nothing of it stays in memory.
    """
    if not model.topics:
        return None
    tasks: list[list[tuple[str, int]]] = []
    for _ in range(rng.randint(1, 3)):
        messages = [work.new_value(model, rng)[:2] for _ in range(rng.randint(1, 2))]
        tasks.append(messages)
    for partition in model.log:
        model.log[partition] += [
            value for messages in tasks for value, at in messages if at == partition
        ]
    model.fence()
    model.epoch, model.deleted = model.epoch + 1, False
    model.bound = expected = f"0:{len(work.txn_ids)}"
    model.txns[expected] = "committed"
    name = f"batch {work.sent}"
    is_spilled = work.sent % 2 == 0

    def call() -> None:
        batch = work.client.bulk(TOPIC, key=KEY, batch=name)
        with ExitStack() as stack:
            for limit in (
                ("KEPT_BYTES_MAX", "TASK_BYTES_MAX", "GROUP_BYTES_MIN") if is_spilled else ()
            ):
                stack.enter_context(mock.patch.object(staging, limit, 0))
            staged = [
                staged_file
                for task, messages in enumerate(tasks)
                for staged_file in batch.stage(
                    [
                        pa.table(
                            {
                                "value": [value.encode() for value, _ in messages],
                                "partition": [at for _, at in messages],
                            }
                        )
                    ],
                    task,
                )
            ]
        answer = batch.commit(staged, rows_if_small=len(tasks) == 1)
        assert (answer["already"], str(answer["txn"])) == (False, expected)
        assert (answer["files"] == 0) is (len(tasks) == 1)
        work.txn_ids.append(expected)
        model.batches.append(name)

    return model, call


def bulk_again(
    work: Workload, model: Model, rng: random.Random
) -> tuple[Model, Callable[[], None]] | None:
    """Stage and commit the last batch a second time: the store must not change."""
    if not (model.topics and model.batches):
        return None
    name = model.batches[-1]

    def call() -> None:
        batch = work.client.bulk_of(work.client.plan_stage(TOPIC).named(KEY, name))
        staged = stage_blindly(work, batch.plan)
        assert batch.commit(staged)["already"]

    return model, call


def stage_blindly(work: Workload, plan: StagePlan) -> list[Staged]:
    """Stage a file without a check whether the batch is already committed."""
    stager = Stager(work.client.store.disk, plan)
    stager.add(pa.table({"value": [b"never"]}))
    return stager.finish()
