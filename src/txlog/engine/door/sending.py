"""Sending: sessions of producers, routing, and the decisions that store messages."""

from txlog.engine.decide.sending.producers import epoch_of
from txlog.engine.decide.sending.send import OutgoingBatch, SliceReceipt, send_together
from txlog.engine.plan.route import (
    COLUMNS,
    ORDERING_KEY,
    check_delays,
    message_bytes,
    ordering_key_in,
)
from txlog.engine.session.sending.access import Access, Opening, topic_in_use
from txlog.engine.session.sending.large import Value
from txlog.engine.session.sending.message import BatchReceipt, LargeReceipt, SendReceipt, as_bytes
from txlog.engine.session.sending.outbox import Outbox, ProducerOptions, SendFuture
from txlog.engine.session.sending.producer import ProducerSession
from txlog.engine.session.sending.router import Choose
