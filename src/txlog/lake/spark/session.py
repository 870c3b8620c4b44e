"""Owns the Spark session: its start, and how it opens a store.

Settings of the caller always apply. Defaults suit one machine: instants in UTC, page CRCs of
Parquet checked, no web interface, no progress bar, the loopback address with a local master. Spark
lists files in no separate job, since the files of a topic are named one by one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from zipimport import zipimporter

from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from txlog.base.arguments import StrPath
from txlog.client.client import Client
from txlog.client.open import open_store
from txlog.errors import InvalidArgument, NotAllowed, ReadOnlyStore
from txlog.lake.spark.datasource import TxlogSource
from txlog.lake.spark.java import (
    MODULE,
    bundled_java,
    cache_directory,
    environment_for,
    find_java,
    logging_options,
)
from txlog.lake.spark.submit import DEFAULTS

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_DEFAULTS = {"spark.app.name": "txlog", "spark.ui.enabled": "false", **DEFAULTS}
_LOOPBACK = "127.0.0.1"
_LOCAL = {"spark.driver.bindAddress": _LOOPBACK, "spark.driver.host": _LOOPBACK}


def session(
    master: str | None = None,
    conf: Mapping[str, str | int | bool] | None = None,
) -> SparkSession:
    """Return the Spark session of this process; start one if there is none.

    master: by default, the master of spark-submit, or `local[*]`
    conf:   Spark properties; a running session takes those it can still change
    raises: MissingExtra without Java; InvalidArgument for properties that a running session cannot
            change, and for Spark Connect; DiskFailed when the cache cannot be written
    """
    remote = os.environ.get("SPARK_REMOTE", "")
    if (master or remote).startswith("sc://"):
        raise _of_connect("txlog.spark.session", "SparkSession.builder.remote(…) makes the session")
    opened = _session(master, conf)
    if isinstance(getattr(__spec__, "loader", None), zipimporter):
        _register(opened)
    return opened


def need_jvm(what: object, name: str, instead: str) -> None:
    """Raise InvalidArgument for a session or data frame of Spark Connect, which has no JVM here."""
    if type(what).__module__.startswith("pyspark.sql.connect"):
        raise _of_connect(f"txlog.lake.spark.{name}", instead)


def _of_connect(name: str, instead: str) -> InvalidArgument:
    return InvalidArgument(
        f"{name} needs Spark in this process, and this is Spark Connect",
        hint=f"{instead}; the server needs txlog and the store",
    )


def _session(master: str | None, conf: Mapping[str, str | int | bool] | None) -> SparkSession:
    properties = {name: _text(value) for name, value in (conf or {}).items()}
    if master is not None:
        properties["spark.master"] = master
    running = SparkSession.getActiveSession()
    if running is not None:
        return _changed(running, properties)
    if _is_jvm_up():
        SparkContext._ensure_initialized()
        submitted = dict(SparkConf().getAll())
        return _built(_complete({**submitted, **properties}))
    settings = _complete(properties)
    java = find_java(os.environ, bundled_java())
    cache = cache_directory(os.environ)
    java_options = settings.get(JAVA_OPTIONS, "")
    options = logging_options(os.environ, cache, java_options)
    settings[JAVA_OPTIONS] = " ".join([*options, java_options]).strip()
    home = environment_for(java, cache, keeps_module=MODULE in java_options)
    with _environment(_for_child(settings["spark.master"], home)):
        return _built(settings)


def _register(spark: SparkSession) -> None:
    """Tell Spark about the data source `txlog` if txlog came as a zip with the job.

    Spark searches data sources with its JVM's Python, which does not see that zip; its planners for
    streams ignore zips of the job altogether, and need the path.
    """
    environment = spark.sparkContext.environment
    previous = environment.get("PYTHONPATH")
    archive = str(Path(__file__).parents[3])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (archive, previous)))
    try:
        spark.dataSource.register(TxlogSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    finally:
        if previous is None:
            del environment["PYTHONPATH"]
        else:
            environment["PYTHONPATH"] = previous


def is_local(master: str) -> bool:
    """Whether a master runs everything on this machine, in one JVM or several."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def _complete(properties: Mapping[str, str]) -> dict[str, str]:
    """The given properties, with defaults for missing ones."""
    out = {"spark.master": "local[*]", **_DEFAULTS, **properties}
    return {**_LOCAL, **out} if is_local(out["spark.master"]) else out


def _built(settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _changed(running: SparkSession, properties: Mapping[str, str]) -> SparkSession:
    """A running session with some properties changed, all or none."""
    current = dict(running.sparkContext.getConf().getAll())
    fixed = [
        name
        for name, value in properties.items()
        if current.get(name) != value and not running.conf.isModifiable(name)
    ]
    if fixed:
        raise InvalidArgument(
            f"a session is running, and cannot change {', '.join(sorted(fixed))}",
            hint="stop it first, or leave them out",
        )
    for name, value in properties.items():
        if current.get(name) != value:
            running.conf.set(name, value)
    return running


def _is_jvm_up() -> bool:
    """Whether a JVM runs: under spark-submit, and after a session that was stopped."""
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def _for_child(master: str, java: Mapping[str, str]) -> dict[str, str]:
    """The environment for starting the JVM; variables that the user set stay."""
    out = dict(java)
    if is_local(master):
        # Workers would run the python3 on PATH, which may lack our packages.
        out["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
        out["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", _LOOPBACK)
    return out


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables in the environment, which pyspark passes on, and restore them later."""
    previous = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- the store -------------------------------------------------------------------------------


def opened(store: StrPath) -> Client:
    """A client that can pin files; if this user must not write the store, one that cannot.

    raises: StoreNotFound, FormatMismatch, Corruption, NoResources
    """
    try:
        client = open_store(store)
    except (NotAllowed, ReadOnlyStore):
        return open_store(store, read_only=True)
    client.checkpoint_automatically = False  # this client only reads
    return client
