"""The targets: every function of txlog that reads bytes or text from elsewhere."""

from __future__ import annotations

from itertools import chain

from tests.fuzz.engine import Target
from tests.fuzz.targets import files, inputs, protocol, queries, server, store, words

TARGETS: dict[str, Target] = {
    target.name: target
    for target in chain(
        files.TARGETS,
        store.TARGETS,
        protocol.TARGETS,
        words.TARGETS,
        inputs.TARGETS,
        queries.TARGETS,
        server.TARGETS,
    )
}
