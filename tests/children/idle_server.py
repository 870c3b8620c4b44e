"""Start a server and stop it; print what has run that it does not need until then."""

from __future__ import annotations

import signal
import sys

import txlog
from txlog.base.startup.lazy import LazyModule
from txlog.serve import app
from txlog.serve.core.service import ServerOptions
from txlog.serve.core.sockets import Address

ran: set[str] = set()


def told(places: object) -> None:
    """Note what has run, and stop."""
    ran.update(name for name, module in sys.modules.items() if type(module) is not LazyModule)
    signal.raise_signal(signal.SIGTERM)


client = txlog.open(sys.argv[1])
app.serve(client, ServerOptions(pulsar=Address("127.0.0.1", 0)), told)
idle = """
serve.http.application serve.http.listener serve.auth.keys serve.auth.tokens client.admin
client.answers.inspect lake.sql.segments functions engine.relation.build engine.upkeep.space.sweep
engine.upkeep.changes.log engine.upkeep.checkpoint.history
""".split()
heavy = """
starlette uvicorn websockets h11 jwt cryptography duckdb typer rich pyarrow.compute pyarrow.parquet
orjson importlib.metadata difflib
""".split()
ours = [name for name in ran if name.startswith("txlog.") and ".engine.door" not in name]
never = {*heavy, *(f"txlog.{name}" for name in idle)}
print(sorted(ran & never), "google.protobuf" in ran, len(ours) < 255)
