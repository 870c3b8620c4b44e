"""Owns the command `query`: SQL over the messages of a store."""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import TYPE_CHECKING, Annotated, Final

from txlog.cli.call.call import Call, is_terminal, utf8
from txlog.cli.call.progress import Words
from txlog.cli.help import fields
from txlog.cli.line.command import Argument, Option, command, exclusive
from txlog.cli.terminal.tables import counted, duration
from txlog.errors import InvalidArgument, NotFound, Usage

if TYPE_CHECKING:
    import pyarrow as pa

    from txlog.engine.door.store import Store, View


_DESCRIBE: Final = re.compile(r"\s*DESC(?:RIBE)?\s+(.+?)[\s;]*", re.IGNORECASE | re.DOTALL)
_SELECT: Final = re.compile(r"(SELECT|FROM|WITH)\b", re.IGNORECASE)


@command(
    "query",
    "SQL over messages and topics",
    examples=(
        'txlog query "SELECT text(key), count(*) FROM orders GROUP BY 1"',
        "txlog query \"SELECT * FROM messages WHERE topic = 'orders' LIMIT 5\" --json",
        'txlog query "SELECT o.key, u.value FROM orders o JOIN users u USING (key)" --out o.csv',
        "txlog query --file report.sql --param day=2026-11-20",
    ),
    more=lambda: fields.relations(),
)
def query(
    call: Call,
    sql: Annotated[str | None, Argument(metavar="SQL|-", show_default=False)] = None,
    file: Annotated[
        str | None, Option("--file", metavar="F", help="read the SQL from a file")
    ] = None,
    param: Annotated[list[str] | None, Option("--param", metavar="K=V", help="value of $K")] = None,
    isolation: Annotated[
        str, Option("--isolation", metavar="I", help="or uncommitted: with txn_state")
    ] = "committed",
    skip_unavailable: Annotated[
        bool, Option("--skip-unavailable", help="leave out offline partitions")
    ] = False,
    limit: Annotated[int | None, Option("--limit", metavar="N", help="rows at most")] = None,
    show_sql: Annotated[bool, Option("--show-sql", help="print the views, run nothing")] = False,
    out: Annotated[
        str | None,
        Option("--out", metavar="FILE", help="write the rows there; its suffix is the form"),
    ] = None,
    force: Annotated[bool, Option("--force", help="replace the file of --out")] = False,
) -> None:
    """Run one SELECT of DuckDB over committed messages and over lists, all as of one moment.

    Relations: messages, and each topic by its name; compacted, the newest message of each key;
    messages_all, with rows of all kinds; topics subscriptions transactions transaction_keys acks
    pending_acks delayed delayed_buckets watermarks segments frames; with a row for each change:
    transaction_key_log cursor_log catalog_log.
    text(key) and json(value) decode bytes; value->>'id' reads JSON. A message that is not JSON ends
    the query with its topic and id; try_json(value) gives NULL for it. A topic with a schema also
    has the fields of its values in the column record: record.amount.
    In csv and tsv a struct or list is one cell of JSON; SELECT record.* gives each field a column,
    as export does. Parquet, Arrow and JSON keep it whole.
    DESCRIBE orders lists the columns of a relation, with their types.
    Rows have no order without ORDER BY partition, ledger, entry, txn_index.
    """
    exclusive(SQL=sql, file=file)
    exclusive(show_sql=show_sql, out=out)
    if limit is not None and limit < 0:
        raise InvalidArgument(f"--limit is {limit}, it must not be negative", code=203)
    if force and out is None:
        raise Usage("--force goes with --out")
    shapes = importlib.import_module("txlog.cli.output.query_rows")
    if out is not None:
        shapes.check_out(out, force)
    text = utf8(_sql(sql, file), "the SQL")
    described = _DESCRIBE.fullmatch(text)
    if described is not None:
        text = _without_rows(described[1])
    parameters = _parameters(param or [])
    with importlib.import_module("txlog.lake.sql.query").SqlQuery(
        call.relations(), _listed, text, parameters, isolation, skip_unavailable=skip_unavailable
    ) as query_:
        if show_sql:
            call.output.text("".join(f"{line};\n" for line in [*query_.statements, text.strip()]))
            return
        for partition in query_.left_out:
            call.warn(f"the result lacks {partition}, which is unavailable")
        says = call.flags.quiet < 1 and not call.output.as_json and out is None
        pruned = query_.pruned() if says else 0
        with Words(call, "running the query", prints=out is None and not is_terminal(1)):
            answer = query_.rows()
            if described is not None:
                answer = shapes.Columns(answer.schema)
            batches = shapes.begun(shapes.limited(answer, limit))
            rows = 0 if out is None else shapes.write_out(out, batches, force=force)
        if out is not None:
            call.summary(f"wrote {counted(rows, 'row')} to {out}")
            return
        rows = shapes.Printed(call.output, call.output.fields).print(batches)
    files = f"{counted(query_.files, 'file')} read, " if query_.files else ""
    if pruned == query_.files and pruned:  # for a join the plan counts read files, too
        files = f"{counted(query_.files, 'file')}, "
    elif pruned:  # the statistics of a file can exclude all of its rows
        files = f"{query_.files - pruned} of {counted(query_.files, 'file')} read, "
    call.summary(f"{counted(rows, 'row')} ({files}{duration(call.elapsed_ms())})")


def _without_rows(words: str) -> str:
    """A SELECT with the columns of a relation, or of a SELECT, and no rows."""
    if _SELECT.match(words):
        return f"SELECT * FROM ({words}) LIMIT 0"  # noqa: S608
    name = importlib.import_module("txlog.lake.sql.messages").name
    return f"FROM {words if words.startswith(chr(34)) else name(words)} LIMIT 0"


def _listed(view: View, store: Store, name: str) -> pa.Table:
    """The rows of a relation other than messages; only these load `lake.sql.lists`."""
    return importlib.import_module("txlog.lake.sql.lists").listed(view, store, name)


def _sql(text: str | None, path: str | None) -> str:
    """The statement, from the argument, a file or stdin."""
    if path is not None:
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError as error:
            raise NotFound(f"there is no {path}", path=os.path.abspath(path)) from error
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"{path} is not UTF-8", path=path) from error
    if text is None:
        raise Usage("the SQL is missing", hint="txlog query SQL, or - for stdin, or --file F")
    return sys.stdin.read() if text == "-" and sys.stdin is not None else text


def _parameters(words: list[str]) -> dict[str, str]:
    """Parse K=V words into a mapping."""
    parameters: dict[str, str] = {}
    for word in words:
        name, equals, value = utf8(word, "--param").partition("=")
        if not name or not equals or name in parameters:
            raise Usage(f'--param is K=V, each K once, not "{word[:40]}"')
        parameters[name] = value
    return parameters
