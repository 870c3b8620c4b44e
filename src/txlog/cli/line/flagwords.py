"""Owns what flags and arguments mean where their command says nothing of its own.

One word means one thing on every command, so it is told once: by the long flag, by the metavar of
an argument, or by `COMMAND FLAG` where it differs.
"""

from __future__ import annotations

from typing import Final

FLAGS: Final[dict[str, str]] = {
    "--ack": "when messages are acknowledged: as they leave, not at all, at a clean end",
    "--ack-format": "print each stored message in this format",
    "--around": "the messages around this one",
    "--at": "this message",
    "--batch": "write a frame when so much has come",
    "--by": "what to group by",
    "--checkpoint-bytes": "a checkpoint is due after so much journal (64MiB)",
    "--consumer": "name of the consumer",
    "--context": "how many before and behind --around",
    "--coordinator": "only this coordinator",
    "--coordinators": "how many number transactions (16)",
    "--durability": "sync: flush before answering; os: leave that to the system",
    "--event-time": "when it happened",
    "--first": "the first N of each partition",
    "--flush-every": "write a frame when its oldest message is so old",
    "--for": "which end to wait for",
    "--grep": "messages whose value matches",
    "--if-not-exists": "be content with what is there",
    "--input": "topics to read",
    "--isolation": "committed, or uncommitted: open and aborted too",
    "--key": "key of the messages",
    "--key-delim": "what stands between key and value in a line",
    "--last": "the last N of each partition",
    "--ledger-age-max": "a ledger is closed after so long (4h)",
    "--ledger-bytes-max": "a ledger is closed at this size (256MiB)",
    "--ledger-entries-max": "a ledger is closed after so many entries (1000000)",
    "--limit": "rows at most",
    "--message": "a message of this text; stdin is not read",
    "--offset": "which messages: txlog help offsets",
    "--older-than": "only those older than this",
    "--on-error": "what becomes of a bad one",
    "--output": "the topic to write",
    "--owner": "only of this user",
    "--partition": "only this partition",
    "--partitions": "how many partitions",
    "--position": "where a new subscription begins: txlog help offsets",
    "--prefix": "names that begin so",
    "--print": "the id alone, or a line for eval",
    "--producer": "a named producer: what it sent before is not stored again",
    "--prop": "a property",
    "--random": "N of them, anywhere",
    "--require-newline": "a last line without a newline is a bad record",
    "--retries": "tries before a failure counts",
    "--seed": "of what is drawn by chance",
    "--seq-from": "sequence of the first message, with --producer",
    "--since": "only from then on",
    "--sort": "what to order by",
    "--state": "only those in this state",
    "--subscription": "the subscription",
    "--timeout": "how long at most",
    "--topic": "the topic; needed where several have the subscription",
    "--trailer": "the last line must be this; it is not stored",
    "--transaction-key": "connect this key first, which fences its holder before",
    "--transaction-timeout": "time-out of transactions that say none (60s)",
    "--transaction-timeout-max": "the longest time-out (1d)",
    "--txn-every": "a transaction for so many messages, or so long",
    "--txn-timeout": "time-out of the transaction",
    "--type": "who gets what: one, any, one with others waiting, one a key",
    "--unbuffered": "write every message at once",
    "--until": "where to stop: txlog help offsets",
}

SPECIAL: Final[dict[str, str]] = {
    "consume --key": "messages with this key",
    "consume --prop": "messages with this property",
    "produce --partition": "write to this partition",
    "produce --producer": "name of the producer; sequences are stored once",
    "sub create --topic": "the topic",
    "sub list --topic": "only of this topic",
    "txn begin --coordinator": "begin it there",
    "txn begin --timeout": "it is aborted after so long (60s)",
    "txn begin --transaction-key": "of a series of transactions: its holder before is fenced",
    "txn find-hanging --topic": "only those that take part there",
    "txn list --topic": "only those that take part there",
    "txn run --timeout": "it is aborted after so long (60s)",
    "wait --topic": "the topic",
}

ARGUMENTS: Final[dict[str, str]] = {
    "CMD": "the command and its arguments",
    "DEST": "where it goes",
    "FILE": "files to read; none: stdin",
    "ID": "message or transaction ids; - reads them from stdin",
    "IN": "the topic to read",
    "KEY": "a transaction key, or OWNER&KEY",
    "MODULE:FUNCTION": "the function; also FILE.py:FUNCTION",
    "N": "how many",
    "NAME": "the topic",
    "OUT": "the topic to write",
    "PAGE": "a command, a noun, a help topic; none: txlog",
    "PATH": "a directory",
    "SQL|-": "one SELECT; - reads it from stdin",
    "SRC": "a file or a directory of files",
    "SUB": "the subscription",
    "T": "the topic",
    "TIME": "an instant: txlog help offsets",
    "TOPIC": "the topic; TOPIC/N is one of its partitions",
    "TOPIC/P": "a partition, as orders/2",
    "VALUE": "its value",
    "WHAT": "what to look at; nothing: the store",
}
_SPECIAL_ARGUMENTS: Final[dict[str, str]] = {
    "man path PAGE": "a page; none: the directory of all",
    "txn commit ID": "transactions; none: TXLOG_TXN; - reads them from stdin",
    "txn abort ID": "transactions; none: TXLOG_TXN; - reads them from stdin",
    "txn show ID": "the transaction; none: TXLOG_TXN",
    "config get KEY": "a setting",
    "config set KEY": "a setting",
    "help TOPIC": "a topic, an error code or a command",
}


def flag_meaning(path: str, flag: str) -> str:
    """What a flag of a command means; empty if nobody said."""
    return SPECIAL.get(f"{path} {flag}") or FLAGS.get(flag, "")


def argument_meaning(path: str, metavar: str) -> str:
    """What an argument of a command means; empty if nobody said."""
    return _SPECIAL_ARGUMENTS.get(f"{path} {metavar}") or ARGUMENTS.get(metavar, "")
