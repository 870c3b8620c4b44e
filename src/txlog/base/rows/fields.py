"""The fields that several rows share, and the facts that a row declares about each field.

A row gives each field its type and meaning: `backlog: Annotated[int, "messages not yet …"]`. A
tuple after the meaning has the words that a text may be. `-f help`, man pages, the specification
of the command line and the relations of SQL read them here.
"""

import importlib
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, is_typeddict

from txlog.base.ids import MessageId, Position, TxnId
from txlog.base.times import is_instant


class Importance(int):
    """How long a field stays in a table that is too wide: a column without it is in between."""


MAIN, MINOR = Importance(3), Importance(1)

Acks = Annotated[int, "acknowledgements in the transaction"]
Already = Annotated[bool, "it was done before"]
Backlog = Annotated[int, "messages not yet acknowledged", MAIN]
BeginTime = Annotated[int, "when it began"]
Changed = Annotated[bool, "false when nothing had to change"]
Coordinator = Annotated[int, "number of the coordinator"]
CoordinatorState = Annotated[str, "Ready, ReadOnly or Corrupt", ("Ready", "ReadOnly", "Corrupt")]
Count = Annotated[int, "number of messages or rows that it affects"]
Created = Annotated[bool, "false when it existed already"]
CreatedTime = Annotated[int, "time of its creation", MINOR]
DeadLettered = Annotated[int, "written to the dead-letter topic"]
DecisionLsn = Annotated[int, "frame of the decision"]
Definition = Annotated[str, "an Avro record as JSON"]
Delayed = Annotated[int, "messages not yet due"]
DeliverAt = Annotated[int, "earliest delivery time"]
Detail = Annotated[str, "details"]
DryRun = Annotated[bool, "true for a rehearsal, which changes nothing"]
ElapsedMs = Annotated[int, "time taken"]
EndTime = Annotated[int, "when it was decided; null: it is open"]
Epoch = Annotated[int, "epoch of the transaction key"]
EventTime = Annotated[int, "time of the event, set by the producer"]
ExpiresAt = Annotated[int, "end of its validity; null: never"]
FencedTxn = Annotated[TxnId, "the transaction that this call fenced"]
FieldList = Annotated[list[str], "names of its fields"]
File = Annotated[str, "the file; inside a store, its path below the store"]
Files = Annotated[int, "number of files"]
Fingerprint = Annotated[str, "equal for schemas with the same records"]
First = Annotated[MessageId, "first message"]
Frames = Annotated[int, "frames of the journal"]
HolderState = Annotated[str, "None, Ready or Error", ("None", "Ready", "Error")]
Kind = Annotated[str, "its kind"]
Last = Annotated[MessageId, "last message"]
LateMessages = Annotated[int, "messages older than the watermark just before them"]
Log = Annotated[str, "kind of the changes: of keys, cursors or the catalog"]
LowWaterMarks = Annotated[dict[str, int], "lowest unfinished sequence less one, by coordinator"]
Lsn = Annotated[int, "last frame"]
Messages = Annotated[int, "visible messages"]
Name = Annotated[str, "its name"]
NotDelayed = Annotated[int, "given messages that are due, or have no time"]
OngoingTxnSize = Annotated[int, "unfinished transactions"]
Overdue = Annotated[bool, "open beyond its time-out"]
OwnMessages = Annotated[int, "its messages"]
Owner = Annotated[str, "name of the user"]
OwnerUid = Annotated[int, "number of the user"]
Partition = Annotated[int, "number of the partition, from 0"]
Partitions = Annotated[int, "number of partitions"]
Path = Annotated[str, "its path"]
PendingTxns = Annotated[int, "open transactions that assert watermarks"]
Place = Annotated[str, "directory or address of the offloaded files"]
Producer = Annotated[str, "name of the producer"]
Properties = Annotated[dict[str, str], "strings by name"]
PublishTime = Annotated[int, "when it was written"]
Reason = Annotated[str, "why it was aborted"]
RecoverEndTime = Annotated[int, "when it had finished reading"]
RecoverStartTime = Annotated[int, "when this process began to read the store"]
Regressed = Annotated[bool, "below the producer's last time, so it has no effect"]
Role = Annotated[str, "role of the token's holder"]
Rows = Annotated[int, "rows stored, markers too"]
SchemaType = Annotated[str, "json or avro"]
SchemaVersion = Annotated[int, "version of the newest schema; null: the topic has none"]
SequenceId = Annotated[int, "its sequence number"]
SizeAfterBytes = Annotated[int, "bytes of the files after"]
SizeBeforeBytes = Annotated[int, "bytes of the files before"]
SizeBytes = Annotated[int, "bytes of payload; for a topic or store, bytes stored"]
Skipped = Annotated[int, "left out"]
SkippedList = Annotated[list[str], "partitions deleted meanwhile"]
Subscription = Annotated[str, "name of the subscription", MAIN]
SubscriptionType = Annotated[str, "exclusive, shared, failover or key-shared", MINOR]
Subscriptions = Annotated[int, "number of subscriptions"]
TimeoutAt = Annotated[int, "time of its time-out"]
TimeoutMs = Annotated[int, "time-out from the beginning"]
Topic = Annotated[str, "the topic; without tenant and namespace in public/default"]
TopicList = Annotated[list[str], "the topics"]
Topics = Annotated[int, "number of topics"]
TransactionKey = Annotated[str, "the caller's name for a series of transactions"]
Transactions = Annotated[int, "transactions committed"]
Txn = Annotated[TxnId, "the transaction, COORDINATOR:SEQUENCE"]
TxnAgeMs = Annotated[int, "time since it began"]
TxnIndex = Annotated[int, "number in the transaction and partition, from 1"]
TxnState = Annotated[str, "open, prepared, committing, committed, aborting or aborted", MAIN]
Uuid = Annotated[str, "identity of the store"]
Version = Annotated[int, "version of the schema"]
VisibleTime = Annotated[int, "when it became visible: time of publish or commit"]
WaitingList = Annotated[list[str], "participants that are not available"]
WatermarkStatus = Annotated[str, "unknown, active or idle", ("unknown", "active", "idle")]


class Field(NamedTuple):
    """A field as its row declares it.

    hint:  its type, without null
    words: the texts that it may have; empty: any text
    importance: which columns leave a table that is too wide: the least important first
    """

    name: str
    hint: Any
    nullable: bool
    meaning: str
    words: tuple[str, ...]
    importance: int = 2

    @property
    def type(self) -> str:
        """The word of `-f help` for its type."""
        if is_typeddict(self.hint):
            return "object"
        word = _TYPES[get_origin(self.hint) or self.hint]
        return "instant" if word == "integer" and is_instant(self.name) else word


_TYPES = {
    str: "string", int: "integer", bool: "boolean", float: "number", bytes: "bytes",
    TxnId: "TxnID",
    MessageId: "message id", Position: "message id", dict: "object", list: "array",
}  # fmt: skip


DRY_RUN = Field("dry_run", bool, False, "true for a rehearsal, which changes nothing", ())


def row_of(name: str) -> type:
    """A row by its name below this package: `consuming.SubscriptionRow`."""
    module, _, row = name.partition(".")
    row_type: type = getattr(importlib.import_module(f"txlog.base.rows.{module}"), row)
    return row_type


def fields_of(row: type) -> list[Field]:
    """The fields of a row, in order."""
    return [_field(name, hint) for name, hint in row.__annotations__.items()]


def _field(name: str, hint: Any) -> Field:
    nullable = False
    metadata: tuple[Any, ...] = ()
    while True:
        if get_origin(hint) is Annotated:
            hint, metadata = hint.__origin__, hint.__metadata__
        elif get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint):
            nullable = True
            kinds = [each for each in get_args(hint) if each is not NoneType]
            hint = Union[tuple(kinds)]  # noqa: UP007
        else:
            break
    meaning = metadata[0] if metadata else name.replace("_", " ")
    words: tuple[str, ...] = next((each for each in metadata[1:] if isinstance(each, tuple)), ())
    importance = next((int(each) for each in metadata[1:] if isinstance(each, Importance)), 2)
    return Field(name, hint, nullable, meaning, words, importance)
