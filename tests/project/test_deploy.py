"""The files of deploy/: an image, a compose file, Prometheus's rules and Grafana's dashboard.

No test builds the image or starts Grafana. The command of the image runs as it stands, with other
ports, and a real Prometheus reads the rules and scrapes what it serves.
"""

from __future__ import annotations

import http.client
import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests import harness
from tests.source_tree import ROOT

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
ALERTS = DEPLOY / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "txlog.json"
QUERIES_MAX = 20_000
OF_PROMETHEUS = {"instance", "job"}
SUFFIXES = {
    "counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"],
    "summary": ["", "_sum", "_count"],
}  # fmt: skip


def parsed(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


COMPOSE = parsed("compose.yml")


def words_of(instruction: str) -> list[str]:
    """The JSON array of an instruction of the Dockerfile."""
    found = re.findall(rf"^ *{instruction} (\[.*\])$", DOCKERFILE, re.MULTILINE)
    words: list[str] = json.loads(found[-1])
    return words


# --- the image and the compose file ---------------------------------------------------------------


def test_the_image_passes_the_linter() -> None:
    """Kills: a shell form that swallows signals, a cache of pip in the image, root as its user."""
    linter = Path(sys.executable).with_name("hadolint")
    done = harness.run([str(linter), str(DEPLOY / "Dockerfile")])
    assert (done.stdout, done.stderr) == ("", "")
    assert re.search(r"^USER \d+$", DOCKERFILE, re.MULTILINE)
    assert {line.split()[1] for line in DOCKERFILE.splitlines() if line.startswith("FROM ")} == {
        "python:3.13-slim"
    }


def test_the_image_gets_what_its_build_reads_and_no_more() -> None:
    """Kills: 2 GB of .venv in the build, or a file of pyproject.toml that it does not find."""
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert lines[0] == "*" and all((ROOT / name).exists() for name in kept)
    assert {"src", "data", "man", "pyproject.toml", "README.md", "LICENSE"} == kept


def test_the_compose_file_names_what_exists() -> None:
    """Kills: a mount of a missing path, a port without a listener, a service that is undefined."""
    services = COMPOSE["services"]
    exposed = set(re.search(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)[1].split())  # type: ignore[index]
    build = services["txlog"]["build"]
    context = (DEPLOY / build["context"]).resolve()
    assert (context, (context / build["dockerfile"]).is_file()) == (ROOT, True)
    assert {port.split(":")[2] for port in services["txlog"]["ports"]} == exposed
    targets = set()
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        assert set(service.get("depends_on", ())) <= set(services)
        assert "." not in service.get("image", "").partition("/")[0], "a name of a registry"
        for mount in service["volumes"]:
            source, target, *_ = mount.split(":")
            is_file = source.startswith(".")
            assert (DEPLOY / source).exists() if is_file else source in COMPOSE["volumes"], mount
            targets.add(target)
    assert {"/data", "/etc/prometheus/prometheus.yml", "/etc/prometheus/alerts.yml"} <= targets
    provider = parsed("grafana/provisioning/dashboards/txlog.yml")["providers"][0]
    assert provider["options"]["path"] in targets
    assert parsed("prometheus.yml")["rule_files"] == [ALERTS.name]


def test_each_service_calls_the_next_one_by_its_name_and_port() -> None:
    [job] = parsed("prometheus.yml")["scrape_configs"]
    [target] = job["static_configs"][0]["targets"]
    service, _, port = target.partition(":")
    command = COMPOSE["services"][service]["command"]
    assert command[command.index("--http") + 1] == f"0.0.0.0:{port}"
    assert f"127.0.0.1:{port}:{port}" in COMPOSE["services"][service]["ports"]
    assert f":{port}/ready" in DOCKERFILE
    [source] = parsed("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    name, _, port = source["url"].removeprefix("http://").partition(":")
    assert any(ports.endswith(f":{port}") for ports in COMPOSE["services"][name]["ports"])
    uids = {panel["datasource"]["uid"] for panel in json.loads(DASHBOARD.read_text())["panels"]}
    assert uids == {source["uid"]}


def get(port: int, path: str) -> bytes:
    """The answer of a server of this machine."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read()


class Served(NamedTuple):
    """The command of the image, running."""

    port: int
    store: Path
    env: dict[str, str]

    def metrics(self) -> str:
        """The metrics, as Prometheus would scrape them."""
        return get(self.port, "/metrics").decode()


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of the image: `txlog` on PATH and a store that is not there yet."""
    folder = tmp_path_factory.mktemp("container")
    program = folder / "txlog"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m txlog "$@"\n')
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "TXLOG_STORE": str(folder / "store")}


@pytest.fixture(scope="module")
def served(container: dict[str, str]) -> Iterator[Served]:
    """The command of the compose file, with other ports, over a store with something in it."""
    given = [re.sub(r":\d+$", ":0", word) for word in COMPOSE["services"]["txlog"]["command"]]
    command = [*words_of("ENTRYPOINT"), "--log-format", "json", *given]
    with harness.Child(command, stream="stderr", env=container) as server:
        urls = json.loads(server.until('"urls"'))["urls"]
        port = int(next(url for url in urls if url.startswith("http")).rpartition(":")[2])
        tool = str(Path(container["PATH"].partition(":")[0], "txlog"))
        for words in (
            "topic create orders -q",
            "produce orders -m one -m two -q",
            "sub create billing -t orders -q",
            "policy alert set -t orders --backlog 1 -q",
            "watermark set orders 2026-11-01T00:00:00Z --producer p -q",
            "txn run -- true",
        ):
            harness.run([tool, *words.split()], env=container)
        yield Served(port, Path(container["TXLOG_STORE"]), container)


@pytest.mark.deep
def test_the_image_serves_nobody_else_without_a_word(container: dict[str, str]) -> None:
    """The image's own command has neither TLS nor rules: it names the missing flags and exits."""
    done = harness.run([*words_of("ENTRYPOINT"), *words_of("CMD")], env=container, code=None)
    assert done.returncode == 2, done.stderr
    assert "--tls-cert" in done.stderr and "--insecure" in done.stderr


@pytest.mark.deep
def test_the_command_of_the_compose_file_serves_and_is_healthy(served: Served) -> None:
    assert (served.store / "txlog.json").parent.is_dir()
    _, *words = words_of("CMD" if "HEALTHCHECK" not in DOCKERFILE else "    CMD")
    healthy = [sys.executable, *(word.replace("8080", str(served.port)) for word in words)]
    assert harness.run(healthy).returncode == 0
    gone = [sys.executable, *(word.replace("8080", "1") for word in words)]
    assert harness.run(gone, code=None).returncode != 0


# --- the dashboard and the alerts -----------------------------------------------------------------


def expressions() -> Iterator[tuple[str, str]]:
    """Each expression of the rules and the dashboard, with the texts that use its labels."""
    for group in parsed(ALERTS.name)["groups"]:
        for rule in group["rules"]:
            yield rule["expr"], " ".join(rule["annotations"].values())
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"].replace("{{", "$labels.")
    for variable in dashboard["templating"]["list"]:
        metric, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
        yield metric, f"$labels.{label}"


def exposed(text: str) -> dict[str, set[str]]:
    """The labels of each metric; of a metric without a sample, none."""
    metrics: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for suffix in SUFFIXES[family.type]:
            metrics[family.name + suffix] = set()
        for sample in family.samples:
            metrics[sample.name] = metrics.get(sample.name, set()) | set(sample.labels)
    return metrics


def test_every_metric_and_label_that_is_used_is_exposed(served: Served) -> None:
    """Kills: a panel that stays empty and an alert that never fires, after a metric is renamed."""
    metrics = exposed(served.metrics())
    assert metrics["txlog_alert"] == {"topic", "subscription", "alert"}
    used = set()
    for expression, text in expressions():
        names = re.findall(r"\b(?:txlog|pulsar)_\w+", expression)
        assert set(names) <= set(metrics), expression
        used |= set(names)
        for name, selector in re.findall(r"\b((?:txlog|pulsar)_\w+)\{([^}]*)\}", expression):
            labels = set(re.findall(r"(\w+) *[!=]=?~? *\"", selector))
            assert labels <= (metrics[name] or labels), expression
        labels = {word for by in re.findall(r"(?:by|on) *\(([\w, ]+)\)", expression)
                  for word in by.split(", ")} | {*re.findall(r"\$labels\.(\w+)", text)}  # fmt: skip
        if all(metrics[name] for name in names):
            known = set().union(*(metrics[name] for name in names)) | OF_PROMETHEUS
            assert labels <= known, (expression, labels - known)
    assert len(used) > 20


@pytest.mark.needs("promtool")
def test_prometheus_loads_the_rules_and_they_fire() -> None:
    """Kills: a rule that is not one, and a text that names a label the alert does not have."""
    assert "rules found" in harness.run(["promtool", "check", "rules", str(ALERTS)]).stdout
    done = harness.run(["promtool", "test", "rules", str(DEPLOY / "alerts.test.yml")], code=None)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.deep
@pytest.mark.needs("promtool")
def test_a_real_prometheus_scrapes_the_server(served: Served, tmp_path: Path) -> None:
    """It reads our configuration, but for the addresses, and the alert of the store fires."""
    settings = (DEPLOY / "prometheus.yml").read_text(encoding="utf-8")
    settings = settings.replace("txlog:8080", f"127.0.0.1:{served.port}").replace("15s", "1s")
    (tmp_path / "prometheus.yml").write_text(settings)
    (tmp_path / "alerts.yml").write_text(ALERTS.read_text(encoding="utf-8").replace("1m", "0s"))
    harness.run(["promtool", "check", "config", str(tmp_path / "prometheus.yml")])
    command = [
        "prometheus", f"--config.file={tmp_path}/prometheus.yml", "--log.format=json",
        "--web.listen-address=127.0.0.1:0", f"--storage.tsdb.path={tmp_path}/data",
    ]  # fmt: skip
    with harness.Child(command, stream="stderr") as prometheus:
        port = int(json.loads(prometheus.until('"Listening on"'))["address"].rpartition(":")[2])
        prometheus.until("ready to receive web requests")

        def value(query: str) -> list[str]:
            answer = json.loads(get(port, f"/api/v1/query?query={quote(query)}"))
            return [series["value"][1] for series in answer["data"]["result"]]

        alert = 'ALERTS{alertname="TxlogAlert", alertstate="firing"}'
        for _ in range(QUERIES_MAX):  # until the first scrape and the first look at the rules
            if value(alert):
                break
        assert value("up") == ["1"]
        assert value(alert) == ["1"]
        assert value("pulsar_subscription_back_log") != []
