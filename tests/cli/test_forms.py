"""Lines of other tools: the parser reads each like the line of txlog in the same row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from txlog.cli.line import catalogue, forms
from txlog.cli.line.command import hidden_times, parse, spelled_out
from txlog.cli.line.dispatch import load
from txlog.cli.line.parameters import parameters_of

OTHERS = [
    ("topic create orders -P 4", "topic create orders --partitions 4"),
    ("topic create orders --num-partitions=4", "topic create orders -p 4"),
    ("consume --topic orders --from-beginning", "consume orders --offset start"),
    ("consume orders --max-messages 5 --group g", "consume orders -n 5 -s g"),
    ("export orders --last 10", "export orders --offset=-10"),
    ("consume orders --tail 10", "consume orders --last 10"),
    ("consume orders --from latest", "consume orders --offset latest"),
    ("consume orders --from yesterday", "consume orders --since yesterday"),
    ("sub create orders a --from end", "sub create a -t orders --position end"),
    ("export orders --from -3h", "export orders --offset=-3h.."),
    ("produce orders --key-separator :", "produce orders --key-delim :"),
    ("consume orders --filter a>4", "consume orders --where a>4"),
    ("peek orders -n 3", "peek orders --first 3"),
    ("produce orders --property a=b --value x", "produce orders --prop a=b --message x"),
    ("produce orders -m x --delay 5m", "produce orders -m x --deliver-after 5m"),
    ("produce orders --file in.ndjson", "produce orders in.ndjson"),
    ("import a.csv orders --create --typed", "import a.csv orders --create --infer-schema"),
    ("import a.csv orders --header", "import a.csv orders"),
    ("export orders --out a.csv", "export orders a.csv"),
    ("export orders --output=a.csv", "export orders a.csv"),
    ("export orders a --csv", "export orders a --to csv"),
    ("topic list -o json", "topic list --format json"),
    ("sub describe orders billing", "sub describe billing -t orders"),
    ("sub describe -s billing --topic orders", "sub describe billing -t orders"),
    ("sub create orders billing", "sub create billing -t orders"),
    ("sub create orders billing --type shared", "sub create billing -t orders --type shared"),
    ("sub seek billing earliest", "sub seek billing --to earliest"),
    ("sub seek orders billing earliest", "sub seek billing -t orders --to earliest"),
    ("sub seek orders billing --to-latest -y", "sub seek billing -t orders --to end -y"),
    ("sub seek billing --to-datetime 2026-11-28", "sub seek billing --to 2026-11-28"),
    ("sub seek billing -3h --execute", "sub seek billing --to=-3h --yes"),
    ("sub skip orders billing -n 1", "sub skip billing -t orders -n 1"),
    ("policy retention set orders 7d", "policy retention set -t orders --time 7d"),
    ("policy retention get orders", "policy retention get -t orders"),
    ("topic copy orders sales", "topic copy orders --as sales"),
    ("topic copy orders ./other", "topic copy orders --to-store ./other"),
    ("topic copy orders --to other/", "topic copy orders --to-store other/"),
    ("run f.py:f a b -s s", "run f.py:f --input a --output b -s s"),
    ("run f.py:f --input a -s s --workers 4", "run f.py:f --input a -s s --parallelism 4"),
    ("sub list -w", "sub list --watch"),
    ("sub list orders -F", "sub list orders --watch"),
    ("dlq retry orders-a-DLQ --id 17:4", "dlq retry orders-a-DLQ 17:4"),
    ("copy --to backup", "copy backup"),
]


def values_of(line: str) -> dict[str, Any] | None:
    """The values that our own line gives its command."""
    words = line.split()
    path, used = catalogue.resolve(words)
    command, args = load(path), spelled_out(load(path), words[used:])
    return parse(command, hidden_times(args) if command.times else args)


@pytest.mark.parametrize(("typed", "meant"), OTHERS)
def test_a_form_of_another_tool_is_read_like_ours(typed: str, meant: str) -> None:
    words = typed.split()
    path, used = catalogue.resolve(words)
    command = load(path)
    assert values_of(typed) is None, "the parser takes it as it stands"
    converted = forms.converted(command, spelled_out(command, words[used:]))
    assert converted is not None
    values = parse(command, spelled_out(command, converted))
    assert values is not None
    assert values == values_of(meant)


def test_a_store_beside_is_the_other_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "txlog.toml").touch()
    line = forms.converted(load("topic copy"), ["orders", "other"])
    assert line == ["--to-store", "other", "orders"]


@pytest.mark.parametrize(
    "line",
    [
        "sub delete orders billing",
        "consume orders --nothing",
        "sub seek billing",
        "sub create billing",
        "sub create orders billing audit",
        "export orders -x",
    ],
)
def test_other_lines_stay_as_they_are(line: str) -> None:
    words = line.split()
    path, used = catalogue.resolve(words)
    assert forms.converted(load(path), words[used:]) is None


def test_no_form_is_a_consent_or_a_flag_that_the_command_has() -> None:
    """Only `--execute` of Kafka's tool means `--yes`; no other word may."""
    for path, meanings in [("", forms.FLAGS), *forms.OF_COMMAND.items()]:
        for name, replacements in meanings.items():
            for line in replacements:
                assert "--force" not in line
                assert "--yes" not in line or (path, name) == ("sub seek", "--execute")
    for path, own in forms.OF_COMMAND.items():
        assert not own.keys() & {name for each in parameters_of(load(path)) for name in each.names}
