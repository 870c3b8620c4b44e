"""Owns Reader and Readers: they read committed messages without a subscription and write nothing.

A reader reads in rounds. A round has one LSN for all partitions and reads each partition up to its
end at that LSN. Then the next round begins. So all messages of a transaction are in one round,
even if they are in several partitions and topics. A range with an end is a single round.
Source: spec/transactions 8, Snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from types import TracebackType

import pyarrow as pa

from txlog.base.arguments import checked
from txlog.base.ids import MessageId, TopicName
from txlog.base.ranges import Bound, Range
from txlog.base.settings import RECEIVE_BYTES_MAX
from txlog.base.times import DurationLike, duration_ms
from txlog.client.reading.preview import newest_html
from txlog.engine.door import integrity as quarantine
from txlog.engine.door.catalog import Topic, check_partition, live_topic, number_of, numbers
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.consuming import Cursor, covers
from txlog.engine.door.facts import CATALOG, IdSet, Mark, Run
from txlog.engine.door.integrity import damage_error, find_damage, quarantine_wall
from txlog.engine.door.integrity import wall as damage_wall
from txlog.engine.door.reading import (
    NO_MESSAGES,
    RECEIVED,
    START,
    CompactedRange,
    Concern,
    Decoder,
    Message,
    Part,
    Plan,
    PreviewPosition,
    Quiet,
    ReadRange,
    Received,
    Unread,
    Where,
    bound_of,
    check_isolation,
    check_retained,
    compacted_range,
    end_of,
    is_settled,
    last_ids,
    least,
    only_one,
    partition_of,
    plan,
    preview,
    received,
    requests_of,
    resolve_bound,
    resolve_range,
    rows_of,
    start_of,
    stop_after,
    take_again,
    until,
    until_appended,
    until_told,
)
from txlog.engine.door.reading import take as take_compacted
from txlog.engine.door.segments import FileRef
from txlog.engine.door.store import Mutex, Store, View
from txlog.engine.door.transactions import unavailable_error
from txlog.engine.door.watermarks import (
    HandedOut,
    Watermarked,
    WatermarkListener,
    WatermarkSession,
    check_listener,
)
from txlog.errors import (
    AlreadyClosed,
    Corruption,
    InvalidArgument,
    MessageNotFound,
    MissingFile,
    SnapshotExpired,
    TxlogError,
)

BATCH_MESSAGES = 1000
# read_next first reads AHEAD_FIRST messages ahead, and AHEAD_GROWTH times as many at each further
# read, up to BATCH_MESSAGES: most callers of read_next want a single message.
AHEAD_FIRST, AHEAD_GROWTH = 10, 10


@checked
class Reader(Watermarked):
    """Reads a topic from a position on; iterating ends at the end of the log.

    With watermarks, its watermark follows the last message it delivered and the watermark rows
    directly after that message. The reader stores nothing.

    If a signal handler raises in the middle of a call, the reader stays usable: the messages that
    this call had read come next. A message that the call was just returning may be lost. A loop
    over the reader, or over `follow`, loses none.

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = client.create_topic("orders")
    ...         _ = client.producer("orders").send(b"one", key=b"k")
    ...         with client.reader("orders") as reader:
    ...             message = reader.read_next()
    ...             message.value, message.key, reader.has_message_available()
    (b'one', b'k', False)
    """

    __slots__ = (
        "_ahead",
        "_compacted",
        "_compacted_files",
        "_concern",
        "_damage",
        "_decoder",
        "_ends",
        "_ground",
        "_grows",
        "_is_bounded",
        "_is_closed",
        "_isolation",
        "_left",
        "_lsn",
        "_of_txn",
        "_partitions",
        "_places",
        "_previews",
        "_session",
        "_skips",
        "_stops",
        "_store",
        "_topic_number",
        "_turn",
        "_turns",
        "_unread",
        "_wanted",
        "columns",
        "is_led",
        "is_settled",
        "short",
        "topic",
    )

    def __init__(
        self,
        store: Store,
        topic: str,
        wanted: Range,
        partitions: list[int] | None,
        isolation: str = "committed",
        enable_watermarking: bool = False,
        listener: WatermarkListener[Reader] | None = None,
        *,
        is_led: bool = False,
    ) -> None:
        """is_led: a Readers object begins the rounds of this reader, including the first."""
        check_isolation(isolation)
        if wanted.kind == "compacted" and (isolation != "committed" or enable_watermarking):
            raise InvalidArgument(
                "compacted messages are committed, and have no watermarks", code=203
            )
        check_listener(listener, enable_watermarking)
        self._store = store
        self._decoder = Decoder(store)
        self.topic = TopicName.parse(topic, allow_partition=True)
        self.short = self.topic.topic.short
        self._ahead = AHEAD_FIRST  # how many messages read_next reads at once
        self._unread = Unread(self._decoder)  # read ahead and not yet delivered
        self._turns = Mutex(store.disk.pid)  # one thread at a time takes from `_unread`
        self._is_closed = False
        self._turn = 0
        self._damage: tuple[int, int, int] | None = None  # found in this call, not yet recorded
        self._places: dict[int, Mark] = {}
        self._compacted: dict[int, CompactedRange] = {}  # compacted rows, to be read before the log
        self._compacted_files: dict[int, tuple[FileRef, ...]] = {}  # their files at the start
        self._stops: dict[int, Mark | None] = {}
        self._skips: dict[int, tuple[Mark, IdSet] | None] = {}
        self._previews: dict[int, PreviewPosition] = {}
        # of the present round: its LSN, where each partition ends, the unfinished partitions
        self._lsn = 0
        self._ends: dict[int, Mark] = {}
        self._left: set[int] = set()
        self._topic_number = 0
        self._wanted, self._partitions, self._isolation = wanted, partitions, isolation
        self._of_txn = wanted.txn
        self._is_bounded = not wanted.is_endless
        self.is_led = is_led
        self.columns: Sequence[str] | None = None  # the columns to read, others are null; None: all
        self.is_settled = False  # no later frame, and so no damage, can change the range
        of_all = partitions is None and self.topic.partition is None
        self._grows = of_all and wanted.is_endless and (wanted.start.kind not in ("id", "after"))
        self._ground: HandedOut | None = None
        self._session: WatermarkSession | None = None
        self._concern: Concern | None = None  # after a look that found nothing: what to wait for
        if not is_led:
            store.settle()
            store.read(self.start, up_to_damage=True)
        if enable_watermarking:
            notify = None if listener is None else partial(listener.received_watermark, self)
            self._ground = HandedOut(self.standing)
            self._session = WatermarkSession(store, self._ground, notify)

    @property
    def is_uncommitted(self) -> bool:
        """True when it also reads messages of open transactions."""
        return bool(self._previews)

    def start(self, view: View) -> None:
        """Find the range's positions in each partition, and begin the first round."""
        bounds, partitions = self._wanted, self._partitions
        record = find_topic(view, self.topic)
        self._topic_number = self._decoder.number = record.number
        if self.topic.partition is not None:
            partitions = [self.topic.partition]
        for number in partitions or ():
            check_partition(self.short, record, number)
        chosen = range(record.partitions) if partitions is None else partitions
        places = resolve_range(view, record, bounds, list(chosen))
        self.is_settled = is_settled(view, record, bounds, places, of_all=partitions is None)
        for number, place in places.items():
            self._place(number, place)
            self._skips[number] = _skip_of(view, record, number, place.subscription)
        # uncommitted messages come after the end of the log, so a range that stops earlier has none
        if self._isolation == "uncommitted" and (bounds.stop is None or bounds.stop.kind == "end"):
            self._previews = dict.fromkeys(chosen, START)
        self._begin(view, record)

    def _go_on(self, view: View) -> None:
        """Begin the next round at the LSN of this view; a range with an end continues its round."""
        self._notice(view)
        if self._is_bounded:
            self._left = {*self._places, *self._previews}
        else:
            self._begin(view, self._found(view))

    def _begin(self, view: View, record: Topic) -> None:
        self._left = {*self._places, *self._previews}
        self._ends = {partition: end_of(view, record, partition) for partition in self._left}
        self._lsn = view.lsn

    def _notice(self, view: View) -> None:
        """Add the partitions that the topic got since, if it reads the whole topic without end."""
        if not self._grows:
            return
        record = self._found(view)
        for partition in range(len(self._places), record.partitions):
            place = ReadRange(start_of(view, number_of(record, partition)), None)
            if self._wanted.kind == "compacted":
                place = compacted_range(view, record, partition, Range(kind="compacted"))
            self._place(partition, place)
            self._skips[partition] = None
            if self._previews:
                self._previews[partition] = START

    def _place(self, partition: int, place: ReadRange) -> None:
        self._places[partition], self._stops[partition] = place.after, place.stop
        self._compacted.pop(partition, None)
        if place.compacted is not None:
            self._compacted[partition] = place.compacted
            self._compacted_files[partition] = place.compacted.files

    def _compacted_again(self, view: View, partition: int, run: Run, limit: int) -> pa.Table:
        """Read compacted rows again that were delivered before.

        run: without whole markers
        """
        files = self._compacted_files.get(partition, ())
        return take_again(view, self.short, partition, files, run, limit)

    def _number(self, view: View, partition: int) -> int:
        return number_of(self._found(view), partition)

    def _found(self, view: View) -> Topic:
        """The topic it was opened on; raises TopicNotFound, also if its name was reused."""
        return live_topic(view, self._topic_number, self.short)

    def standing(self, view: View) -> dict[tuple[int, int], Mark]:
        """The reader's place in each partition: {(index, store-wide number): mark}."""
        self._notice(view)
        record = self._found(view)
        return {(index, number_of(record, index)): mark for index, mark in self._places.items()}

    def stand(self, places: Mapping[int, Mark], stops: Mapping[int, Mark]) -> None:
        """Read only these partitions, from `places` (marks that `standing` returned) to `stops`.

        The next call that reads raises MessageNotFound if messages after a mark were trimmed.
        """
        with self._turns.held():
            self._places, self._stops = dict(places), {index: stops.get(index) for index in places}
            self._skips = dict.fromkeys(places)
            self._compacted = {}
            self._unread = Unread(self._decoder)
            self._left.clear()
            self._previews, self._grows, self._is_bounded, self._turn = {}, False, False, 0
            self.is_settled = places.keys() <= stops.keys()

    def receive_batch(
        self, max_messages: int = BATCH_MESSAGES, timeout_ms: DurationLike | None = 0
    ) -> pa.Table:
        """The next messages, at most max_messages, with the columns of RECEIVED.

        It returns no rows if none came in time. Messages that read_next has read ahead come first,
        in a call of their own. With watermarks the table has a column is_late, and a new watermark
        ends the call with no rows.

        timeout_ms: as in read_next
        raises: AlreadyClosed, InvalidArgument; MessageNotFound: the next messages were trimmed, see
                its fields `first` and `last`; PartitionUnavailable, Corruption, after everything
                readable was returned
        """
        self._check_open()
        if max_messages <= 0:
            raise InvalidArgument(f"max_messages is {max_messages}, it must be positive", code=203)
        empty = NO_MESSAGES

        def look(is_thorough: bool) -> pa.Table | None:
            nonlocal empty
            self._check_open()
            self._settle(is_thorough)
            session = self._session
            if session is None:
                table, has_moved = self.take(max_messages), False
            else:
                rows, has_moved = session.turn(partial(self._some, max_messages, session.marked))
                table = session.marked(NO_MESSAGES) if rows is None else rows
            empty = table
            return table if table.num_rows or has_moved else None

        limit_ms = 0 if self._is_bounded else duration_ms(timeout_ms)
        rows = until(self._store, look, limit_ms, self._rest)
        return empty if rows is None else rows

    def _some(self, limit: int, marked: Callable[[pa.Table], pa.Table]) -> pa.Table | None:
        table = self._rows(limit, marked)
        if self._ground is not None:
            self._ground.moved()
        return table if table.num_rows else None

    def take(self, max_messages: int) -> pa.Table:
        """The next messages, at most max_messages, without waiting and without watermarks."""
        return self._rows(max_messages)

    def _rows(
        self, max_messages: int, marked: Callable[[pa.Table], pa.Table] | None = None
    ) -> pa.Table:
        """The next messages; they count as received once `marked` has returned."""
        self._check_open()
        with self._turns.held():
            if not self._unread:
                return self._read_rows(max_messages, marked)
            table, following = self._unread.split(max_messages)
            ground, handed = self._ground, list[Message]()
            try:
                if marked is not None:
                    table = marked(table)
                if ground is not None:
                    for message in [*islice(self._unread.make_all(), len(table))]:
                        handed.append(message)
                        ground.handed_out(message)
                self._unread = following
            except BaseException:  # an interrupt, too: the caller does not get the rows
                if ground is not None:
                    for message in reversed(handed):
                        ground.taken_back(message)
                raise
            return table

    def _read_rows(self, limit: int, marked: Callable[[pa.Table], pa.Table] | None) -> pa.Table:
        """As `_rows`, when no message was read ahead."""
        try:
            self._read(limit)
            table, following = self._unread.split(limit)
            if marked is not None:
                table = marked(table)
            self._unread = following
        except BaseException:  # the place is after them, so the ground would count them as received
            if self._ground is not None:
                self._ground.read_ahead(self._unread.make_all())
            raise
        return table

    def _read(self, limit: int, *, is_apart: bool = False) -> None:
        """Read at most `limit` messages ahead; is_apart: as rows for Message, not as a table."""
        try:
            self._store.read(
                lambda view: self._take(view, limit, is_apart=is_apart), up_to_damage=True
            )
        except MissingFile:  # in the newest view, too: the file is lost, which counts as damage
            self._store.read(
                lambda view: self._take(view, limit, is_apart=is_apart, is_gone=True),
                up_to_damage=True,
            )
        finally:
            damage, self._damage = self._damage, None
            if damage is not None:
                quarantine.record_damage(self._store, *damage)

    def _take(self, view: View, limit: int, *, is_apart: bool, is_gone: bool = False) -> None:
        """Read one batch ahead, or change nothing.

        After an interrupt or MissingFile (compaction may have replaced the file: R21) the places
        are set back. Otherwise they would be after messages that no caller got.
        """
        places = (dict(self._places), dict(self._previews), self._lsn, self._ends, set(self._left))
        compacted, turn = dict(self._compacted), self._turn
        try:
            is_new = not self._left and not self.is_led
            if is_new:
                self._go_on(view)
            parts, room, failed = self._take_round(view, limit, is_apart=is_apart, is_gone=is_gone)
            if room > 0 and not (is_new or self.is_led) and self._may_go_on(view):
                self._go_on(view)
                more, _, failed = self._take_round(view, room, is_apart=is_apart, is_gone=is_gone)
                parts += more
            unread = Unread(self._decoder, parts)
            self._store.tally.handed_out += len(unread)
            if is_apart and self._ground is not None:
                self._ground.read_ahead(unread.make_all())
            # No C call between the ground, this line and the end of the block: no interrupt there.
            self._unread = unread
        except BaseException:  # an interrupt, too
            self._places, self._previews, self._lsn, self._ends, self._left = places
            self._compacted, self._turn, self._damage = compacted, turn, None
            raise
        if failed is not None and not parts:
            raise failed
        if not parts and (damage := view.damage) is not None and self._may_lack(view):
            raise damage  # of the journal: messages are stored after it
        self._concern = None if parts or self.is_led else self._concern_of(view)

    def _may_go_on(self, view: View) -> bool:
        """True if another round may have messages: the store has changed, or this round stopped."""
        if view.lsn != self._lsn or self._previews or self._compacted:
            return True
        return any(stop_after(place) < self._stop(at) for at, place in self._places.items())

    def _concern_of(self, view: View) -> Concern | None:
        """The components whose change may bring a message; None: other events may, too."""
        if self._ground is not None or self.is_uncommitted:
            return None
        partitions = [("topic", number, 0) for number in numbers(self._found(view))]
        return Concern(view.lsn, frozenset([CATALOG, *partitions]))

    def _may_lack(self, view: View) -> bool:
        """True if messages of its range may have been lost with the damaged end of the journal.

        A round may have begun before the damage was found, and the view been reloaded since.
        """
        if not (self.is_led or self.is_settled):
            return True
        record = self._found(view)
        return any(self._stop(index) > end_of(view, record, index) for index in self._places)

    def _take_round(
        self, view: View, limit: int, *, is_apart: bool, is_gone: bool
    ) -> tuple[list[Part], int, TxlogError | None]:
        """The next messages of this round.

        returns: parts; how many more messages fit into the limit; the first error of a partition
        raises:  MissingFile
        """
        parts: list[Part] = []
        failed: TxlogError | None = None
        room_bytes = RECEIVE_BYTES_MAX
        for partition in sorted(self._left, key=lambda index: (index < self._turn, index)):
            try:
                number = self._number(view, partition)
                table = self._take_of(
                    view, partition, number, limit, is_apart=is_apart, is_gone=is_gone
                )
            except TxlogError as error:
                if isinstance(error, MissingFile) and not is_gone:
                    raise
                failed = failed or error  # go on with the other partitions
                continue
            if not table:
                self._left.discard(partition)
                continue
            parts += table
            limit -= sum([part.num_rows for part in table])
            if limit > 0:  # counting the bytes of many pieces takes long
                room_bytes -= sum([part.value_bytes for part in table])
            if limit <= 0 or room_bytes <= 0:
                self._turn = partition
                return parts, 0, failed
        return parts, limit, failed

    def _take_of(
        self, view: View, partition: int, number: int, limit: int, *, is_apart: bool, is_gone: bool
    ) -> list[Part]:
        """The next messages of one partition; its place moves only after its rows were read."""
        wall = self._wall(view, number)
        if partition in self._compacted:
            return self._take_compacted(view, partition, limit)
        if partition not in self._places:
            return self._preview(view, partition, number, limit)
        step = self._plan(view, partition, number, limit, wall)
        try:
            parts = self._parts(view, partition, number, step, is_apart=is_apart)
        except Corruption as error:
            if isinstance(error, MissingFile) and not is_gone:
                raise
            damage = find_damage(view, requests_of(step.pieces))
            if damage is None:
                raise
            self._damage = (number, *damage)
            step = self._plan(view, partition, number, limit, damage_wall(view, number, *damage))
            if not step.messages:
                raise
            parts = self._parts(view, partition, number, step, is_apart=is_apart)
        if wall is not None and not step.messages and wall < self._stop(partition):
            raise damage_error(view, number)
        self._places[partition] = step.after
        if step.messages < limit and wall is None and self._damage is None and self._previews:
            parts += self._preview(view, partition, number, limit - step.messages)
        return parts

    def _parts(
        self, view: View, partition: int, number: int, step: Plan, *, is_apart: bool
    ) -> list[Part]:
        """Read the rows of a plan, as one part; is_apart: as in `_read`."""
        if not step.pieces:
            return []
        names = self.columns
        if is_apart:
            return [rows_of(view, self.short, partition, step.pieces, names)]
        table = received(view, self.short, partition, number, step.pieces, names=names)
        return [Received(partition, table)]

    def _take_compacted(self, view: View, partition: int, limit: int) -> list[Part]:
        """The next compacted rows of a partition; after the last one, the log follows."""
        table, following = take_compacted(
            view, self.short, partition, self._compacted[partition], limit
        )
        if following.start < following.stop:
            self._compacted[partition] = following
        else:
            del self._compacted[partition]
            self._places[partition] = following.after
        return [Received(partition, table)] if table.num_rows else []

    def _preview(self, view: View, partition: int, number: int, limit: int) -> list[Part]:
        """The next uncommitted rows, if this reader reads them."""
        if partition not in self._previews:
            return []
        rows, self._previews[partition] = preview(
            view,
            self.short,
            partition,
            number,
            self._previews[partition],
            limit,
            through_lsn=self._lsn,
            only=self._of_txn,
            is_strict=self._is_bounded,
        )
        return [Received(partition, rows)] if rows.num_rows else []

    def _stop(self, partition: int) -> Mark:
        """The end of this round in a partition: the first position that it does not read."""
        stop = self._stops[partition]
        return self._ends[partition] if stop is None else stop

    def _wall(self, view: View, number: int) -> Mark | None:
        """The position of the damage in a quarantined partition, else None.

        raises: PartitionUnavailable if the partition is offline
        """
        why = view.catalog.unavailable.get(number)
        if why is not None and why.reason != "damage":
            raise unavailable_error(view.catalog, self._found(view), number)
        return quarantine_wall(view, number)

    def _plan(self, view: View, partition: int, number: int, limit: int, wall: Mark | None) -> Plan:
        """Plan the next messages of a partition, up to the end of this round."""
        stop = self._stop(partition)
        return self._plan_to(
            view, partition, number, limit, stop if wall is None else min(stop, wall)
        )

    def _plan_to(
        self, view: View, partition: int, number: int, limit: int, stop: Mark | None
    ) -> Plan:
        skip: tuple[IdSet, ...] = ()
        place, skipped = self._places[partition], self._skips[partition]
        if skipped is not None:
            mark_delete, acked = skipped
            skip = (acked,)
            if covers(mark_delete, place):
                place = mark_delete  # messages before it are no longer in `acked`
        try:
            check_retained(view, self._found(view), number, place)
        except MessageNotFound as error:
            if not self._is_bounded:
                raise
            raise SnapshotExpired(
                f"{error.message} while they were read",
                hint="read again",
                topic=self.short,
                partition=partition,
            ) from error
        return plan(view, number, place, limit, skip, stop)

    def read_next(self, timeout_ms: DurationLike | None = 0) -> Message | None:
        """The next message; None if none came within timeout_ms (None: wait for ever).

        At the end of a range it returns None without waiting. With watermarks it also returns None
        as soon as there is a new watermark; see get_last_watermark.
        raises: as receive_batch
        """
        unread, message = self._unread, None
        try:
            message, has_moved = self._read_next()
            if message is not None or has_moved or timeout_ms == 0 or self._is_bounded:
                return message

            def look(is_thorough: bool) -> bool | None:
                nonlocal unread, message
                self._settle(is_thorough)
                message, has_moved = self._read_next()
                unread = self._unread
                return message is not None or has_moved or None

            until(self._store, look, duration_ms(timeout_ms), self._rest)
        except BaseException:  # an interrupt, too: the caller does not get the message
            self._put_back(unread, message)
            raise
        return message

    _next = read_next  # without the wrapper of @checked, in which a signal handler could raise

    def follow(self) -> Iterator[Message]:
        """Iterate over messages and wait for new ones, without end; a range with an end ends.

        Every message comes once, in order, whatever checkpoints, compaction and other processes do
        meanwhile. After an error it can be called again and continues where it stopped.
        raises: as receive_batch
        """
        while True:
            message = self._next(timeout_ms=None)
            if message is not None:
                yield message
            elif self._is_bounded:
                return

    def _rest(self, pause: float) -> Quiet:
        """How long a waiting call may sleep; with isolation `uncommitted` appends wake it, too."""
        committed = until_told(pause)._replace(concern=self._concern)
        rests = [until_appended(self._store, pause) if self.is_uncommitted else committed]
        if self._session is not None:
            rests.append(Quiet(self._session.rest()))
        return least(rests)

    def _settle(self, is_thorough: bool) -> None:
        """Before a thorough look: make unflushed messages of open transactions visible."""
        if is_thorough and self.is_uncommitted:
            self._store.settle()

    def _read_next(self) -> tuple[Message | None, bool]:
        """(the next message or None, whether there is a new watermark instead)."""
        self._check_open()
        session = self._session
        if session is None:
            return self._pop(), False
        return session.turn(self._pop)

    def _pop(self) -> Message | None:
        unread, message, answer = self._unread, None, None
        try:
            with self._turns.held():
                if not self._unread:
                    self._read(self._ahead, is_apart=True)
                    self._ahead = min(BATCH_MESSAGES, AHEAD_GROWTH * self._ahead)
                unread = self._unread
                answer = message = unread.pop()
                if self._session is not None and message is not None:
                    answer = self._session.judged(message)
                if self._ground is not None and message is not None:
                    self._ground.handed_out(message)
        except BaseException:  # an interrupt, too: the caller does not get the message
            self._put_back(unread, message)
            raise
        return answer

    def _put_back(self, unread: Unread, message: Message | None) -> None:
        """Make a message the next one again, unless a seek or another read came in between."""
        with self._turns.held():
            if message is not None and unread is self._unread:
                unread.made.appendleft(message)
                if self._ground is not None:
                    self._ground.taken_back(message)

    def has_message_available(self) -> bool:
        """True when a visible message follows."""
        self._check_open()
        if self._unread:
            return True

        def look(view: View) -> bool:
            self._notice(view)
            has_message = bool(self._compacted) or any(
                self._plan_to(
                    view,
                    partition,
                    number,
                    1,
                    _least(self._stops[partition], quarantine_wall(view, number)),
                ).messages
                for partition in self._places
                if (number := self._number(view, partition)) not in view.catalog.unavailable
                or view.catalog.unavailable[number].reason == "damage"
            )
            if not (has_message or self.is_settled) and (damage := view.damage) is not None:
                raise damage
            return has_message

        return bool(self._store.read(look, up_to_damage=True))

    def seek(self, position: Where) -> None:
        """Continue from a position: a message id, an instant in ms, `earliest`, `latest`, a Bound.

        A message id moves only its partition.
        raises: AlreadyClosed, MessageNotFound, InvalidArgument
        """
        self._check_open()
        bound = bound_of(position)
        with self._turns.held():
            places = self._store.read(lambda view: self._sought(view, bound), up_to_damage=True)
            after = self._places | {index: place.after for index, place in places.items()}
            compacted = {at: rest for at, rest in self._compacted.items() if at not in places}
            for index, place in places.items():
                if place.compacted is not None:
                    compacted[index] = place.compacted
            previews = dict.fromkeys(self._previews.keys() & places.keys(), START)
            previews, unfinished, unread = (
                self._previews | previews,
                set[int](),
                self._unread.without(places),
            )
            if self._ground is not None:
                self._ground.sought(places)
            self._places, self._compacted, self._previews = after, compacted, previews
            self._left, self._ahead, self._unread = unfinished, AHEAD_FIRST, unread

    def _sought(self, view: View, bound: Bound) -> dict[int, ReadRange]:
        self._notice(view)
        record, indexes = self._found(view), list(self._places)
        if isinstance(bound.value, MessageId):
            index = partition_of(view, record, bound.value)
            if index not in self._places:
                raise InvalidArgument(f"partition {self.short}/{index} is not read", code=203)
            indexes = [index]
        if self._wanted.kind == "compacted":
            rest = Range(bound, kind="compacted")
            return {index: compacted_range(view, record, index, rest) for index in indexes}
        return {
            index: ReadRange(resolve_bound(view, record, index, bound), None) for index in indexes
        }

    def get_last_message_ids(self) -> dict[int, MessageId | None]:
        """The last visible message of each partition that is read, None for an empty one."""
        self._check_open()

        def look(view: View) -> dict[int, MessageId | None]:
            self._notice(view)
            return last_ids(view, self._found(view), self._places)

        return self._store.read(look)

    def get_last_message_id(self) -> MessageId | None:
        """The last visible message. Raises NotAllowed when several partitions are read."""
        return only_one(self.short, self.get_last_message_ids())

    def __iter__(self) -> Iterator[Message]:
        turns, is_plain = self._turns.held(), self._session is None
        while True:
            while is_plain and self._unread.made:  # a fast path: a call would double the cost
                unread, ahead = self._unread, None
                try:
                    with turns:
                        unread = self._unread
                        queue = unread.made
                        ahead = queue[0]
                        del queue[0]
                except IndexError:  # another thread took it, or closed the reader
                    break
                except BaseException:  # an interrupt, too: the caller does not get the message
                    self._put_back(unread, ahead)
                    raise
                yield ahead
            message, has_moved = self._read_next()
            if message is not None:
                yield message
            elif not has_moved:
                return

    def __repr__(self) -> str:
        closed = ", closed" if self._is_closed else ""
        return f"<txlog.Reader of {self.topic}{closed}>"

    def _repr_html_(self) -> str:
        def newest(last: Range) -> Reader:
            return Reader(self._store, str(self.topic), last, self._partitions, is_led=True)

        return newest_html(self._store, f"{self!r}: the newest messages", newest)

    def close(self) -> None:
        """Stop reading. A thread that waits in this reader gets AlreadyClosed."""
        self._is_closed = True
        self._store.wakeups.ring()
        self._unread = Unread(self._decoder)  # a thread that is reading keeps the old one

    def _check_open(self) -> None:
        if self._is_closed:
            raise AlreadyClosed("the reader is closed")

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def range_from(start: Where | None, *, read_compacted: bool = False) -> Range:
    """The range from a position on, without end."""
    kind = "compacted" if read_compacted else "range"
    return Range(start=bound_of(start), stop=None, kind=kind)


def _least(*stops: Mark | None) -> Mark | None:
    return min((stop for stop in stops if stop is not None), default=None)


class Readers:
    """Reads several topics in shared rounds: a round reads all topics up to one LSN, in turn.

    raises: as Reader, for any of the topics, before anything is read
    """

    __slots__ = ("_at", "_damage", "_is_bounded", "_is_of_end", "_readers", "_store")

    def __init__(
        self,
        store: Store,
        topics: Sequence[str],
        wanted: Range,
        partitions: list[int] | None,
        isolation: str = "committed",
        columns: Sequence[str] | None = None,
    ) -> None:
        """columns: the stored columns to read, others are null; None: all."""
        for name in columns or ():
            if name not in RECEIVED.names:
                raise InvalidArgument(f"messages have no column {name}", code=203)
        if not topics:
            raise InvalidArgument("no topic was given", code=203)
        self._store = store
        self._at = 0
        self._is_bounded = not wanted.is_endless
        self._is_of_end = wanted.kind != "range" or wanted.start.kind in ("last", "end", "sub")
        self._damage: Corruption | None = None  # of the journal, found when the round began
        self._readers = [
            Reader(store, topic, wanted, partitions, isolation, is_led=True) for topic in topics
        ]
        for reader in self._readers:
            reader.columns = columns
        store.settle()
        self._begin(Reader.start)

    def _begin(self, begin: Callable[[Reader, View], None]) -> None:
        """Begin a round of all readers, in one view."""

        def each(view: View) -> None:
            for reader in self._readers:
                begin(reader, view)
            is_settled = all(reader.is_settled for reader in self._readers)
            self._damage = None if is_settled else view.damage

        self._store.read(each, up_to_damage=True)
        self._at = 0

    def receive_batch(self, max_messages: int = BATCH_MESSAGES) -> pa.Table:
        """The next messages of one topic, at most max_messages; no rows: the end is reached.

        raises: as Reader.receive_batch
        """
        table = self._rest_of_round(max_messages)
        if not table.num_rows and not self._is_bounded:
            self._begin(Reader._go_on)
            table = self._rest_of_round(max_messages)
        if not table.num_rows and self._damage is not None:
            raise self._damage
        return table

    def stop(self) -> None:
        """Stop reading before the end.

        raises: Corruption if the range counts from the end of the log, and damage moved that end
        """
        if self._is_of_end and self._damage is not None:
            raise self._damage

    def _rest_of_round(self, max_messages: int) -> pa.Table:
        while self._at < len(self._readers):
            table = self._readers[self._at].receive_batch(max_messages)
            if table.num_rows:
                return table
            self._at += 1
        return NO_MESSAGES


def _skip_of(
    view: View, topic: Topic, partition: int, subscription: int | None
) -> tuple[Mark, IdSet] | None:
    """A copy of the acknowledgements of a subscription, which may move on during the read."""
    if subscription is None:
        return None
    cursor: Cursor = view.cursor(subscription, number_of(topic, partition))
    return cursor.mark_delete, cursor.acked.copy()
