"""Owns the checked options of `run` and `transform`, as their commands pass them to the work."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Request:
    """The checked options of one run.

    words:     the command of `transform`; empty for a function
    instance:  number of this process in --parallelism; None: a run of one process, or the process
               that watches the instances
    report_to: the descriptor that the watching process reads
    """

    function: str
    batch: bool
    inputs: list[str]
    output: str | None
    subscription: str
    name: str | None
    parallelism: int
    txn_size: int
    txn_time_ms: int
    txn_timeout_ms: int | None
    transaction_key: str | None
    limit: int | None
    follow: bool
    max_wait_ms: int
    create: bool
    allow_loop: bool
    type: str | None
    on_error: str
    retries: int
    instance: int | None
    report_to: int | None
    path: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    in_format: str = "lines"
    out_format: str = "lines"
    dead_letter_topic: str | None = None

    def arguments(self, instance: int, report_to: int) -> list[str]:
        """The arguments of a command line that runs one instance."""
        out = ["transform", *self.inputs, str(self.output)] if self.words else ["run"]
        if not self.words:
            out.append(self.function)
            out += [f"--input={topic}" for topic in self.inputs]
            out += [f"--path={directory}" for directory in self.path]
        on_error = self.on_error
        if self.dead_letter_topic is not None:
            on_error = f"{on_error}:{self.dead_letter_topic}"
        values: dict[str, object] = {
            "output": None if self.words else self.output,
            "in-format": self.in_format if self.words else None,
            "out-format": self.out_format if self.words else None,
            "subscription": self.subscription,
            "name": self.name,
            "txn-size": self.txn_size,
            "txn-time": f"{self.txn_time_ms}ms",
            "txn-timeout": None if self.txn_timeout_ms is None else f"{self.txn_timeout_ms}ms",
            "transaction-key": self.transaction_key,
            "max-wait": f"{self.max_wait_ms}ms",
            "on-error": on_error,
            "retries": self.retries,
            "instance": instance,
            "report-to": report_to,
        }
        out += [f"--{name}={value}" for name, value in values.items() if value is not None]
        out += ["--batch"] * (self.batch and not self.words) + ["--follow"] * self.follow
        out += ["--allow-loop"] * self.allow_loop
        return [*out, "--", *self.words] if self.words else out
