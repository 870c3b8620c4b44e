"""When the rows of a send are delivered: what was asked for becomes an instant, under the lock.

    deliver_at T      T, also when it has passed: then the message is delivered at once
    deliver_after D   the time of the frame that appends the row, plus D
    nothing           null: at once

The time is that of the frame, never the sender's own: producers whose clocks differ still mean the
same by a delay (apache/pulsar #13567). Source: spec/delayed-delivery 2.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from txlog.engine.flow.route import Routed
from txlog.engine.model.schema import INSTANT
from txlog.settings import INSTANT_MS_MAX

AFTER, AT = "deliver_after", "deliver_at"


def resolved(routed: Routed, time_ms: int) -> Routed:
    """The rows as a frame of this time stores them: delays are instants, at most the last one."""
    batch = routed.batch
    at = batch.schema.get_field_index(AFTER)
    if at < 0:
        return routed
    delays = batch.column(at)
    batch = batch.remove_column(at)
    # skip_nulls: a row without a delay stays without
    most = pa.scalar(INSTANT_MS_MAX - time_ms, pa.int64())
    within = pc.min_element_wise(delays, most, skip_nulls=False)
    instants = pc.add(within, pa.scalar(time_ms, pa.int64())).cast(INSTANT)
    asked = batch.schema.get_field_index(AT)
    if asked < 0:
        batch = batch.append_column(AT, instants)
    else:
        batch = batch.set_column(asked, AT, pc.coalesce(batch.column(asked), instants))
    return msgspec.structs.replace(routed, batch=batch)


def resolved_one(deliver_at: int | None, deliver_after: int | None, time_ms: int) -> int | None:
    """The instant of one message, as `resolved`; None: at once."""
    return deliver_at if deliver_after is None else min(time_ms + deliver_after, INSTANT_MS_MAX)
