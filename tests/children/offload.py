"""Offload a topic, and die at a step of it: STORE ARCHIVE STEP NTH."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import txlog
from tests.children import dying
from txlog.client.answers import space
from txlog.engine.storage import remote

path, archive, aim, nth = sys.argv[1:]
put = remote.put


def put_in_halves(place: str, name: str, pieces: Iterable[bytes]) -> None:
    """Store a file, each piece in two parts."""

    def halves() -> Iterator[bytes]:
        for piece in pieces:
            yield piece[: len(piece) // 2]
            dying.step("half")
            yield piece[len(piece) // 2 :]

    put(place, name, halves())
    dying.step("put")


vars(remote)["put"] = put_in_halves
dying.around(remote, "check", after="check")
dying.around(space, "write_checkpoint", "switch", "let go")
dying.at(aim, int(nth))
with txlog.open(path) as client:
    client.checkpoint_automatically = False
    client.admin.offload("orders", archive)
    client.checkpoint()
    dying.step("done")
