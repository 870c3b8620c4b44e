"""Everyday tasks, in the words that a user of Kafka, Pulsar or unix tries first.

The parser reads each line like a line of txlog, or its error suggests one.
"""

from __future__ import annotations

import shlex
from typing import Final

import pytest

from tests.command_lines import fault_of, lines_of
from txlog.cli.line import catalogue, forms, typer
from txlog.cli.line.command import hidden_times, parse, spelled_out
from txlog.cli.line.dispatch import load
from txlog.errors import Usage

WORK: Final = """\
topic create orders -p 4
topic create orders --partitions 4
topic new orders -P 4
import orders.csv orders --create --infer-schema
load orders.csv orders --create --typed
produce orders orders.csv --create
consume orders -F --where 'amount > 4'
consume --topic orders --follow --filter 'amount > 4'
tail -f orders --where 'amount > 4'
tail orders -n 10
consume orders --last 10
consume orders -o -10
peek orders --last 10
count orders --by key
query 'SELECT text(key), count(*) FROM orders GROUP BY 1'
sql 'SELECT count(*) FROM orders'
dlq retry orders-billing-DLQ 17:4
dlq replay orders-billing-DLQ 17:4
dlq move orders-billing-DLQ --id 17:4
sub seek billing --to 'yesterday 14:00'
sub seek orders billing 'yesterday 14:00'
sub replay billing --from 'yesterday 14:00'
sub seek orders billing --to-datetime 2026-11-26T14:00:00 --execute
sub create orders billing
sub describe billing
sub describe orders billing
sub consumers billing
who billing
ps
sub reset billing
sub reset orders billing --to-earliest
sub seek orders billing earliest
sub seek billing --from-beginning
txn abort 0:42
txn kill 0:42
du
du orders
topic du
policy retention set orders 7d
policy retention set orders --time 7d
topic update orders --retention 7d
policy retention get orders
topic delete orders
topic rm orders -y
backup /backup/shop
copy /backup/shop
snapshot /backup/shop
restore /backup/shop shop
top
lag --watch
sub list -w
export orders orders.parquet
export orders --out orders.csv
export orders orders.csv
export orders orders --csv
topic copy orders --to-store /other
topic copy orders /other/store
topic copy orders --to /other/store
run f.py:total --input orders --output totals -s billing --parallelism 4
run f.py:total orders totals -s billing --workers 4
produce orders -m x --deliver-at 'tomorrow 9:00'
produce orders -m x --at 'tomorrow 9:00'
delay merge orders
delay merge-buckets orders
txn keys
transaction-keys
admin list-transaction-keys
fence nightly
txn fence nightly
txn connect nightly
completion show bash
completion bash
topic rename orders sales
rename orders sales
mv orders sales
status --no-color
--no-color status
topic list --json
topic list -o json
"""
ANSWER: Final = """\
rm orders
reset billing
restore /backup/shop
schedule orders -m x --at 'tomorrow 9:00'
sub seek billing
topic create
clone /backup/shop
mirror orders /other
"""


def hint_of(line: str) -> str | None:
    """The hint for a line that txlog refuses; None if it accepts the line."""
    try:
        split = catalogue.split(shlex.split(line))
        words = catalogue.expanded(split.rest)
        path, used = catalogue.resolve(words)
        command = load(path)
        args = spelled_out(command, [*split.leading, *words[used:]])
        if parse(command, hidden_times(args) if command.times else args) is not None:
            return None
        args = spelled_out(command, forms.converted(command, args) or args)
        if parse(command, hidden_times(args) if command.times else args) is not None:
            return None
        typer.invoke(command, args, lambda values: 0)
    except Usage as error:
        return error.hint or ""
    return None


@pytest.mark.parametrize("line", WORK.splitlines())
def test_the_line_that_a_user_tries_first_works(line: str) -> None:
    assert hint_of(line) is None


@pytest.mark.parametrize("line", ANSWER.splitlines())
def test_another_line_is_answered_with_one_that_works(line: str) -> None:
    hint = hint_of(line)
    assert hint
    lines = [*lines_of(hint, prose=False)]
    assert lines, hint
    assert not [each for each in lines if fault_of(each) is not None], hint
