"""Owns a run: it performs a scenario, lets the store recover, and has the history judged."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import msgspec

from tests.history.events import Event, Recorder
from tests.simulation.agent import (
    Agent,
    make_topic,
    need_sound,
    snapshot,
    subscribe,
)
from tests.simulation.aio_agent import AioAgent
from tests.simulation.answers import rows_of
from tests.simulation.bucket import simulated_bucket, trust_bucket
from tests.simulation.client_agent import ClientAgent, resolve
from tests.simulation.commands import simulated_commands
from tests.simulation.database import resolve_all, rows_apart, simulated_databases
from tests.simulation.machine import SharedDisk, SimulatedProcess, World
from tests.simulation.memory import Memory
from tests.simulation.network import Network
from tests.simulation.primitives import EPOCH_NS
from tests.simulation.rest_agent import RestAgent
from tests.simulation.scenario import (
    FUNCTION_IN,
    FUNCTION_SUBSCRIPTION,
    ProcessPlan,
    Scenario,
    TopicPlan,
)
from tests.simulation.scheduler import SECOND, START_NS, Active, Scheduler, Stuck
from tests.simulation.server_agent import ServerAgent
from tests.simulation.upkeep import WrongTable, check_table, come_back, make_table
from tests.simulation.wake_agent import WakeAgent
from tests.simulation.watching import check_marks
from tests.simulation.working import SEEK, check_function, make_function
from txlog import Message, messages
from txlog import clock as clocks
from txlog.base.settings import Settings
from txlog.client.answers.integrity import verify_disk
from txlog.client.open import open_on
from txlog.clock import SystemClock
from txlog.engine.store.identity import make_store
from txlog.errors import Corruption, TopicNotFound, TxlogError

KINDS: dict[str, type[Agent]] = {
    "agent": Agent,
    "aio": AioAgent,
    "server": ServerAgent,
    "client": ClientAgent,
    "wake": WakeAgent,
    "rest": RestAgent,
}
RESTART_S = 0.2
AFTERWARDS_S = 2 * 86_400  # every time-out and delay is over by then
DRAIN_ROUNDS = 2


@dataclass
class Finding:
    """What is wrong: a name that stands for the kind, and a sentence that begins with it."""

    name: str
    text: str


@dataclass
class Outcome:
    """The result of a run.

    digest: of the history and all calls of the disk; the same scenario gives the same
    """

    scenario: Scenario
    findings: list[Finding]
    events: list[Event]
    digest: str
    steps: int
    calls: int
    seconds: float
    met: list[str] = field(default_factory=list)


Judge = Callable[[list[Event]], list[Finding]]


class Run:
    """A scenario in progress."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        random = Random(f"{scenario.seed} schedule")
        self.scheduler = Scheduler(random, switch_rate=scenario.switch_rate)
        self.world = World(scenario.seed, self.scheduler)
        self.world.network = Network(self.world, scenario.seed)
        self.recorder = Recorder(now=self._now_ms)
        self.world.network.mark = lambda: len(self.recorder.events)
        self.findings: list[Finding] = []
        self.seconds = 0.0
        for fault in scenario.faults:
            self.world.arrange(fault)
        self.world.on_death = self._died
        self.world.on_event = self._note
        self._plans: dict[str, tuple[ProcessPlan, Memory]] = {}
        function = scenario.function
        self._function_topic = TopicPlan(
            FUNCTION_IN, function.partitions, {FUNCTION_SUBSCRIPTION: function.subscription}
        )

    def _note(self, op: str, **facts: Any) -> None:
        self.recorder.event(op, **facts)

    def _now_ms(self) -> int:
        return (EPOCH_NS + self.scheduler.now_ns + self.world.wall_offset_ns) // 1_000_000

    def perform(self, judge: Judge) -> Outcome:
        """Run to the end; the judge reads the history."""
        Active.scheduler = self.scheduler
        before = clocks._read_boot_id
        clocks._read_boot_id = self._boot_id
        was_collecting = gc.isenabled()
        gc.disable()
        try:
            with simulated_commands(), simulated_bucket(), simulated_databases():
                self._phases()
        except Stuck as stuck:  # perhaps since a task failed: that says more
            self._take_failures()
            self.findings.append(Finding("stuck", f"stuck: {stuck}"))
        finally:
            Active.scheduler = None
            clocks._read_boot_id = before
            if was_collecting:
                gc.enable()
                gc.collect()
        events = self.recorder.events
        resolve(events)
        if not self.findings:
            self.findings += judge(events)
        digest = self.world.trace
        for event in events:
            digest.update(msgspec.json.encode(event))
        scheduler = self.scheduler
        return Outcome(
            self.scenario,
            self.findings,
            events,
            digest.hexdigest(),
            scheduler.steps,
            self.world.calls,
            self.seconds,
            self.world.met,
        )

    def _phases(self) -> None:
        self._phase("setup", self._set_up)
        for plan in self.scenario.processes if not self.findings else ():
            self._plans[plan.name] = plan, Memory()
            self._start(plan.name)
        self._go()
        self.seconds = (self.scheduler.now_ns - START_NS) / SECOND
        self.world.forget_faults()
        self.world.network.faults.clear()
        if not self.findings:
            self._wake()
        if not self.findings:
            self.scheduler.now_ns += AFTERWARDS_S * SECOND
            self.recorder.event("recovered")
            self._phase("checker", self._look_over)
        if not self.findings:
            self._phase("damage", self._check_damage)

    def _wake(self) -> None:
        """Start servers again, and clients that receive what is left and wait for more."""
        servers = [plan.name for plan in self.scenario.processes if plan.kind == "server"]
        kind = "wake" if servers else "rest"
        self._plans["late"] = ProcessPlan("late", [], kind=kind), Memory()
        for name in (*servers, "late"):
            self._start(name)
        self._go()

    def _boot_id(self) -> str:
        return self.world.boot_id

    # --- processes ---------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        plan, memory = self._plans[name]
        process = self.world.new_process(name)
        process.kind, process.is_remote = plan.kind, plan.kind == "client"
        process.has_no_watch, process.late_events_s = plan.has_no_watch, plan.late_events_s
        agent = KINDS[plan.kind](self.scenario, plan, process, self.recorder, memory)
        self.scheduler.spawn("main", process, agent.live)

    def _died(self, process: SimulatedProcess | None) -> None:
        """Start dead processes again after a moment, as a supervisor does."""
        if process is None:
            remote = [name for name, (plan, _) in self._plans.items() if plan.kind == "client"]
            self.recorder.event("power_cut", survivors=remote)
            names = [name for name in self._plans if name not in remote]
        else:  # a server holds messages for its clients
            self.recorder.event("kill", process="" if process.kind == "server" else process.name)
            names = [process.name]
        supervisor = SimulatedProcess(self.world, "supervisor")
        for name in names:
            if name in self._plans:
                self._plans[name][1].incarnation += 1
                self.scheduler.spawn("restart", supervisor, partial(self._restart, name))

    def _restart(self, name: str) -> None:
        self.scheduler.sleep(RESTART_S * self.scheduler.random.random())
        if not any(
            process.is_alive and process.name == name and self._has_tasks(process)
            for process in self.world.processes
        ):
            self._start(name)

    def _has_tasks(self, process: SimulatedProcess) -> bool:
        return any(task.process is process for task in self.scheduler.tasks)

    def _phase(self, name: str, act: Callable[[SimulatedProcess], None]) -> None:
        process = self.world.new_process(name)

        def calmly() -> None:
            with self.world.calm():
                act(process)

        self.scheduler.spawn("main", process, calmly)
        self._go()

    def _go(self) -> None:
        self.scheduler.run()
        self._take_failures()

    def _take_failures(self) -> None:
        for task, error, trace in self.scheduler.failures:
            name = f"error-{type(error).__name__}"
            text = f"{name}: {task.process}/{task.name}: {error}\n{trace}"
            self.findings.append(Finding(name, text))
        self.scheduler.failures.clear()

    # --- before and after --------------------------------------------------------------------

    def _set_up(self, process: SimulatedProcess) -> None:
        settings = Settings.from_mapping(self.scenario.settings)
        trust_bucket(make_store(SharedDisk(process), settings, SystemClock()).uuid)
        facts: dict[str, Any] = {"clock_jump_max_ms": settings.clock_jump_max_ms}
        if settings.watermark_producer_idle_timeout_ms:
            facts["producer_idle_timeout_ms"] = settings.watermark_producer_idle_timeout_ms
        self.recorder.event("settings", **facts)
        with open_on(SharedDisk(process), SystemClock()) as client:
            for topic in (*self.scenario.topics, self._function_topic):
                make_topic(client, self.recorder, process.name, topic)
            make_function(client)
            for topic in self.scenario.topics:
                self._announce_all(client, process, topic)
            if self.scenario.has_table:
                make_table(client)

    def _announce_all(self, client: Any, process: SimulatedProcess, topic: TopicPlan) -> None:
        """Let the named producers of a topic with watermarks promise something early."""
        names = self.scenario.announcers or [
            f"{plan.name}-{number}" for plan in self.scenario.processes for number in ("n1", "n2")
        ]
        for name in names if topic.has_watermarks else ():
            facts: dict[str, Any] = {"topic": topic.name, "producer": name, "time_ms": 1}
            call = self.recorder.invoke(process.name, "announce", **facts)
            client.producer(topic.name, name).new_watermark().event_time(1).send()
            self.recorder.ok(call)

    def _look_over(self, process: SimulatedProcess) -> None:
        """Open the store, read everything, drain every subscription, verify."""
        recorder = self.recorder
        with open_on(SharedDisk(process), SystemClock()) as client:
            client.expire()
            self._resolve(client, process)
            for topic in self.scenario.topics:  # a process died before it renamed it back
                come_back(client, topic.name)
            missing = [topic for topic in self.scenario.topics if not _exists(client, topic.name)]
            for topic in missing:  # a process died between deleting and creating it
                make_topic(client, recorder, process.name, topic)
            names = [topic.name for topic in (*self.scenario.topics, self._function_topic)]
            call = recorder.invoke(process.name, "final_read", topics=names)
            seen = snapshot(client, names)
            recorder.ok(call, topics=seen)
            self._check_rows(client, process, seen)
            for topic in self.scenario.topics:
                for subscription in topic.kinds:
                    self._drain(client, process, topic, subscription)
            self._check_function(client)
            self._check_table(client)
            self._check_marks(client)
            try:
                client.checkpoint(roll_all=True)
            except TxlogError as error:
                self.findings.append(Finding("no-checkpoint", f"no-checkpoint: {error}"))
            call = recorder.invoke(process.name, "final_read", topics=names)
            recorder.ok(call, topics=snapshot(client, names))
        need_sound(verify_disk(SharedDisk(process, read_only=True), SystemClock(), deep=True))

    def _check_damage(self, process: SimulatedProcess) -> None:
        """Damage the newest frame, which was flushed: the next writer must say so, not cut it."""
        with open_on(SharedDisk(process), SystemClock()) as client:
            client.create_topic("flushed")
        disk = SharedDisk(process)
        path = max(f"journal/{name}" for name in disk.listdir("journal") if "journal" in name)
        data = bytearray(disk.read(path))
        data[len(data.rstrip(b"\0")) - 5] ^= 0x40
        disk.damage(path, bytes(data))
        try:
            with open_on(SharedDisk(process), SystemClock()) as client:
                client.create_topic("later")
        except Corruption:
            return
        text = f"{path} was damaged in its last frame, and a writer went on"
        self.findings.append(Finding("silent-damage", f"silent-damage: {text}"))

    def _drain(
        self, client: Any, process: SimulatedProcess, topic: TopicPlan, subscription: str
    ) -> None:
        """Receive what a subscription has left, and what lies among its dead letters."""
        if not any(row["subscription"] == subscription for row in client.subscriptions(topic.name)):
            subscribe(client, self.recorder, process.name, topic, subscription)
        call = self.recorder.invoke(
            process.name, "final_drain", topic=topic.name, subscription=subscription
        )
        rows: list[dict[str, Any]] = []
        kind: Any = topic.kinds[subscription].replace("_", "-")
        with client.consumer(topic.name, subscription, type=kind) as consumer:
            empty = 0
            while empty < DRAIN_ROUNDS:
                table = consumer.receive_batch(1000, 1000)
                empty = 0 if table.num_rows else empty + 1
                received = [*messages(table)]
                rows += rows_of(received)
                if received:
                    consumer.acknowledge(received)
        seen = snapshot(client, [topic.name])[topic.name]
        replayed = self._replayed(topic.name, subscription)
        moved: list[str] = []
        for ending in ("DLQ", "RETRY"):
            name = f"{topic.name}-{subscription}-{ending}"
            for table in client.read(name) if _exists(client, name) else ():
                for row in moved_rows(messages(table), topic.name, seen):
                    if row["value"] in replayed:
                        moved.append(row["id"])
                    else:
                        rows.append(row)
        self.recorder.ok(call, messages=rows, moved=moved)

    def _replayed(self, topic: str, subscription: str) -> set[str]:
        """If the subscription went back: what it acknowledged, also after it was a dead letter."""
        refused = {event.call for event in self.recorder.events if event.type == "fail"}
        committed = {
            event.args["txn"]
            for event in self.recorder.events
            if event.op == "commit" and event.type == "invoke" and event.call not in refused
        }
        calls = [
            event.args
            for event in self.recorder.events
            if event.type == "invoke"
            and event.args.get("topic") == topic
            and event.args.get("subscription") in (subscription, None)
            and event.op in ("seek", "unsubscribe", "delete_topic", "acknowledge")
            and event.args.get("txn") in (None, *committed)
        ]
        values = [value for args in calls for value in args.get("values", ())]
        went_back = any("values" not in args and "ids" not in args for args in calls)
        return set(values) if went_back else set()

    def _resolve(self, client: Any, process: SimulatedProcess) -> None:
        if any(memory.blocks for _, memory in self._plans.values()):
            for txn in resolve_all(client, process):
                self.findings.append(Finding("prepared", f"prepared: {txn} is, for ever"))

    def _check_rows(
        self, client: Any, process: SimulatedProcess, seen: Mapping[str, Mapping[str, list[Any]]]
    ) -> None:
        """The database and the log have the same."""
        values = {value for rows in seen.values() for part in rows.values() for _, value in part}
        memories = [memory for _, memory in self._plans.values()]
        for text in rows_apart(client, process, memories, values):
            self.findings.append(Finding("one-without-the-other", f"one-without-the-other: {text}"))

    def _check_function(self, client: Any) -> None:
        seeks = [event.args["to"] for event in self.recorder.events if event.op == SEEK]
        for text in check_function(client, self.scenario.function, seeks):
            self.findings.append(Finding("function", f"function: {text}"))

    def _check_marks(self, client: Any) -> None:
        for topic in self.scenario.topics if not self.findings else ():
            announced = [e.args for e in self.recorder.events if e.op == "announce" and e.args]
            names = {each["producer"] for each in announced if each["topic"] == topic.name}
            if topic.has_watermarks:
                check_marks(client, topic.name, sorted(names))

    def _check_table(self, client: Any) -> None:
        for _, memory in self._plans.values() if self.scenario.has_table else ():
            try:
                check_table(client, memory)
            except WrongTable as error:
                self.findings.append(Finding("table", f"table: {error}"))


def moved_rows(
    moved: Iterable[Message], topic: str, seen: dict[str, list[list[str | None]]]
) -> list[dict[str, Any]]:
    """Messages of a dead-letter or retry topic, as the messages that they were.

    seen: the messages of their topic by partition; others are gone, or of a deleted topic
    """
    partition_of = {row[0]: int(number) for number, rows in seen.items() for row in rows}
    rows = []
    for message in moved:
        origin = message.properties["ORIGIN_MESSAGE_ID"]
        if origin in partition_of:
            (row,) = rows_of([message])
            row |= {"topic": topic, "id": origin, "partition": partition_of[origin]}
            rows.append(row | {"redelivered": 1})
    return rows


def _exists(client: Any, topic: str) -> bool:
    try:
        client.describe_topic(topic)
    except TopicNotFound:
        return False
    return True
