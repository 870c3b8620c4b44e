"""Owns the list of features that each stock client tries, and their table in the documents.

`python -m tests.clients.features` writes the table into docs/serve-clients.md; with --url and
--admin it tries the clients against another server, such as Apache Pulsar, and prints what fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.clients import bed

DOCUMENT = bed.ROOT / "docs" / "serve-clients.md"
BEGIN, END = "<!-- made by python -m tests.clients.features -->\n", "<!-- end -->\n"
TITLES = {
    "java": "Java",
    "go": "Go",
    "python": "Python",
    "asyncio": "Python, asyncio",
}
FEATURES = {
    "send": "send one by one; the receipt has the id that consumers get",
    "send_async": "send without waiting",
    "batches": "batches: each message has its own id, in order",
    "compression": "LZ4, zlib, zstd, snappy; alone and in batches",
    "chunks": "messages in chunks",
    "metadata": "key, properties, times, names",
    "null_value": "messages of no bytes, or without a value",
    "delayed": "delayed delivery",
    "deduplication": "a repeated sequence number is not stored again",
    "exclusive_producer": "exclusive producer; a second one is refused",
    "waiting_producer": "exclusive producer that waits for its turn",
    "fencing_producer": "exclusive producer that takes over",
    "partitions": "partitioned topics, round robin and by key",
    "exclusive": "subscription: exclusive",
    "failover": "subscription: failover",
    "shared": "subscription: shared",
    "key_shared": "subscription: key-shared",
    "acknowledge": "acknowledge one by one",
    "acknowledge_cumulative": "acknowledge everything up to a message",
    "acknowledge_in_batch": "acknowledge single messages of a batch",
    "nack": "negative acknowledgement; redelivery counts",
    "ack_timeout": "redelivery after the acknowledgement time-out",
    "redeliver": "redeliver all unacknowledged messages",
    "seek": "seek to an id, the beginning, the end",
    "seek_time": "seek to a time",
    "reader": "readers: from an id, the beginning, the end",
    "last_message_id": "the last message id",
    "id_bytes": "ids to bytes and back",
    "many_topics": "one consumer, several topics",
    "regex": "topics by a pattern, also new topics",
    "dead_letters": "dead letters",
    "retry_letters": "reconsume later, through a retry topic",
    "unsubscribe": "unsubscribe",
    "table_view": "table views",
    "schema_json": "schema: JSON",
    "schema_avro": "schema: Avro",
    "schema_refused": "schema: a change that breaks readers is refused",
    "schema_evolved": "schema: adding an optional field",
    "txn_commit": "transaction: two topics and acknowledgements, committed",
    "txn_abort": "transaction: aborted",
    "txn_batches": "transaction: batches",
    "txn_cumulative": "transaction: cumulative acknowledgement",
    "txn_conflict": "transaction: the second acknowledgement of a message fails",
    "txn_timeout": "transaction: time-out",
    "txn_order": "transaction: ids in the order of commits",
    "txn_holds_nobody_up": "an open transaction delays no reader",
    "txn_killed": "a transaction continues after `kill -9` of the server",
}
# Tried with a server that has TLS and rules.
SECURED = {
    "tls": "TLS; a server with another authority's certificate is refused",
    "tls_reloaded": "a new certificate while the server runs, for new connections",
    "token_roles": "tokens: a role may only produce, or only consume",
    "token_refused": "a token that is missing, expired or forged is refused",
    "token_renewed": "a new token before the old one expires",
    "certificate_roles": "client certificates whose names are roles",
    "token_txn": "transactions of a role",
}
_TRANSACTIONS = {name for name in FEATURES if name.startswith("txn_")} | {"token_txn"}
# Features without a call in a client, or that another scenario of the client covers.
LACKS = {
    "java": set[str](),
    "go": {
        *("fencing_producer", "ack_timeout", "redeliver", "schema_evolved"),
        "txn_cumulative",
    },
    "python": {*_TRANSACTIONS, "ack_timeout", "retry_letters", "schema_evolved"},
    "asyncio": {
        *(*_TRANSACTIONS, "ack_timeout", "retry_letters", "schema_evolved"),
        *("regex", "table_view"),
    },
}

# Features that still fail.
NOT_YET = {
    "java": set[str](),
    "go": set[str](),
    "python": set[str](),
    "asyncio": set[str](),
}


def expected(client: str, features: Mapping[str, str] = FEATURES) -> set[str]:
    """The features that a client tries."""
    return features.keys() - LACKS[client]


def table() -> str:
    """Feature by client."""
    rows = ["| feature | " + " | ".join(TITLES.values()) + " |"]
    rows.append("|---|" + "---|" * len(TITLES))
    for name, words in (FEATURES | SECURED).items():
        marks = [
            "not yet" if name in NOT_YET[client] else "yes" if name not in LACKS[client] else "-"
            for client in TITLES
        ]
        rows.append(f"| {words} | " + " | ".join(marks) + " |")
    return "\n".join(rows) + "\n"


def written(document: Path = DOCUMENT) -> str:
    """The document with the table in it."""
    text = document.read_text(encoding="utf-8")
    head, _, tail = text.partition(BEGIN)
    return head + BEGIN + table() + END + tail.partition(END)[2]


def main() -> int:
    """Write the table; or try another server."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", help="of another server: pulsar://HOST:PORT")
    parser.add_argument("--admin", help="its REST endpoints: http://HOST:PORT")
    parser.add_argument("--prefix", default="tried", help="of the names of topics")
    parser.add_argument("clients", nargs="*", default=[*TITLES])
    options = parser.parse_args()
    if options.url is None:
        DOCUMENT.write_text(written(), encoding="utf-8")
        return 0
    failed = 0
    for client in options.clients:
        server = bed.Elsewhere(options.url, options.admin)
        for name, error in bed.tried(client, server, f"{options.prefix}-{client}").items():
            if error:
                failed += 1
                print(f"{client}: {name}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
