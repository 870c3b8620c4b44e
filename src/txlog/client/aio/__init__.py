"""An asynchronous client: the nouns of `txlog` for programs built on an event loop.

    async with txlog.aio.open("shop") as client, client.consumer("orders", "billing") as consumer:
        async for message in consumer:
            async with client.transaction() as txn:
                await invoices.send(made_of(message), txn=txn)
                await consumer.acknowledge(message, txn=txn)

There is one engine. A handle of this package holds the handle of `txlog` with the same name, and
runs its calls in its client's one thread. Tasks that wait for messages rest in the event loop,
which watches one descriptor for all of them: a thousand waiting consumers need no thread and cost
nothing until something is committed.

**Cancellation** at any `await` leaves nothing half done. A call that had not begun never does; one
that had runs to its end, and what it took for the task goes back: a message comes again at once, a
handle is closed. A cancelled `send` or `commit` may have happened, as after any lost answer: ask,
or repeat it under the same name and sequence. A transaction whose block is cancelled is aborted.

Contents:

    client    Client and open
    handles   Producer, Consumer, Reader, TableView, Transaction
    waits     how tasks rest until there is something to look at
    worker    the thread in which calls run, and what becomes of cancelled ones
"""

from txlog.client.aio.client import Client, open
from txlog.client.aio.handles import Consumer, Opening, Producer, Reader, TableView, Transaction

__all__ = [
    "Client",
    "Consumer",
    "Opening",
    "Producer",
    "Reader",
    "TableView",
    "Transaction",
    "open",
]
