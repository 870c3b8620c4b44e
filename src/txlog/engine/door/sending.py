"""Sending: sessions of producers, routing, and the decisions that store messages."""

from txlog.engine.decide.sending.producers import SHARED, NamedProducer, epoch_of, open_producer
from txlog.engine.decide.sending.send import (
    AFTER,
    AT,
    Batch,
    OutgoingBatch,
    SliceReceipt,
    send,
    send_in_txn,
    send_together,
)
from txlog.engine.plan.route import (
    COLUMNS,
    ORDERING_KEY,
    Routed,
    check_delays,
    check_numbers,
    message_bytes,
    ordering_key_in,
    partition_of_key,
    route,
    user_batch,
    with_ordering_key,
)
from txlog.engine.session.sending.access import Access, Opening, Target
from txlog.engine.session.sending.first_use import topic_in_use
from txlog.engine.session.sending.future import SendFuture
from txlog.engine.session.sending.large import Body, Value, address, body_of
from txlog.engine.session.sending.large import send as send_large
from txlog.engine.session.sending.outbox import (
    INT64,
    Batching,
    Item,
    Lane,
    Outbox,
    ProducerOptions,
    batching_of,
    rows_of,
    too_many,
)
from txlog.engine.session.sending.receipt import BatchReceipt, LargeReceipt, SendReceipt, Stretch
