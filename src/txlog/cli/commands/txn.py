"""Owns the commands of transactions.

`txn run` runs a foreign command in a transaction; its exit code decides commit or abort.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from txlog.base.choices import TransactionState
from txlog.base.ids import TopicName, TxnId
from txlog.base.suggest import command_line
from txlog.cli.call.call import Call, confirm, each_target, of_variable, split_key
from txlog.cli.call.databases import connection_to
from txlog.cli.input.names import names
from txlog.cli.line.command import Argument, Duration, Option, Time, command, exclusive
from txlog.cli.terminal.signals import Interrupted, shielded
from txlog.cli.terminal.tables import counted, duration
from txlog.errors import CommandFailed, ConditionNotMet, TxlogError, Usage

if TYPE_CHECKING:
    from txlog.base.rows.transactions import TransactionResolved
    from txlog.client.client import Client

_GRACE_S = 10
_UNMET: Final = 8


# --- a foreign command -----------------------------------------------------------------------


def run_in_transaction(
    call: Call, client: Client, command: list[str], timeout_ms: int | None, key: str | None
) -> int:
    """Begin, run the command with TXLOG_TXN and TXLOG_STORE set, commit after 0, else abort.

    returns: the exit code of the command, 128 + n when signal n ended it
    raises:  the errors of the commit; CommandFailed (106) when the command cannot be started
    """
    owner, key = split_key(key)
    txn: TxnId = client.begin(timeout_ms, key=key, owner=owner)["txn"]
    environment = {
        **os.environ,
        "TXLOG_TXN": str(txn),
        "TXLOG_STORE": os.path.abspath(client.path),
    }
    child = None
    try:
        with shielded():  # a signal must not come before `child` is set
            child = subprocess.Popen(command, env=environment)
        code = child.wait()
    except (OSError, ValueError) as error:
        client.abort(txn)
        reason = getattr(error, "strerror", None) or str(error)
        raise CommandFailed(
            f"{command[0]}: {reason}; transaction {txn} aborted", command=command[0], txn=txn
        ) from error
    except (Interrupted, KeyboardInterrupt):
        if child is not None:
            _stop(child)
        with shielded():
            _abort(call, client, txn, "a signal came")
        raise
    code = 128 - code if code < 0 else code
    with shielded():
        if code:
            _abort(call, client, txn, f"exit code {code}")
        else:
            answer = client.commit(txn)
            call.summary(
                f"committed {txn}: {counted(answer['messages'], 'message')}, "
                f"{counted(answer['acks'], 'acknowledgement')}"
            )
    return code


def _abort(call: Call, client: Client, txn: TxnId, why: str) -> None:
    try:
        client.abort(txn)
    except TxlogError as error:  # it has ended already; the command's end or the signal counts
        call.warn(f"transaction {txn}: {error.message}")
        return
    call.summary(f"aborted {txn}: {why}")


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ask the child to end, kill it if it does not, and wait for its end."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    try:
        child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


# --- begin and end, list and show ------------------------------------------------------------

STATES = ("open", "prepared", "committing", "committed", "aborting", "aborted")
KeyOption = Annotated[
    str | None, Option("--transaction-key", "--key", metavar="KEY", help="name of a series")
]


@command(
    "txn connect",
    "take a key, fence its last holder",
    examples=("EPOCH=$(txlog txn connect nightly)", "txlog txn connect nightly --epoch 3"),
    rows="transactions.KeyConnected",
    changes=True,
    loses="work",
)
def connect(
    call: Call,
    key: Annotated[str, Argument(metavar="KEY", show_default=False)],
    epoch: Annotated[int, Option("--epoch", metavar="N", help="the epoch held so far")] = -1,
) -> None:
    """Take a transaction key and print the new epoch.

    The previous holder is fenced: its open transaction is aborted, and it can begin no other.
    """
    owner, bare = split_key(key)
    answer = call.client(write=True).connect(bare or "", epoch, owner=owner)
    if answer["fenced_txn"] is not None:
        call.warn(
            f"fenced transaction {answer['fenced_txn']} of {key}: it was open, and is aborted"
        )
    elif answer["epoch"] == 0:  # on a terminal: a script connects a new key each day
        call.note(f"key {key} is new: epoch 0, it fenced nobody")
    if call.output.as_json:
        call.output.result(answer)
    else:
        call.output.answer(f"{answer['epoch']}\n")


@command(
    "txn begin",
    "begin a transaction and print its id",
    examples=(
        "export TXLOG_TXN=$(txlog txn begin --timeout 10m)",
        "eval $(txlog txn begin --print env)",
        "txlog txn begin --transaction-key nightly",
    ),
    rows="transactions.TransactionBegun",
    changes=True,
)
def begin(
    call: Call,
    timeout_ms: Annotated[int | None, Duration("--timeout")] = None,
    key: KeyOption = None,
    epoch: Annotated[int | None, Option("--epoch", metavar="N", help="of txn connect")] = None,
    coordinator: Annotated[int | None, Option("--coordinator", "-c", metavar="N")] = None,
    print_: Annotated[str, Option("--print", metavar="id|env")] = "id",
) -> None:
    """Begin a transaction and print its id."""
    call.check_choice("--print", print_, ("id", "env"))
    exclusive(transaction_key=key is not None, coordinator=coordinator is not None)
    if epoch is not None and key is None:
        raise Usage("--epoch needs --transaction-key")
    owner, key = split_key(key)
    client = call.client(write=True)
    answer = client.begin(timeout_ms, coordinator, key=key, epoch=epoch, owner=owner)
    if answer["fenced_txn"] is not None:
        call.note(f"transaction {answer['fenced_txn']} was aborted: it is fenced")
    if call.output.as_json:
        call.output.result(answer)
    else:
        call.output.answer(
            f"export TXLOG_TXN={answer['txn']}\n" if print_ == "env" else f"{answer['txn']}\n"
        )


@command(
    "txn commit",
    "commit transactions",
    examples=("txlog txn commit 0:42", "txlog txn commit   # the one in TXLOG_TXN"),
    rows="transactions.TransactionEnded",
    without="open_ms",
    changes=True,
    dry_run=True,
)
def commit(
    call: Call,
    ids: Annotated[list[str] | None, Argument(metavar="ID|-", show_default=False)] = None,
    *,
    wait_ms: Annotated[int, Duration("--wait", help="wait for partitions", default="0s")],
) -> None:
    """Commit transactions; without ID the one in TXLOG_TXN."""
    targets = _targets(call, ids)
    client = call.client(write=True)

    def one(text: str) -> None:
        answer = client.commit(TxnId.parse(text), wait_ms)
        _say_end(call, client, answer)
        call.output.result(answer)
        if answer["state"] == "committing" and wait_ms:
            raise ConditionNotMet(f"transaction {text} is decided, but still committing", txn=text)

    each_target(targets, one)


@command(
    "txn abort",
    "abort transactions",
    examples=(
        "txlog txn abort 0:42",
        "txlog txn abort --all-stuck --yes",
        "txlog txn list --older-than 1d --json | txlog txn abort -",
    ),
    rows="transactions.TransactionEnded",
    without="marker_list open_ms",
    changes=True,
    dry_run=True,
    loses="work",
    asks=True,
)
def abort(
    call: Call,
    ids: Annotated[list[str] | None, Argument(metavar="ID|-", show_default=False)] = None,
    all_stuck: Annotated[bool, Option("--all-stuck", help="overdue and waiting ones")] = False,
) -> None:
    """Abort transactions; without ID the one in TXLOG_TXN."""
    if all_stuck and ids:
        raise Usage("--all-stuck takes no ids")
    client = call.client(write=True)
    if all_stuck:
        rows = [row for row in client.transactions() if _is_stuck(row)]
        decided = [str(row["txn"]) for row in rows if row["state"] == "committing"]
        targets = [str(row["txn"]) for row in rows if row["state"] != "committing"]
        if decided:
            call.warn(f"already decided to commit, and waiting: {', '.join(decided[:10])}")
        if not rows:
            call.summary("nothing to abort: no transaction is overdue or waits for a partition")
        if targets and not call.dry_run:
            shown = [*targets[:10], *["…"] * (len(targets) > 10)]
            confirm(call, f"abort {counted(len(targets), 'transaction')}: {', '.join(shown)}")
    else:
        targets = _targets(call, ids)

    def one(text: str) -> None:
        answer = client.abort(TxnId.parse(text))
        _say_end(call, client, answer)
        call.output.result(answer)

    each_target(targets, one)


@command(
    "txn resolve",
    "end prepared transactions as their database says",
    examples=(
        "txlog txn resolve --database sqlite:orders.db",
        "txlog txn resolve 0:42 --database postgresql://localhost/orders",
        "txlog txn resolve 0:42 --commit --yes",
    ),
    rows="transactions.TransactionResolved",
    changes=True,
    loses="work",
    asks=True,
)
def resolve(
    call: Call,
    txn: Annotated[str | None, Argument(metavar="ID", show_default=False)] = None,
    database: Annotated[
        str | None, Option("--database", metavar="URL", help="ask: sqlite:, duckdb:, postgresql:")
    ] = None,
    commit_: Annotated[bool, Option("--commit", help="you know that it committed")] = False,
    abort_: Annotated[bool, Option("--abort", help="you know that it never can commit")] = False,
) -> None:
    """End prepared transactions: ask the database that decides them, or give the answer yourself.

    A wrong answer leaves a message without its row, or a row without its message. 8: the database
    has a transaction open that may still decide one.
    """
    exclusive(database=database is not None, commit=commit_, abort=abort_)
    txn_id = None if txn is None else TxnId.parse(txn)
    if database is not None:
        from txlog.client.databases.together import originals

        with connection_to(database) as connection:
            client = call.client(write=True)
            for original in originals(client.store, connection):
                what = f"ask a copy of {original}, which may lack what that one has committed"
                confirm(call, what)
            rows = client.resolve_prepared(database=connection, txn_id=txn_id)
    elif not (commit_ or abort_):
        raise Usage("give --database, --commit or --abort", hint=partial(_way_to_ask, call, txn_id))
    elif txn_id is None:
        raise Usage("--commit and --abort need the ID of a transaction")
    else:
        rows = [_answered(call, txn_id, commit=commit_)]
    for row in rows:
        reason = ""
        if row["state"] == "prepared":
            reason = " has a transaction open that may decide it; ask again"
        call.summary(f"{row['state']} {row['txn']}: {row['database']}{reason}")
    if not rows:
        call.summary("no transaction of this database is prepared")
    call.output.rows(rows)
    if any(row["state"] == "prepared" for row in rows):
        call.exit = _UNMET


def _way_to_ask(call: Call, txn_id: TxnId | None) -> str:
    """The command that asks the database of the prepared transactions, or shows the databases."""
    try:
        rows = call.client().transactions(states=["prepared"])
    except TxlogError:  # the hint of another error
        rows = []
    addresses = {str(row["database"]) for row in rows if txn_id in (None, row["txn"])}
    address = addresses.pop() if len(addresses) == 1 else ""
    if not address or address.startswith("postgresql"):  # its label is no address
        return command_line("txn list", "--state", "prepared")
    return command_line("txn resolve", *[] if txn_id is None else [txn_id], "--database", address)


def _answered(call: Call, txn_id: TxnId, *, commit: bool) -> TransactionResolved:
    """End a prepared transaction with the answer of a person."""
    client = call.client(write=True)
    row = client.show_transaction(txn_id)
    if row["state"] == "prepared":
        act = "commit" if commit else "abort"
        asks = f"without asking {row['database']}, which decides it"
        confirm(call, f"{act} transaction {txn_id} {asks}")
    answer = client.resolve(txn_id, commit=commit)
    database = row["database"] or "no database"
    return {"txn": txn_id, "state": answer["state"], "database": database}


@command(
    "txn list",
    "list transactions",
    examples=("txlog txn list", "txlog txn list --all --json"),
    rows="transactions.TransactionRow",
    until="owner",
)
def list_transactions(
    call: Call,
    state: Annotated[
        list[TransactionState] | None, Option("--state", metavar="S…", many=True, reads=list)
    ] = None,
    all_: Annotated[bool, Option("--all", help="include ended transactions")] = False,
    stuck: Annotated[bool, Option("--stuck", help="only overdue or waiting transactions")] = False,
    age_ms: Annotated[int | None, Duration("--older-than")] = None,
    key: KeyOption = None,
    owner: Annotated[str | None, Option("--owner", metavar="O")] = None,
    topic: Annotated[str | None, Option("--topic", "-t", metavar="T")] = None,
    since_ms: Annotated[int | None, Time("--since")] = None,
    sort: Annotated[str, Option("--sort", metavar="age|id")] = "age",
    limit: Annotated[int | None, Option("--limit", min=0, metavar="N")] = None,
) -> None:
    """List transactions: unfinished ones, or with --all also ended ones."""
    call.check_choice("--sort", sort, ("age", "id"))
    for word in state or []:
        call.check_choice("--state", word, STATES)
    key_owner, key = split_key(key)
    owner = owner or key_owner
    short = None if topic is None else TopicName.parse(topic).short
    rows = call.client().transactions(all=all_ or bool(state), states=state or None)
    matching = [
        row
        for row in rows
        if (not stuck or _is_stuck(row))
        and (age_ms is None or row["age_ms"] > age_ms)
        and (key is None or row["transaction_key"] == key)
        and (owner is None or owner in (str(row["owner"]), str(row["owner_uid"])))
        and (short is None or short in row["topic_list"])
        and (since_ms is None or row["begin_time"] >= since_ms)
    ]

    def order(row: Mapping[str, Any]) -> tuple[int, int, int]:
        txn = TxnId.parse(str(row["txn"]))
        return (-row["age_ms"] if sort == "age" else 0, txn.coordinator, txn.sequence)

    call.output.rows(sorted(matching, key=order)[:limit])


@command(
    "txn show",
    "one transaction, its partitions and acknowledgements",
    examples=("txlog txn show 0:42", "txlog txn show --json"),
    rows="transactions.TransactionShown",
    until="owner",
)
def show(
    call: Call,
    txn: Annotated[str | None, Argument(metavar="ID", show_default=False)] = None,
    keys: Annotated[bool, Option("--keys", help="show the keys of its messages")] = False,
) -> None:
    """Show one transaction; without ID the one in TXLOG_TXN."""
    client = call.client()
    for target in _targets(call, None if txn is None else [txn]):
        txn_id = TxnId.parse(target)
        row = client.show_transaction(txn_id)
        key_list = client.admin.message_keys(txn_id) if keys else None
        call.output.single({**row, "key_list": key_list})


@command(
    "txn run",
    "run a command inside a transaction",
    examples=(
        "txlog txn run -- bash -c 'txlog produce a < a.txt && txlog produce b < b.txt'",
        "txlog txn run --timeout 10m -- bash -c 'seq 3 | txlog produce a'",
    ),
    loses="nothing",
)
def run(
    call: Call,
    arguments: Annotated[list[str], Argument(metavar="CMD", show_default=False)],
    timeout_ms: Annotated[int | None, Duration("--timeout")] = None,
    key: KeyOption = None,
) -> None:
    """Run CMD with TXLOG_TXN set: commit if it ends with 0, else abort."""
    if os.environ.get("TXLOG_TXN"):
        raise Usage("TXLOG_TXN is set: one transaction cannot run inside another")
    call.exit = run_in_transaction(call, call.client(write=True), arguments, timeout_ms, key)


def _targets(call: Call, ids: list[str] | None) -> list[str]:
    """Return the ids to act on, each once; TXLOG_TXN when none are given."""
    if ids:
        return names(call, ids, "txn", "transaction")
    joined = os.environ.get("TXLOG_TXN")
    if not joined:
        raise Usage(
            "no transaction: give an ID or set TXLOG_TXN", hint="txlog txn list shows open ones"
        )
    return [str(of_variable("TXLOG_TXN", TxnId.parse))]


def _is_stuck(row: Mapping[str, object]) -> bool:
    return bool(row.get("overdue")) or bool(row.get("waiting_list"))


def _say_end(call: Call, client: Client, answer: Mapping[str, Any]) -> None:
    """Print the summary line of a commit or abort: counts of messages and acknowledgements."""
    messages, acks = answer["messages"], answer["acks"]
    text = f"{answer['state']} {answer['txn']}: {counted(messages, 'message')}"
    topics = {str(row["topic"]) for row in answer.get("marker_list") or []}
    if topics:
        where = min(topics) if len(topics) == 1 else f"{len(topics)} topics"
        text += f" in {where}"
    text += f", {counted(acks, 'acknowledgement')}"
    if answer.get("already"):
        text += ", already"
    elif not call.flags.quiet and not call.output.as_json:
        row = client.show_transaction(answer["txn"])
        if row["end_time"] is not None:
            text += f", open {duration(row['end_time'] - row['begin_time'])}"
    call.summary(text)
    if answer.get("waiting_list"):
        call.warn(f"waiting for {', '.join(map(str, answer['waiting_list']))}")


# --- follow one ------------------------------------------------------------------------------

_ENDS: Final = {
    "committed": ("committed",),
    "aborted": ("aborted",),
    "ended": ("committed", "aborted"),
}


@command(
    "txn wait",
    "wait for the end of a transaction",
    examples=("txlog txn wait 0:42", "txlog txn wait 0:42 --for committed --timeout 30s"),
    rows="transactions.TransactionWaited",
)
def wait(
    call: Call,
    txn: Annotated[str, Argument(metavar="ID", show_default=False)],
    for_: Annotated[str, Option("--for", metavar="committed|aborted|ended")] = "ended",
    timeout: Annotated[int | None, Duration("--timeout")] = None,
) -> None:
    """Wait for the end of a transaction; 8 if time runs out or it ends the other way."""
    call.check_choice("--for", for_, tuple(_ENDS))
    txn_id, limit_ms = TxnId.parse(txn), timeout
    client = call.client()
    client.wait(txns={txn_id: "ended"}, timeout_ms=limit_ms)
    state = str(client.show_transaction(txn_id)["state"])
    call.exit = 0 if state in _ENDS[for_] else _UNMET
    call.output.single({"txn": txn_id, "state": state})


@command(
    "txn log",
    "what happened to a transaction, frame by frame",
    examples=("txlog txn log 0:42", "txlog txn log 0:42 --json"),
    rows="transactions.TransactionLogRow",
)
def log(
    call: Call,
    txn: Annotated[str, Argument(metavar="ID", show_default=False)],
) -> None:
    """Show the coordinator's record of a transaction, in journal order.

    It goes back to the start of the journal, while the store remembers the transaction.
    """
    call.output.rows(call.client().admin.transaction_log(TxnId.parse(txn)))


# --- overdue and hanging transactions -----------------------------------------------------------


@command(
    "txn find-hanging",
    "transactions that do not end by themselves, and why",
    examples=("txlog txn find-hanging", "txlog txn find-hanging --older-than 1m -t orders"),
    rows="transactions.HangingTransaction",
    until="repair",
)
def find_hanging(
    call: Call,
    topic: Annotated[list[str] | None, Option("--topic", "-t", metavar="T…")] = None,
    *,
    limit_ms: Annotated[int, Duration("--older-than", default="15m")],
) -> None:
    """List transactions that do not end by themselves, with cause and remedy; 6: one is corrupt."""
    rows = call.client().admin.find_hanging(limit_ms, topic or ())
    call.output.rows(rows)
    if any(row["cause"] == "corrupt" for row in rows):
        call.exit = 6


@command(
    "txn expire",
    "end overdue transactions in the whole store",
    examples=("txlog txn expire", "txlog txn expire --dry-run --json"),
    rows="transactions.Expired",
    changes=True,
    dry_run=True,
    loses="work",
)
def expire(call: Call) -> None:
    """Abort all overdue transactions of the store, and complete decided ones."""
    answer = call.client(write=True).expire()
    text = f"{counted(answer['expired'], 'transaction')} expired"
    text += f", {answer['rolled_forward']} rolled forward, {answer['rolled_back']} back"
    call.summary(f"{text}, {answer['forgotten']} forgotten")
    for row in answer["waiting_list"]:
        call.warn(f"{row['txn']} waits for {', '.join(row['waiting_list'])}")
    call.output.result(answer)
