"""Watermarks: the assertions of producers, and the watermarks of readers and consumers."""

from txlog.engine.decide.consuming.watermark_offer import clamp_of
from txlog.engine.decide.sending.watermark import (
    Assertion,
    WatermarkPlaced,
    assert_in_txn,
    assert_watermark,
    check_event_time,
    is_active,
    regresses,
    take_snapshots,
)
from txlog.engine.folds.watermark import START, ActiveProducer, Position, Watermark, WatermarkState
from txlog.engine.plan.reading.watermarks import (
    Lateness,
    StoredWatermark,
    WatermarkGenerator,
    read_rows,
    tracking_position,
)
from txlog.engine.session.reading.watermark_ground import HandedOut
from txlog.engine.session.reading.watermark_session import (
    Watermarked,
    WatermarkListener,
    WatermarkSession,
    check_listener,
)
