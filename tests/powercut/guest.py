"""The program inside the machine: it does a job of /mnt/out.

work      mounts the first disk and lets workers use a store on it until their time is over
serve     mounts the first disk, and serves a store on it to clients outside of the machine; it
          kills the server and starts another when the job's file `kill-N` appears
recover   mounts the other disks, one after another, and writes the contents of each to /mnt/out
"""

from __future__ import annotations

import json
import mmap
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

OUT, MOUNT = Path("/mnt/out"), Path("/mnt/disk")
STORE = MOUNT / "store"


def mount(disk: str, job: dict[str, Any]) -> str:
    """Mount a disk; returns what went wrong."""
    words = ["mount", "-t", job["type"], "-o", job["options"], f"/dev/ubd{disk}", str(MOUNT)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or "mount failed"


def unflushed(_: object) -> None:
    """Stand in for a flush and do nothing, to see that the comparison finds its absence."""


def leave_out_flushes(job: dict[str, Any]) -> None:
    """Leave out flushes: of files (`data`), or of names and new files (`names`)."""
    if "data" in job["leave_out"]:
        os.fdatasync = unflushed  # type: ignore[assignment]
    if "names" in job["leave_out"]:
        os.fsync = unflushed  # type: ignore[assignment]


# --- work -----------------------------------------------------------------------------------------


def work(job: dict[str, Any]) -> None:
    """Fork a process for each role, and wait for all."""
    if problem := mount("a", job):
        sys.exit(problem)
    leave_out_flushes(job)
    from . import workers

    finished = mmap.mmap(-1, mmap.PAGESIZE)

    def run(number: int, role: Any) -> None:
        seed, sends = job["seed"], job["sends"]
        worker = workers.Worker(str(STORE), "/dev/ubdb", number, seed, sends, finished)
        role(worker)
        worker.finish()

    workers.warm_up("/mnt/tmp/warm")
    run(0, workers.prepare)
    children = []
    for number, role in enumerate(workers.ROLES, 1):
        if (child := os.fork()) == 0:
            try:
                run(number, role)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    (OUT / "worked.json").write_text(json.dumps(codes))


def serve(job: dict[str, Any]) -> None:
    """Serve a store to clients outside until the job's file `stop` appears."""
    if problem := mount("a", job):
        sys.exit(problem)
    address = job["address"]
    for words in (
        ["addr", "add", f"{address}/{job['bits']}", "dev", "eth0"],
        ["link", "set", "eth0", "up"],
    ):
        subprocess.run(["ip", *words], check=True)
    from . import workers

    worker = workers.Worker(str(STORE), "/dev/ubdb", 0, 0, 0, mmap.mmap(-1, 1))
    workers.prepare(worker)
    server, kills = started(job), 0
    while not (OUT / "stop").exists():
        threading.Event().wait(0.2)
        if (OUT / f"kill-{kills}").exists():
            call = worker.tell.kill()
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
            worker.tell.ok(call)
            server, kills = started(job), kills + 1
    os.kill(server, signal.SIGKILL)


def started(job: dict[str, Any]) -> int:
    """Fork a server; returns its process."""
    if (server := os.fork()) == 0:
        leave_out_flushes(job)
        words = ["serve", "--insecure", "--pulsar", f"{job['address']}:6650", "--http", "off"]
        sys.argv = ["txlog", "-S", str(STORE), *words, "--no-topic-creation"]
        runpy.run_module("txlog", run_name="__main__", alter_sys=True)
        os._exit(1)
    return server


# --- recover --------------------------------------------------------------------------------------


def recover(job: dict[str, Any]) -> None:
    """Write for each disk the contents of its store after recovery."""
    for disk, name in job["disks"].items():
        answer: dict[str, Any] = {}
        if problem := mount(disk, job):
            answer["mount"] = problem
        else:
            try:
                examine(answer, name in job["thoroughly"])
            except Exception as error:
                answer["error"] = "".join(traceback.format_exception(error))
            done = subprocess.run(["umount", str(MOUNT)], capture_output=True, check=False)
            if done.returncode:
                answer["umount"] = done.stderr.decode()
                subprocess.run(["umount", "-l", str(MOUNT)], check=False)
        (OUT / f"{name}.json").write_text(json.dumps(answer))


def examine(answer: dict[str, Any], thoroughly: bool) -> None:
    """Recover a store, note its contents, and go on with it.

    answer: gets `open`, why the store did not open; its `topics`, its `messages` in order, the
            `numbers` of its named producers, the messages of the subscription as `drained`, the
            messages of the clients' subscription as `watched`, the `added` messages, all messages
            `later`, and the errors of verify


    thoroughly: make a checkpoint at the end, and verify once more
    """
    import txlog
    from txlog import errors

    from . import workers

    try:
        client = txlog.open(STORE)
    except errors.TxlogError as error:
        answer["open"] = f"{type(error).__name__}: {error}"
        txlog.init(STORE, if_not_exists=True, free_bytes_min=workers.FREE_BYTES_MIN)
        client = txlog.open(STORE)
    with client:
        topics = answer["topics"] = names(client)
        answer["messages"] = messages(client, topics)
        answer["verified"] = problems(txlog.verify(STORE, deep=True))
        if "orders" in topics:
            answer["numbers"] = {
                name: client.producer("orders", name=name).last_sequence_id()
                for name in workers.SENDERS
            }
        go_on(client, topics, answer)
        if thoroughly:
            client.checkpoint(roll_all=True)
        answer["later"] = messages(client, names(client))
        if thoroughly:
            answer["verified"] += problems(txlog.verify(STORE, deep=True))


def names(client: Any) -> list[str]:
    """The topics that there are now."""
    return [row["topic"] for row in client.topics()]


def messages(client: Any, topics: list[str]) -> list[dict[str, Any]]:
    """All messages of all topics, as of one moment."""
    import txlog

    from . import workers

    if not topics:
        return []
    return [
        workers.place(message) for table in client.read(topics) for message in txlog.messages(table)
    ]


def problems(report: Any) -> list[str]:
    """The errors that `verify` found; a cut may leave files that the next checkpoint removes."""
    return [str(row) for row in report["problem_list"] if row["severity"] == "error"]


def go_on(client: Any, topics: list[str], answer: dict[str, Any]) -> None:
    """Drain the subscription in transactions, and send to each topic."""
    import txlog

    from . import workers
    from .outside import WATCH

    drained = answer["drained"] = []
    added = answer["added"] = []
    subscriptions = {row["subscription"] for row in client.subscriptions()}
    if WATCH in subscriptions:
        watched = answer["watched"] = []
        with client.consumer("orders", WATCH) as consumer:
            while received := list(txlog.messages(consumer.receive_batch(1000, timeout_ms=0))):
                watched += [workers.place(message) for message in received]
    if workers.SUBSCRIPTION in subscriptions:
        with client.consumer("orders", workers.SUBSCRIPTION) as consumer:
            while True:
                table = consumer.receive_batch(1000, timeout_ms=0)
                received = list(txlog.messages(table))
                if not received:
                    break
                drained += [workers.place(message) for message in received]
                with client.transaction() as txn:
                    if "bills" in topics:
                        value = f"after-{len(drained)}"
                        client.producer("bills").send(value, txn=txn)
                        added.append({"topic": "bills", "value": value})
                    consumer.acknowledge(table, txn=txn)
            answer["drained_again"] = consumer.receive_batch(10, timeout_ms=0).num_rows
    for topic in topics:
        client.producer(topic).send("after-all")
        added.append({"topic": topic, "value": "after-all"})


if __name__ == "__main__":
    task = json.loads((OUT / sys.argv[1]).read_text())
    {"work": work, "serve": serve, "recover": recover}[task["do"]](task)
