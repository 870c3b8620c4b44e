"""Owns the explanation of each TXL code and exit code: meaning, cause, remedy, an example.

`txlog help TXL-nnn`, `txlog help exit-codes` and EXIT STATUS of the man pages come from here; a
test compares the table with the classes of `txlog.errors`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from txlog.errors import error_table


class Code(NamedTuple):
    """One code: its meaning in one line, its cause, the remedy, a command that helps."""

    means: str
    cause: str
    fix: str
    example: str


EXITS: Final[dict[int, str]] = {
    0: "done, or there was nothing to do",
    1: "failed, and nothing was changed",
    2: "the command line is wrong",
    3: "it does not exist",
    4: "its state does not allow this",
    5: "try again later",
    6: "an integrity problem was found",
    7: "partly done; the remaining targets are listed",
    8: "no data, or a condition is not met",
    9: "refused: consent is missing",
    10: "done or not done: check before repeating",
    130: "interrupted (SIGINT); 143: terminated (SIGTERM, SIGHUP)",
    141: "the reader of the pipe exited",
}

CODES: Final[dict[int, Code]] = {
    101: Code(
        "a bug of txlog",
        "The program met a condition that it does not handle. Nothing was changed.",
        "Run it again with TXLOG_DEBUG=1, which prints a traceback, and report that.",
        "TXLOG_DEBUG=1 txlog status",
    ),
    102: Code(
        "an I/O error",
        "The disk or file system refused to read or write, before anything was appended.",
        "Check the path in the message, free space, permissions and the system log; then repeat.",
        "txlog status",
    ),
    104: Code(
        "a bad record of an input",
        "A line of the input is not JSON, is too long, or has a field that cannot be read; the "
        "message has its line number. In a transaction nothing of the input is stored.",
        "Fix the line, or skip it with --on-error skip.",
        "txlog produce orders --in ndjson --txn --on-error skip < orders.ndjson",
    ),
    105: Code(
        "an SQL error",
        "DuckDB refused the statement: an unknown name, a wrong type, more than one statement.",
        "The message comes from DuckDB. `txlog help sql` lists relations and their columns.",
        'txlog query "DESCRIBE messages"',
    ),
    106: Code(
        "a user function or command failed",
        "A function of `txlog run` raised, or the command of `txlog transform` exited with a code "
        "other than 0. The transaction was aborted, so the input will be delivered again.",
        "Read the error message above. --on-error skip or dead-letter:TOPIC continues without it.",
        "txlog run fix.py:parse --input orders --output clean -s parser --on-error dead-letter:bad",
    ),
    107: Code(
        "an extra or Java is not installed",
        "The command needs a package that does not come with txlog, or a Java runtime.",
        "Install the package that the message names.",
        "pip install 'txlog-store[spark]'",
    ),
    201: Code(
        "wrong flags or arguments",
        "This command does not have such a flag or argument, or does not allow the combination.",
        "Run txlog COMMAND -h for examples and flags.",
        "txlog produce -h",
    ),
    202: Code(
        "a bad name",
        "A topic, subscription, producer or key has characters that names cannot have, or is "
        "empty.",
        "Use letters, digits and . _ - = : + @ ~; names with two leading underscores are the "
        "system's.",
        "txlog topic create orders-2026",
    ),
    203: Code(
        "a bad id, range, time, size or duration",
        "The text does not have the form that this value has.",
        "`txlog help offsets` and `txlog help format` describe the forms.",
        "txlog consume orders -o @-1h..",
    ),
    204: Code(
        "a limit is exceeded",
        "The value is above a limit of the store's settings, or above a hard limit of the program; "
        "the message has both numbers.",
        "Ask for less, or raise the setting: `txlog config show` lists the settings.",
        "txlog config get max_message_bytes",
    ),
    205: Code(
        "an ambiguous name",
        "The name fits more than one thing: a subscription that several topics have, or a word "
        "that names both a topic and a key.",
        "Name one of them: -t TOPIC, or topic:N sub:N key:K txn:T msg:M before the word.",
        "txlog sub describe billing -t orders",
    ),
    206: Code(
        "a message that cannot be stored",
        "It is larger than max_message_bytes, has a bad property, or a time out of range.",
        "Send less in one message, or in chunks with --chunking.",
        "txlog produce orders --chunking -m small",
    ),
    301: Code(
        "no store",
        "There is no txlog.toml where -S or TXLOG_STORE points, nor in this directory or its "
        "parents; "
        "or the store was removed, moved or replaced while a program had it open.",
        "Create a store, change to its directory, or name it; then open it again.",
        "txlog init /data/shop",
    ),
    302: Code(
        "no such topic or partition",
        "A topic must be created before its first use.",
        "Check the name, or create the topic.",
        "txlog topic list",
    ),
    303: Code(
        "no such subscription",
        "A subscription must be created before its first use.",
        "Check the name, or create the subscription.",
        "txlog sub list",
    ),
    304: Code(
        "no transaction has this id",
        "No coordinator of this store has issued that id.",
        "Check that it is the right store; ids are COORDINATOR:SEQUENCE.",
        "txlog txn list --all",
    ),
    305: Code(
        "the store has forgotten the transaction",
        "It ended longer ago than the store remembers. Its messages show the outcome: "
        "they are in the topic if it was committed.",
        "Ask earlier, or remember longer: settings txn_ended_retention_ms and _count.",
        "txlog config get txn_ended_retention_ms",
    ),
    306: Code(
        "no such transaction key",
        "No process has connected this key, it was deleted, or it belongs to another user.",
        "List the keys; write another user's key as OWNER&KEY.",
        "txlog admin list-transaction-keys --deleted",
    ),
    307: Code(
        "no such message",
        "The id names no message of this topic, or one that is not visible: its transaction is "
        "open or aborted, or it was trimmed.",
        "List a few messages of the topic.",
        "txlog inspect orders --sample 5",
    ),
    308: Code(
        "no such object",
        "A coordinator, file, producer, setting, profile, page or help topic of that name does "
        "not exist.",
        "The message names the missing object.",
        "txlog help",
    ),
    401: Code(
        "it exists already",
        "A store, topic, subscription or file of that name exists. Names of topics must differ in "
        "more than case.",
        "Choose another name; --if-not-exists accepts an existing one, --force replaces a file.",
        "txlog topic create orders --if-not-exists",
    ),
    402: Code(
        "the state does not allow this",
        "It has ended the other way: an aborted transaction cannot commit, and a committed or "
        "committing one cannot abort. After a failed flush, also of another process, or a restart "
        "of the machine, the store aborts all open ones.",
        "Show its status, and begin another one if it was aborted.",
        "txlog txn show 0:42",
    ),
    403: Code(
        "the transaction timed out",
        "It was open for longer than its time-out, so it was aborted; none of its changes are "
        "visible.",
        "Begin again, with a longer time-out.",
        "txlog txn begin --timeout 10m",
    ),
    404: Code(
        "the transaction is fenced",
        "Another process has connected the transaction key since, which aborted the transaction: "
        "that "
        "process does this work now.",
        "Stop. Do not repeat: connecting again would fence the other process.",
        "txlog admin get-transaction-key nightly",
    ),
    405: Code(
        "the producer is fenced",
        "A newer epoch of its key exists, or another producer of the same name was opened later.",
        "Stop. Connect again only if this process is meant to take over.",
        "txlog txn connect nightly",
    ),
    406: Code(
        "not allowed",
        "The caller, type, epoch or name does not fit: another user's transaction, a cumulative "
        "acknowledgement on a shared subscription, fewer coordinators than before.",
        "The message names the rule. Repeating does not help.",
        "txlog sub describe billing",
    ),
    407: Code(
        "the transaction lost a conflict",
        "Two transactions acknowledged the same message; this one came second, so it was aborted.",
        "Begin again: messages that the other transaction did not acknowledge are delivered again.",
        "txlog txn list --all",
    ),
    408: Code(
        "still in use",
        "The object to delete still has subscriptions, consumers or open transactions.",
        "End those first, or use --force.",
        "txlog topic describe orders",
    ),
    409: Code(
        "the store is read-only",
        "It was opened with --read-only, or this user may not write its files and directory.",
        "Leave out --read-only and TXLOG_READ_ONLY, or check the permissions.",
        "ls -ld shop",
    ),
    410: Code(
        "a schema does not fit those before it",
        "The topic's policy schema_compatibility does not allow it: readers or writers of one "
        "schema "
        "could not read messages written with the other. The message names the field.",
        "Give a new field a default, or keep the type. Or change the policy: txlog policy schema "
        "set -t TOPIC --compatibility LEVEL.",
        "txlog schema versions orders",
    ),
    411: Code(
        "the server cannot authenticate the client",
        "The server runs with --auth. The client sent no token or certificate, one that no known "
        "key "
        "signed, one that has expired, or one for another audience.",
        "Give the client a valid token. The server's log has the reason and the address.",
        "txlog help serve",
    ),
    501: Code(
        "the store is locked",
        "Another process has held the lock for longer than --lock-timeout; the message names it. "
        "The system releases a lock when its process ends, so you never have to remove one.",
        "Repeat, wait longer, or look at that process.",
        "txlog admin locks",
    ),
    502: Code(
        "try again",
        "Another process or thread got in the way: an export to the same directory, or a topic "
        "that "
        "changed meanwhile. Nothing was done.",
        "Repeat the call.",
        "txlog admin locks",
    ),
    503: Code(
        "the disk is full",
        "Less than free_bytes_min is free, or the disk is full; nothing was written. Aborts, "
        "acknowledgements and deletions can still be written.",
        "Free some space: trim, remove files that no manifest names, delete a topic.",
        "txlog admin gc",
    ),
    504: Code(
        "files or resources are missing",
        "A long read met files that a checkpoint has replaced since, or memory or file descriptors "
        "ran out.",
        "Repeat it.",
        'txlog query "SELECT count(*) FROM messages"',
    ),
    505: Code(
        "the subscription is busy",
        "It is exclusive and has a consumer, or its consumers have another --type.",
        "List its consumers; a consumer ends with its process.",
        "txlog sub describe billing --json",
    ),
    506: Code(
        "the partition is unavailable",
        "It was taken offline, or one of its files is damaged and quarantined. Other partitions "
        "work; "
        "transactions with messages in this one wait.",
        "Bring the partition online, or look for the damage.",
        "txlog admin online orders/2",
    ),
    507: Code(
        "the producer's send queue is full",
        "A program sends without waiting (`send_async`) faster than the disk stores: as many "
        "messages as its producer's `max_pending_messages` are unanswered. This message was not "
        "taken.",
        "Wait for an answer, or open the producer with `block_if_queue_full=True`.",
        "txlog bench",
    ),
    508: Code(
        "the topic has an exclusive producer",
        "A producer with access_mode exclusive has the topic to itself until it closes or its "
        "process ends; messages of other producers are not stored meanwhile.",
        "Wait for it, or open the producer with wait-for-exclusive, or take over with "
        "exclusive-with-fencing.",
        "txlog admin locks",
    ),
    509: Code(
        "a server has too many requests",
        "The server has as many connections as its limits allow, or a client exceeds its share of "
        "messages, bytes or memory. Nothing was done.",
        "Wait and repeat, or raise the limit.",
        "txlog help serve",
    ),
    601: Code(
        "a file is damaged or missing",
        "The bytes of a file changed after they were written, so the checksum differs, or the "
        "file is "
        "missing. The message has path and offset.",
        "Do not delete anything. Check the whole store, then restore the file from a copy.",
        "txlog verify",
    ),
    602: Code(
        "the journal is damaged",
        "A frame that was durable is missing or broken. A crash does not cause this: txlog repairs "
        "traces of a crash silently.",
        "Keep a copy of the store, then look for the damage, and inspect the frames around the LSN "
        "in the message: txlog inspect lsn:N.",
        "txlog verify --deep",
    ),
    603: Code(
        "another format",
        "This version of txlog does not know the format of the store or file, or the file belongs "
        "to "
        "another store.",
        "Use the version that made it; `txlog --version --json` lists the formats of this version.",
        "txlog --version --json",
    ),
    604: Code(
        "components disagree",
        "Two parts of the store that record the same fact disagree about it.",
        "Keep a copy of the store, then find the contradiction: txlog verify, or txlog job audit "
        "for all rows.",
        "txlog verify --deep",
    ),
    701: Code(
        "partly done",
        "The command finished some targets, or a series failed after a part was durable. With "
        "--json `done` and `failed_list` name them.",
        "Repeat the command with the targets that failed.",
        "txlog topic create a b c --if-not-exists",
    ),
    801: Code(
        "a condition is not met",
        "The time ran out before the condition was true, or a check did not hold.",
        "Check the conditions one by one.",
        "txlog wait --backlog billing=0 --timeout 1m --json",
    ),
    802: Code(
        "there was no message",
        "--fail-empty was given, and the command read no message.",
        "Wait for one with --max-wait, or leave out --fail-empty.",
        "txlog consume orders --fail-empty --max-wait 1m",
    ),
    803: Code(
        "the input was incomplete",
        "The number of records differs from --expect, or the last record is not --trailer. The "
        "transaction was aborted.",
        "Find out why the source ended early, and send the whole input again.",
        "txlog produce orders --txn --expect 3 < three.txt",
    ),
    901: Code(
        "consent is missing",
        "The command asks before it acts, but there is no terminal to ask on, or the answer was "
        "No.",
        "Give --yes; --dry-run shows the planned changes.",
        "txlog sub seek billing --to start --dry-run",
    ),
    902: Code(
        "a flag of consent is missing",
        "The command would lose data that --yes does not cover.",
        "If you accept that, add the flag that the message names.",
        "txlog admin trim orders --to end --force-unacked --dry-run",
    ),
    1001: Code(
        "the outcome is unknown",
        "A flush failed after the append, or the answer was lost: the change may be durable or "
        "not.",
        "Check by the id in the message; never assume. A named producer may send the same sequence "
        "again.",
        "txlog txn show 0:42",
    ),
}


def names_of(code: int) -> list[str]:
    """Names of the error classes with this code."""
    return [cls.__name__ for cls in error_table() if code in cls.codes]


def codes_of(exit_code: int) -> list[int]:
    """The TXL codes for which a command ends with this exit code."""
    return [code for code in CODES if code // 100 == exit_code]
