"""The asynchronous client, for programs built on an event loop; users import it as `txlog.aio`.

    async with txlog.aio.open("shop") as client, client.consumer("orders", "billing") as consumer:
        async for message in consumer:
            async with client.transaction() as txn:
                await invoices.send(made_of(message), txn=txn)
                await consumer.acknowledge(message, txn=txn)

Each handle here wraps the handle of `txlog` with the same name. All calls of one client run in one
worker thread. Tasks that wait for messages sleep in the event loop, which watches one descriptor
for all tasks: a thousand waiting consumers need no thread and cost nothing until a commit.

**Cancellation** at any `await` leaves nothing half done. If the call has not begun, it never runs.
If it has, it runs to its end, and then the client undoes it: it returns a message, which comes
again at once, or closes a new handle. A cancelled `send` or `commit` may have taken effect, as
after any lost answer: look it up, or repeat it with the same producer name and sequence id. If the
block of a transaction is cancelled, the transaction is aborted.

Contents:

    client    Client and open
    handles   Producer, Consumer, Reader, TableView, Transaction
    waits     tasks that sleep until a commit, a departure of a consumer, or a time
    worker    the thread that runs the calls, and cancellation
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


def __dir__() -> list[str]:
    return sorted(__all__)
