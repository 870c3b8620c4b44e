"""A cluster of machines that have addresses of their own, and not the store.

Workers are in network namespaces where the directory of the store is empty. They read offloaded
files, and run a packed environment that Spark brings them. Executors are killed in the middle.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from tests.harness import CHILDREN
from tests.s3_server import s3_server
from tests.spark.standalone import HOST, machines, master, worker
from txlog.lake.spark.java import bundled_java, cache_directory, environment_for, find_java
from txlog.lake.spark.submit import submit_args

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROWS = 4000
PACKED = ("pyarrow", "msgspec", "crc32c", "pyroaring")


def filled(path: Path, topics: list[str]) -> str:
    """A store with topics of 4,000 numbered messages each, in ledgers that are sealed."""
    txlog.init(str(path), reader_grace_ms=0, ledger_entries_max=500)
    with txlog.open(str(path)) as client:
        for topic in topics:
            client.create_topic(topic, partitions=2)
            numbers = [b"%d" % number for number in range(ROWS)]
            producer = client.producer(topic)
            for start in range(0, ROWS, 500):
                part = numbers[start : start + 500]
                producer.send_batch(pa.table({"key": part, "value": part}))
        client.create_topic("loaded", partitions=2)
        client.checkpoint(roll_all=True)
    return str(path)


def packed(folder: Path) -> Path:
    """An archive as venv-pack makes it: a Python with the packages that workers need."""
    home = folder / "packed"
    words = ["-m", "venv", "--without-pip", str(home)]
    subprocess.run([sys.executable, *words], check=True)
    (there,) = home.glob("lib/python*/site-packages")
    here = Path(sysconfig.get_path("purelib"))
    skipped = shutil.ignore_patterns("tests", "include", "*.pyx", "*.pxd", "*flight*", "*gandiva*")
    for name in PACKED:
        shutil.copytree(here / name, there / name, ignore=skipped)
    for library in here.glob("pyroaring*.so"):
        shutil.copy(library, there)
    archive = folder / "env.tar.gz"  # Spark unpacks a plain .tar without the permissions
    with tarfile.open(archive, "w:gz", compresslevel=1) as out:
        out.add(home, ".")
    return archive


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Variables of all JVMs: nothing of this checkout for Python."""
    java = environment_for(find_java(os.environ, bundled_java()), cache_directory(os.environ))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        patch.delenv("PYTHONPATH", raising=False)
        yield {
            **os.environ,
            **java,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
        }


def test_workers_without_the_store_that_lose_executors(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """Each read and a load lose the executor of a task at its last row; docs/cluster.md.

    Kills: a worker that opens the store, rows of a lost task that are missing or stored twice.
    """
    flags = tmp_path / "flags"
    flags.mkdir()
    far, archive = tmp_path / "far", tmp_path / "archive"
    archive.mkdir(mode=0o700)
    near = filled(tmp_path / "near", [])
    filled(far, ["directory", "bucket"])
    home = packed(tmp_path)
    with ExitStack() as cluster:
        addresses = cluster.enter_context(machines(2, [far]))
        bucket = cluster.enter_context(s3_server(HOST))
        with txlog.open(str(far)) as client:
            for topic, place in (("directory", str(archive)), ("bucket", bucket)):
                client.admin.offload(topic, place)
            client.checkpoint()
        address = master(environment, HOST, cluster)
        for host, prefix in addresses:
            worker(environment, host, tmp_path, address, cluster, prefix)
        done = submitted(tmp_path, environment, address, home, [str(far), near, str(flags)])
    whole = f"{ROWS} {ROWS} {sum(range(ROWS))}"
    assert done.stdout.splitlines() == [
        f"read directory {whole}",
        f"source directory {whole}",
        f"read bucket {whole}",
        f"source bucket {whole}",
        "environment []",
        f"loaded {ROWS} False",
        f"loaded {ROWS} True",
    ], done.stdout[-4000:] + done.stderr[-4000:]
    assert len(list(flags.iterdir())) == 5
    with txlog.open(near) as client:
        numbers = [int(v) for table in client.read("loaded") for v in table["value"].to_pylist()]
    assert sorted(numbers) == [*range(ROWS)]
    assert list(Path(near).glob("topics/**/_stage/*")) == []


def submitted(
    folder: Path, environment: dict[str, str], address: str, home: Path, words: list[str]
) -> subprocess.CompletedProcess[str]:
    """The job by spark-submit, with the packed environment, which the driver has unpacked too."""
    (folder / "environment").symlink_to(folder / "packed")
    settings = {
        "spark.driver.host": HOST,
        "spark.executor.memory": "512m",
        "spark.log.level": "ERROR",
        **{
            f"spark.executorEnv.{name}": os.environ[name]
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED")
        },
    }
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", address]
    command += ["--driver-memory", "512m", *submit_args(archive=str(home))]
    command += [word for item in settings.items() for word in ("--conf", "=".join(item))]
    return subprocess.run(
        [*command, str(CHILDREN / "spark_cluster.py"), *words],
        check=False,
        text=True,
        capture_output=True,
        cwd=folder,
        env={**os.environ, **environment, "SPARK_LOCAL_IP": HOST},
    )
