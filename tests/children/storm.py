"""Interrupts at random moments in a process with other threads: STORE SEED INTERRUPTS.

Prints what is still held or queued, and the number of interrupts; then checks what is stored.
"""

from __future__ import annotations

import random
import signal
import sys
import threading

import txlog
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.errors import OutcomeUnknown, TxlogError


class Alarm(Exception):
    """The exception of a soft time limit."""


path, seed, wanted = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng, armed, over = random.Random(seed), False, False
answered: list[bytes] = []


def handle(number: int, frame: object) -> None:
    """Raise, if the program is in a call."""
    if armed:
        raise rng.choice((KeyboardInterrupt, Alarm))


def beside(name: int) -> None:
    """Send from another thread until the storm is over."""
    own, n = client.producer("t"), 0
    while not over:
        n += 1
        value = b"other %d %d" % (name, n)
        try:
            own.send(value)
            answered.append(value)
        except OutcomeUnknown:
            pass


signal.signal(signal.SIGALRM, handle)
client = txlog.open(path)
store, lock = client.store, PosixDisk(path).lock_file("lock")
mutex, producer = store._mutex, client.producer("t")
tried = held = interrupts = 0
threads = [threading.Thread(target=beside, args=(name,)) for name in range(3)]
for thread in threads:
    thread.start()
while interrupts < wanted:
    tried += 1
    value = b"new %d" % tried
    try:
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.00002, 0.001))
            if tried % 3:
                producer.send(value)
            else:
                with client.transaction() as txn:
                    producer.send(value, txn=txn)
            answered.append(value)
        finally:
            armed = False
    except (KeyboardInterrupt, Alarm):
        interrupts += 1
    except TxlogError as error:  # of the abort behind an interrupt
        assert error.__context__ is not None, error
        interrupts += 1
    armed = False
    held += mutex._lock._is_owned()
    lock.acquire(60_000)  # as another process would
    lock.release()
over = True
for thread in threads:
    thread.join()
held += store._file_lock.may_hold or len(mutex._waiting) or len(store._queue)
held += not lock.try_acquire()
lock.close()
print(held, interrupts, flush=True)
store.flush()
values = [message.value for message in txlog.open(path).reader("t")]
assert len(values) == len(set(values)), "doubled"
assert not {*answered} - {*values}, {*answered} - {*values}
assert values == [message.value for message in client.reader("t")]
report = txlog.verify(path, deep=True)
assert not report["errors"], report
