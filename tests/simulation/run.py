"""Owns a run: it performs a scenario, lets the store recover, and has the history judged."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import msgspec

from tests.history.events import Event, Recorder
from tests.simulation.agent import Agent, Memory, need_sound, rows_of, snapshot
from tests.simulation.aio_agent import AioAgent
from tests.simulation.client_agent import ClientAgent, resolve
from tests.simulation.machine import SharedDisk, SimulatedProcess, World
from tests.simulation.network import Network
from tests.simulation.primitives import EPOCH_NS
from tests.simulation.scenario import ProcessPlan, Scenario
from tests.simulation.scheduler import SECOND, Active, Scheduler, Stuck
from tests.simulation.server_agent import ServerAgent
from txlog import clock as clocks
from txlog.base.settings import Settings
from txlog.client.answers.integrity import verify_disk
from txlog.client.open import open_on
from txlog.clock import SystemClock
from txlog.engine.store.identity import make_store
from txlog.errors import TxlogError

KINDS: dict[str, type[Agent]] = {
    "agent": Agent,
    "aio": AioAgent,
    "server": ServerAgent,
    "client": ClientAgent,
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
        self.findings: list[Finding] = []
        for fault in scenario.faults:
            self.world.faults.setdefault(fault["at"], []).append(dict(fault))
        self.world.on_death = self._died
        self.world.on_event = self._note
        self._plans: dict[str, tuple[ProcessPlan, Memory]] = {}

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
            self._phase("setup", self._set_up)
            for plan in self.scenario.processes if not self.findings else ():
                self._plans[plan.name] = plan, Memory()
                self._start(plan.name)
            self._go()
            self.world.faults.clear()
            if not self.findings:
                self.scheduler.now_ns += AFTERWARDS_S * SECOND
                self.recorder.event("recovered")
                self._phase("checker", self._look_over)
        except Stuck as stuck:
            self.findings.append(Finding("stuck", f"stuck: {stuck}"))
        finally:
            Active.scheduler = None
            clocks._read_boot_id = before
            if was_collecting:
                gc.enable()
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
            scheduler.now_ns / SECOND,
            self.world.met,
        )

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
        for task, error, trace in self.scheduler.failures:
            name = f"error-{type(error).__name__}"
            text = f"{name}: {task.process}/{task.name}: {error}\n{trace}"
            self.findings.append(Finding(name, text))
        self.scheduler.failures.clear()

    # --- before and after --------------------------------------------------------------------

    def _set_up(self, process: SimulatedProcess) -> None:
        settings = Settings.from_mapping(self.scenario.settings)
        make_store(SharedDisk(process), settings, SystemClock())
        with open_on(SharedDisk(process), SystemClock()) as client:
            for topic in self.scenario.topics:
                client.create_topic(topic.name, partitions=topic.partitions, **topic.policies)
                call = self.recorder.invoke(
                    "setup", "create_topic", topic=topic.name, partitions=topic.partitions
                )
                self.recorder.ok(call)
                kind: Any
                for name, kind in topic.kinds.items():
                    client.create_subscription(
                        topic.name, name, type=kind.replace("_", "-"), position="earliest"
                    )
                    call = self.recorder.invoke(
                        "setup",
                        "subscribe",
                        topic=topic.name,
                        subscription=name,
                        kind=kind,
                        consumer=f"setup.{topic.name}.{name}",
                        initial="earliest",
                    )
                    self.recorder.ok(call)
                    call = self.recorder.invoke(
                        "setup", "close", consumer=f"setup.{topic.name}.{name}"
                    )
                    self.recorder.ok(call)

    def _look_over(self, process: SimulatedProcess) -> None:
        """Open the store, read everything, drain every subscription, verify."""
        recorder = self.recorder
        with open_on(SharedDisk(process), SystemClock()) as client:
            client.expire()
            names = [topic.name for topic in self.scenario.topics]
            call = recorder.invoke(process.name, "final_read", topics=names)
            recorder.ok(call, topics=snapshot(client, names))
            for topic in self.scenario.topics:
                for subscription, kind in topic.kinds.items():
                    self._drain(client, process, topic.name, subscription, kind)
            try:
                client.checkpoint(roll_all=True)
            except TxlogError as error:
                self.findings.append(Finding("no-checkpoint", f"no-checkpoint: {error}"))
            call = recorder.invoke(process.name, "final_read", topics=names)
            recorder.ok(call, topics=snapshot(client, names))
        need_sound(verify_disk(SharedDisk(process, read_only=True), SystemClock(), deep=True))

    def _drain(
        self, client: Any, process: SimulatedProcess, topic: str, subscription: str, kind: str
    ) -> None:
        from txlog import messages

        call = self.recorder.invoke(
            process.name, "final_drain", topic=topic, subscription=subscription
        )
        rows: list[dict[str, Any]] = []
        with client.consumer(topic, subscription, type=kind.replace("_", "-")) as consumer:
            empty = 0
            while empty < DRAIN_ROUNDS:
                table = consumer.receive_batch(1000, 1000)
                empty = 0 if table.num_rows else empty + 1
                received = [*messages(table)]
                rows += rows_of(received)
                if received:
                    consumer.acknowledge(received)
        self.recorder.ok(call, messages=rows)
