"""`txlog import`: the rows of files become messages once, and what an export wrote comes back."""

from __future__ import annotations

import gzip
import signal
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scripts import ready
from tests.cli.test_store import ROOT, Tool, tool
from tests.engine_kit import Bench
from tests.jobs.test_export_files import fill, shown
from txlog.api.open import open_store
from txlog.errors import BadRecord, InvalidArgument, LimitExceeded, TopicNotFound
from txlog.jobs.import_files import import_files
from txlog.jobs.loads import OF_IMPORT, Columns, files_of

pytestmark = pytest.mark.usefixtures("quick_disk")
_ = tool


def source(*paths: Path, form: str | None = None, **columns: Any) -> Any:
    return files_of([str(path) for path in paths], form, Columns(**columns), OF_IMPORT)


@pytest.mark.parametrize("form", ["parquet", "arrow", "csv", "ndjson"])
def test_what_was_exported_comes_back_byte_for_byte(tool: Tool, tmp_path: Path, form: str) -> None:
    """spec/cli 11.11: keys, values, none of either, properties and times."""
    tool.ok("topic", "create", "t", "again")
    with open_store(str(tool.path)) as client:
        fill(client, 9, 5)
        want = [row[1:] for row in shown(client)]
    out = tmp_path / f"t.{form}"
    tool.ok("export", "t", str(out), "--to", form)
    more = ["--in", "envelope"] if form == "ndjson" else []
    answer = tool.json("import", str(out), "again", *more)
    assert (answer["messages"], answer["already"]) == (len(want), False)
    with open_store(str(tool.path)) as client:
        assert [row[1:] for row in shown(client, "again")] == want
    assert tool.json("import", str(out), "again", *more)["already"]
    assert tool.json("import", str(out), "again", *more, "--key", "other")["messages"] == len(want)


def test_columns_of_packed_lines_are_chosen(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    files = [tmp_path / f"{name}.csv.gz" for name in "ab"]
    for file in files:
        file.write_bytes(gzip.compress(f'id,n,at\n{file.name[0]},"",7\n'.encode()))
    chosen = source(*files, key="id", values=("id", "n"), event_time="at")
    with pytest.raises(BadRecord):  # a CSV has texts, and 7 is no time
        import_files(bench.client, chosen, "t")
    import_files(bench.client, source(*files, key="id", values=("id", "n")), "t")
    assert [(row[1], row[2]) for row in shown(bench.client)] == [
        (b"a", b'{"id":"a","n":""}'),
        (b"b", b'{"id":"b","n":""}'),
    ]
    import_files(bench.client, source(files[0], value="n"), "t", key="other")
    assert shown(bench.client)[2][2] == b""
    for wrong in ({"values": ("no",)}, {"key": "no"}):
        with pytest.raises(InvalidArgument):
            import_files(bench.client, source(*files, **wrong), "t")
    assert len(shown(bench.client)) == 3


def test_nothing_of_a_bad_source_is_stored(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    pq.write_table(pa.table({"value": [b"x" * 100_000]}), good)
    bad.write_bytes(good.read_bytes()[:-9])
    with pytest.raises(BadRecord):
        import_files(bench.client, source(good, bad), "t")
    with pytest.raises(LimitExceeded):
        import_files(bench.client, source(good), "t", decoded_bytes_max=1000)
    line = tmp_path / "line.ndjson"
    line.write_text('{"value":"eA==","value_encoding":"base32"}\n')
    with pytest.raises(BadRecord, match="base32"):
        import_files(bench.client, source(line, form="envelope"), "t")
    (tmp_path / "no.arrow").write_bytes(b"no")
    with pytest.raises(BadRecord):
        import_files(bench.client, source(tmp_path / "no.arrow"), "t")
    with pytest.raises(TopicNotFound):
        import_files(bench.client, source(good), "u")
    assert shown(bench.client) == []
    dry = import_files(bench.client, source(good), "t", dry_run=True)
    assert (dry["messages"], dry["already"], shown(bench.client)) == (1, False, [])
    assert import_files(bench.client, source(good), "u", create=True)["messages"] == 1


_DIES = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import txlog
from txlog.jobs.import_files import import_files
from txlog.jobs.loads import OF_IMPORT, Columns, files_of
steps = []
def tell(text):
    steps.append(text)
    if len(steps) == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
with txlog.open(sys.argv[2]) as client:
    files = files_of([sys.argv[3]], None, Columns(), OF_IMPORT)
    import_files(client, files, "t", resume=True, tell=tell)
"""


def test_a_killed_import_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.ndjson").write_text(f'{{"n":{number}}}\n' * (number + 1))
    words = [*ready.python(), "-c", _DIES, str(ROOT / "src"), bench.path, str(folder), "6"]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    assert 0 < len(shown(bench.client)) < 15
    rest = import_files(bench.client, source(folder), "t", resume=True)
    assert rest["files"] == 3 and not rest["already"]
    values = [row[2] for row in shown(bench.client)]
    assert values == [b'{"n":%d}' % number for number in range(5) for _ in range(number + 1)]
    assert import_files(bench.client, source(folder), "t", resume=True)["already"]
    moved = (folder / "2.ndjson").rename(folder / "9.ndjson")
    assert import_files(bench.client, source(moved), "t", resume=True)["already"]
