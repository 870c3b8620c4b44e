"""Owns what each TXL code and exit code means to a user: what happened, what to do, an example.

`txlog help TXL-nnn`, `txlog help exit-codes` and EXIT STATUS of the man pages come from here; a
test compares the table with the classes of `txlog.errors`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from txlog.errors import error_table


class Code(NamedTuple):
    """One code: what it is in a line, what causes it, what to do, a command that helps."""

    means: str
    cause: str
    fix: str
    example: str


EXITS: Final[dict[int, str]] = {
    0: "done; also: nothing to do, or it was so already",
    1: "failed, and nothing was changed",
    2: "the call is wrong",
    3: "no such thing",
    4: "it is not in the state for this",
    5: "try again later",
    6: "an integrity problem was found",
    7: "partly done; the rest is listed",
    8: "no data, or a condition is not met",
    9: "refused: consent is missing",
    10: "done or not done: ask",
    130: "interrupted (SIGINT); 143: terminated (SIGTERM, SIGHUP)",
    141: "the reader of the pipe went away",
}

CODES: Final[dict[int, Code]] = {
    101: Code(
        "a bug of txlog",
        "Something happened that the program did not expect. Nothing was changed.",
        "Run it again with TXLOG_DEBUG=1, which prints where it happened, and report that.",
        "TXLOG_DEBUG=1 txlog status",
    ),
    102: Code(
        "an I/O error",
        "The disk or file system refused to read or write, before anything was appended.",
        "Look at the path in the message, at free space, permissions and the system's log; "
        "then repeat.",
        "txlog status",
    ),
    104: Code(
        "a bad record of an input",
        "A line of the input is not JSON, is too long, or has a field that cannot be read; the "
        "message has its number. In a transaction nothing of the input is stored.",
        "Fix the line, or skip it with --on-error skip.",
        "txlog produce orders --in ndjson --txn --on-error skip < orders.ndjson",
    ),
    105: Code(
        "an SQL error",
        "DuckDB refused the statement: a name it does not know, a type, more than one statement.",
        "The message is DuckDB's. Relations and their columns are in `txlog help sql`.",
        'txlog query "DESCRIBE messages"',
    ),
    106: Code(
        "a user function or command failed",
        "A function of `txlog run`, or the command of `txlog transform`, raised or ended with a "
        "code other than 0. Its transaction was aborted: the input will be delivered again.",
        "Read its own message above. --on-error skip or dead-letter:TOPIC continues without it.",
        "txlog run fix.py:parse --input orders --output clean -s parser --on-error dead-letter:bad",
    ),
    107: Code(
        "an extra or Java is not installed",
        "The command needs a package that does not come with txlog, or a Java runtime.",
        "Install what the message names.",
        "uv tool install 'txlog[spark]'",
    ),
    201: Code(
        "wrong flags or arguments",
        "A flag, an argument or a combination of them is not known to this command.",
        "txlog COMMAND -h shows examples and flags.",
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
        "Forms are in `txlog help offsets` and `txlog help format`.",
        "txlog consume orders -o @-1h..",
    ),
    204: Code(
        "a limit is exceeded",
        "A bound of the store's settings, or a hard limit of the program, is below the value; the "
        "message has both numbers.",
        "Ask for less, or raise the setting: `txlog config show` has them.",
        "txlog config get max_message_bytes",
    ),
    205: Code(
        "an ambiguous name",
        "Several things have this name: a subscription of several topics, or a word that is a "
        "topic and a key.",
        "Say which: -t TOPIC, or topic:N sub:N key:K txn:T msg:M before the word.",
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
        "There is no txlog.toml where -S or TXLOG_STORE says, nor from here upwards; or the store"
        " was removed, moved away or replaced while a program had it open.",
        "Make one, change to its directory, or name it; open it again.",
        "txlog init /data/shop",
    ),
    302: Code(
        "no such topic or partition",
        "Nothing creates a topic by itself.",
        "Look at the names, or create it.",
        "txlog topic list",
    ),
    303: Code(
        "no such subscription",
        "Nothing creates a subscription by itself.",
        "Look at the names, or create it.",
        "txlog sub list",
    ),
    304: Code(
        "a transaction that never was",
        "No coordinator of this store has given out that id.",
        "Check that it is the right store; ids are COORDINATOR:SEQUENCE.",
        "txlog txn list --all",
    ),
    305: Code(
        "a transaction that is forgotten",
        "It ended longer ago than ended transactions are remembered. Its messages show how: "
        "they are there if it was committed.",
        "Ask earlier, or remember more: settings txn_ended_retention_ms and _count.",
        "txlog config get txn_ended_retention_ms",
    ),
    306: Code(
        "no such transaction key",
        "Nobody has connected this key, it was deleted, or it is another user's.",
        "Look at the keys; another user's is OWNER&KEY.",
        "txlog admin list-transaction-keys --deleted",
    ),
    307: Code(
        "no such message",
        "The id names no message of this topic, or one that is not visible: its transaction is "
        "open or aborted, or it was trimmed.",
        "Look at what is there.",
        "txlog inspect orders --sample 5",
    ),
    308: Code(
        "no such thing",
        "A coordinator, file, producer, setting, profile, page or help topic of that name does "
        "not exist.",
        "The message says what was sought.",
        "txlog help",
    ),
    401: Code(
        "it exists already",
        "A store, topic, subscription or file of that name is there; topics also when names "
        "differ in case only.",
        "Choose another name; --if-not-exists accepts what is there, --force replaces a file.",
        "txlog topic create orders --if-not-exists",
    ),
    402: Code(
        "not in this status",
        "The transaction has ended the other way: an aborted one cannot commit, a committed or "
        "committing one cannot abort.",
        "Ask how it ended, and begin another if it was aborted.",
        "txlog txn show 0:42",
    ),
    403: Code(
        "the transaction timed out",
        "It was open for longer than its time-out and was aborted; nothing of it is visible.",
        "Begin again, with a longer time-out.",
        "txlog txn begin --timeout 10m",
    ),
    404: Code(
        "the transaction is fenced",
        "A newer holder has connected its transaction key, which aborted it: somebody else does "
        "this work now.",
        "Stop. Do not repeat: connecting again would fence the other one.",
        "txlog admin get-transaction-key nightly",
    ),
    405: Code(
        "the producer is fenced",
        "The epoch is not the newest of its key, or a producer of the same name was opened later.",
        "Stop. Connect only if this process is to take over.",
        "txlog txn connect nightly",
    ),
    406: Code(
        "not allowed",
        "Not this caller, type, epoch or name: another user's transaction, a cumulative "
        "acknowledgement on a shared subscription, fewer coordinators.",
        "The message says which rule it is. Repeating does not help.",
        "txlog sub describe billing",
    ),
    407: Code(
        "the transaction lost a conflict",
        "Two transactions acknowledged the same message; this one came second and was aborted.",
        "Begin again: what the other one did not take is delivered again.",
        "txlog txn list --all",
    ),
    408: Code(
        "still in use",
        "What is to be deleted has subscriptions, consumers or open transactions.",
        "End those first, or use --force.",
        "txlog topic describe orders",
    ),
    409: Code(
        "the store is read-only",
        "It was opened with --read-only, or files and directory cannot be written by this user.",
        "Leave out --read-only and TXLOG_READ_ONLY, or look at the permissions.",
        "ls -ld shop",
    ),
    410: Code(
        "a schema does not fit those before it",
        "By the policy schema_compatibility of the topic, readers or writers of one of the schemas "
        "could not read what the other writes. The message names the field.",
        "Give a new field a default, or keep the type. Or change the policy: txlog policy schema "
        "set --compatibility.",
        "txlog schema versions orders",
    ),
    411: Code(
        "a server does not know who this is",
        "txlog serve was started with --auth, and the client sent no token or certificate, one "
        "that is not signed by a known key, or one that has expired or is for another audience.",
        "Give the client a token. The server's log has the reason and the address.",
        "txlog help serve",
    ),
    501: Code(
        "the store is locked",
        "Another process has held the lock for longer than --lock-timeout; the message names it. "
        "A lock ends with its process, so it never has to be removed.",
        "Repeat, wait longer, or look at that process.",
        "txlog admin locks",
    ),
    502: Code(
        "try again",
        "Another process or thread was in the way: an export to the same place, or a topic that "
        "changed meanwhile. Nothing was done.",
        "Repeat the call.",
        "txlog admin locks",
    ),
    503: Code(
        "the disk is full",
        "Less than free_bytes_min is free, or the disk is full; nothing was written. Aborts, "
        "acknowledgements and deletions still have room.",
        "Free some: trim, remove files that nothing names, delete a topic.",
        "txlog admin gc",
    ),
    504: Code(
        "files or resources are gone",
        "A long read met files that a checkpoint has replaced since, or there are no memory or "
        "file descriptors left.",
        "Repeat it.",
        'txlog query "SELECT count(*) FROM messages"',
    ),
    505: Code(
        "the subscription is busy",
        "It is exclusive and has a consumer, or its consumers have another --type.",
        "See which consumer it is; a consumer ends with its process.",
        "txlog sub describe billing --json",
    ),
    506: Code(
        "the partition is unavailable",
        "It was taken offline, or a damaged file of it is quarantined. The others carry on; "
        "transactions with messages there wait.",
        "Bring it back, or look at what is damaged.",
        "txlog admin online orders/2",
    ),
    507: Code(
        "too much of a producer waits to be stored",
        "A program sends without waiting (`send_async`) faster than the disk stores: as many "
        "messages as `max_pending_messages` of its producer have no answer yet. This message was "
        "not taken.",
        "Wait for an answer, or open the producer with `block_if_queue_full=True`.",
        "txlog bench",
    ),
    508: Code(
        "the topic has an exclusive producer",
        "A producer with access_mode exclusive has the topic to itself until it closes or its "
        "process ends; what others send meanwhile is not stored.",
        "Wait for it, or open the producer with wait-for-exclusive, or take over with "
        "exclusive-with-fencing.",
        "txlog admin locks",
    ),
    509: Code(
        "a server has too many requests",
        "txlog serve has as many connections as its limits allow, or a client asks for more than "
        "its share of messages, bytes or memory. Nothing was done.",
        "Wait and repeat, or raise the limit.",
        "txlog help serve",
    ),
    601: Code(
        "a file is damaged or missing",
        "Bytes are not what was written: the checksum differs, or the file is not there. The "
        "message has path and offset.",
        "Do not delete anything. Look at all of it, then restore the file from a copy.",
        "txlog verify",
    ),
    602: Code(
        "the journal is damaged",
        "A frame that is known to have been durable is missing or broken. This is not "
        "the trace of a crash: those are repaired silently.",
        "Keep a copy of the store, then see what is damaged, and what is around the LSN in the "
        "message: txlog inspect lsn:N.",
        "txlog verify --deep",
    ),
    603: Code(
        "another format",
        "The store or file has a format that this version of txlog does not know, or belongs to "
        "another store.",
        "Use the version that made it; `txlog --version --json` says what this one reads.",
        "txlog --version --json",
    ),
    604: Code(
        "components disagree",
        "Two parts of the store that record the same fact disagree about it.",
        "Keep a copy of the store, then see which: txlog verify, or with all rows txlog job audit.",
        "txlog verify --deep",
    ),
    701: Code(
        "partly done",
        "Of several targets some were done, or a series failed after a part was durable. With "
        "--json `done` and `failed_list` have which.",
        "Repeat the command with what failed.",
        "txlog topic create a b c --if-not-exists",
    ),
    801: Code(
        "a condition is not met",
        "The time ran out before what was waited for, or a check did not hold.",
        "Look at the conditions one by one.",
        "txlog wait --backlog billing=0 --timeout 1m --json",
    ),
    802: Code(
        "there was no message",
        "--fail-empty was given and nothing was read.",
        "Wait for one with --max-wait, or leave out --fail-empty.",
        "txlog consume orders --fail-empty --max-wait 1m",
    ),
    803: Code(
        "the input was not whole",
        "The number of records is not that of --expect, or the last one is not --trailer. The "
        "transaction was aborted.",
        "Find out why the source ended early, and send all of it again.",
        "txlog produce orders --txn --expect 3 < three.txt",
    ),
    901: Code(
        "consent is missing",
        "The command asks before it acts, and there is no terminal to ask, or the answer was No.",
        "Give --yes; --dry-run shows what would be done.",
        "txlog sub seek billing --to start --dry-run",
    ),
    902: Code(
        "a flag of consent is missing",
        "This would lose something that --yes does not cover.",
        "Give the flag that the message names, if that is what you want.",
        "txlog admin trim orders --to end --force-unacked --dry-run",
    ),
    1001: Code(
        "the outcome is unknown",
        "A flush failed after the append, or the answer could not be given: it may be done or not.",
        "Ask by the id in the message; never assume. A named producer may send the same sequence "
        "again.",
        "txlog txn show 0:42",
    ),
}


def names_of(code: int) -> list[str]:
    """The error classes that carry a code."""
    return [cls.__name__ for cls in error_table() if code in cls.codes]


def codes_of(exit_code: int) -> list[int]:
    """The TXL codes that end with an exit code."""
    return [code for code in CODES if code // 100 == exit_code]
