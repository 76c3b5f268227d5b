"""The dashboard's queries answered by a real Prometheus from a synthetic fleet: nothing empty, nothing added up."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from dashboards import engine
from dashboards.queries import AFTER_FAILURE, queries
from tests.dashboards.dashboard_fleet import GIB, MIB, REQUESTED, fleet, write_history
from tests.integration.processes import free_port
from tests.real_parts import program

DASHBOARD: dict[str, Any] = json.loads(engine.PATH.read_text(encoding="utf-8"))
HOURS = 3
pytestmark = pytest.mark.real_part("prometheus")


class Prometheus:
    """A running server whose history ends at ``end``."""

    def __init__(self, port: int, end: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.end = end

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1) as answer:  # noqa: S310 - loopback, http
                return bool(answer.status == 200)
        except (OSError, urllib.error.HTTPError):
            return False

    def ask(self, expr: str) -> list[dict[str, Any]]:
        asked = urllib.parse.urlencode({"query": expr, "time": self.end})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query?{asked}", timeout=10) as answer:  # noqa: S310 - as above
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return found
        except urllib.error.HTTPError as refused:
            pytest.fail(f"{expr}: {refused.read().decode()}")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    end = int(time.time())
    start = end - HOURS * 3600
    write_history(folder / "history.om", fleet(start), [float(at) for at in range(start, end + 1, 30)])
    subprocess.run(
        [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", folder / "history.om", folder / "tsdb"],
        check=True,
        capture_output=True,
    )
    (folder / "prometheus.yml").write_text("scrape_configs: []\n", encoding="utf-8")
    server = Prometheus(free_port(), end)
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address={server.url.removeprefix('http://')}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            deadline = time.monotonic() + 30
            while not server.ready():
                assert process.poll() is None, (folder / "prometheus.log").read_text()
                assert time.monotonic() < deadline, "prometheus did not become ready"
                time.sleep(0.05)
            yield server
        finally:
            process.terminate()
            process.wait(10)


def _empty(prometheus: Prometheus, **values: str) -> set[str]:
    return {query.panel for query in queries(DASHBOARD, failed=True, **values) if not prometheus.ask(query.expr)}


def test_no_panel_is_empty_on_a_host_that_has_failed(prometheus: Prometheus) -> None:
    assert _empty(prometheus, engine="vllm-qwen", instance="gpu-b.*") == set()


def test_only_the_last_failure_is_empty_on_a_host_that_has_not(prometheus: Prometheus) -> None:
    assert _empty(prometheus, engine="vllm-qwen", instance="gpu-a.*") == AFTER_FAILURE


def test_a_plain_engine_has_no_arena(prometheus: Prometheus) -> None:
    assert _empty(prometheus, engine="vllm-small") == {"Arena slots", *AFTER_FAILURE}


def _panel(prometheus: Prometheus, title: str, **values: str) -> list[dict[str, Any]]:
    first = next(query for query in queries(DASHBOARD, failed=False, **values) if query.panel == title)
    return prometheus.ask(first.expr)


@pytest.mark.parametrize(("name", "places"), [("vllm-qwen", 4), ("vllm-small", 1)])
def test_the_parts_of_a_bar_sum_to_the_request(prometheus: Prometheus, name: str, places: int) -> None:
    bars: dict[str, dict[str, int]] = {}
    for part in _panel(prometheus, "Ledger: the request and its parts", engine=name):
        labels = part["metric"]
        bars.setdefault(labels["place"], {})[labels["component"]] = int(float(part["value"][1]))
    assert len(bars) == places
    for place, parts in bars.items():
        assert sum(parts.values()) == REQUESTED, place
        assert ("arena" in parts) != ("kv_pool" in parts)


def test_hosts_with_an_engine_of_one_name_stay_apart(prometheus: Prometheus) -> None:
    margins = {
        (found["metric"]["instance"][:5], found["metric"]["rank"]): float(found["value"][1])
        for found in _panel(prometheus, "Margin now", engine="vllm-qwen")
    }
    assert set(margins) == {("gpu-a", "0"), ("gpu-a", "1"), ("gpu-b", "0"), ("gpu-b", "1")}
    for (host, rank), free in zip(sorted(margins), (1.02, 0.97, 0.52, 0.1), strict=True):
        # The synthetic use moves by up to 60 MiB, and bytes are whole.
        assert -1 <= margins[host, rank] - free * GIB <= 60 * MIB + 1


@pytest.mark.parametrize(
    ("title", "wanted"),
    [
        ("Fits now", {"gpu-a": {"0": 0, "1": 0}, "gpu-b": {"0": 1, "1": 2}}),
        ("Fitted at its worst", {"gpu-a": {"0": 0, "1": 0}, "gpu-b": {"0": 1, "1": 2}}),
    ],
)
def test_the_state_follows_the_floors(prometheus: Prometheus, title: str, wanted: dict[str, dict[str, int]]) -> None:
    states: dict[str, dict[str, int]] = {}
    for found in _panel(prometheus, title, engine="vllm-qwen"):
        labels = found["metric"]
        states.setdefault(labels["instance"][:5], {})[labels["rank"]] = int(found["value"][1])
    assert states == wanted


def test_a_restart_is_annotated(prometheus: Prometheus) -> None:
    annotation = next(note for note in DASHBOARD["annotations"]["list"] if note["name"] == "Restarts")
    wrapped = {"panels": [{"type": "annotation", "title": "Restarts", "targets": [annotation]}]}
    asked = queries(wrapped, engine="vllm-qwen", rate_interval=f"{HOURS}h")[0]
    assert [found["metric"]["instance"] for found in prometheus.ask(asked.expr)] == ["gpu-b.example.org:19470"]
