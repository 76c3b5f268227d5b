"""The routes and inhibitions: valid, on alerts that exist, and, in a real Alertmanager, one incident is one page."""

from __future__ import annotations

import itertools
import json
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from budget_exporter.sources import SOURCES
from tests.alerts.promtools import ALERTS, alerts, run
from tests.real_parts import program

CONFIG = ALERTS / "alertmanager.yml"
DEADLINE = 20.0
SEVERITY = {alert.name: alert.labels["severity"] for alert in alerts()}
REASON = {alert.name: alert.labels.get("reason") for alert in alerts()}


@pytest.fixture
def amtool() -> str:
    return program("amtool", "prometheus-alertmanager")


@pytest.mark.real_part("amtool")
def test_amtool_accepts_the_configuration(amtool: str) -> None:
    done = run(amtool, "check-config", CONFIG)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.real_part("amtool")
@pytest.mark.parametrize("name", SEVERITY)
def test_each_alert_goes_to_who_its_severity_says(amtool: str, name: str) -> None:
    receiver = {"critical": "page", "warning": "ticket", "info": "silent"}[SEVERITY[name]]
    labels = [f"alertname={name}", f"severity={SEVERITY[name]}", "instance=a:1", "engine=e"]
    verify = f"--verify.receivers={receiver}"
    done = run(amtool, "config", "routes", "test", f"--config.file={CONFIG}", verify, *labels)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_inhibition_stays_on_its_host() -> None:
    for rule in yaml.safe_load(CONFIG.read_text())["inhibit_rules"]:
        assert {"job", "instance"} < set(rule["equal"]) or rule["equal"] == ["job", "instance"]


def test_every_alert_of_an_inhibition_exists() -> None:
    for rule in yaml.safe_load(CONFIG.read_text())["inhibit_rules"]:
        for matcher in rule["source_matchers"] + rule["target_matchers"]:
            label, _, value = matcher.partition("=")
            if label.rstrip("!") == "alertname":
                for part in alternatives(value.strip('~"')):
                    assert any(re.fullmatch(part, name) for name in SEVERITY), matcher


def alternatives(pattern: str) -> list[str]:
    """Return what ``pattern`` stands for, one name each: ``a(b|c)|d`` is ab, ac and d."""
    parts = re.findall(r"((?:[^|()]|\([^)]*\))+)", pattern)
    names = []
    for part in parts:
        pieces = [piece.strip("()").split("|") for piece in re.findall(r"\([^)]*\)|[^()]+", part)]
        names += ["".join(chosen) for chosen in itertools.product(*pieces)]
    return names


def test_every_source_of_an_inhibition_samples_devices() -> None:
    """A list of sources goes stale; one that is no device's would hide a failure of another kind."""
    named = {
        part
        for rule in yaml.safe_load(CONFIG.read_text())["inhibit_rules"]
        for matcher in rule["target_matchers"]
        if matcher.startswith("source=~")
        for part in matcher.removeprefix("source=~").strip('"').split("|")
    }
    assert named
    assert {SOURCES[name] for name in named} == {"devices"}


def test_an_alert_that_inhibits_is_no_less_than_what_it_inhibits() -> None:
    """A ticket must never keep a page from a person, except where the exporter itself is gone."""
    rank = {"critical": 0, "warning": 1, "info": 2}
    for rule in yaml.safe_load(CONFIG.read_text())["inhibit_rules"]:
        sources = [name for name in SEVERITY if selected(name, rule["source_matchers"])]
        targets = [name for name in SEVERITY if selected(name, rule["target_matchers"])]
        assert sources
        assert targets
        if sources != ["BudgetExporterDown"]:
            assert max(rank[SEVERITY[name]] for name in sources) <= min(rank[SEVERITY[name]] for name in targets)


def selected(name: str, matchers: list[str]) -> bool:
    """Return whether the alert's own labels leave it among what ``matchers`` select."""
    for matcher in matchers:
        label, operator, value = re.fullmatch(r"(\w+)(=~|!~|!=|=)(.*)", matcher).groups()  # type: ignore[union-attr]  # checked by amtool
        have = {"alertname": name, "severity": SEVERITY[name]}.get(label)
        if have is None:
            continue
        found = re.fullmatch(value.strip('"'), have) is not None
        if found == operator.startswith("!"):
            return False
    return True


def alert(name: str, **labels: str) -> dict[str, str]:
    """Return the labels of an alert as the rules would give them."""
    named = {"alertname": name, "severity": SEVERITY[name], "job": "budget_exporter", "instance": "a:1"}
    reason = REASON[name]
    return named | ({"reason": reason} if reason else {}) | labels


Told = tuple[list[list[str]], list[str]]


class Alertmanager:
    """A running Alertmanager, asked over its API."""

    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}"

    def ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"})  # noqa: S310 - loopback
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 - loopback, http
            text = answer.read()
        return json.loads(text) if text.strip() else None

    def ready(self) -> bool:
        try:
            self.ask("/api/v2/status")
        except OSError:
            return False
        return True

    def post(self, incident: list[dict[str, str]]) -> None:
        """Hand over the alerts of one instance and wait until each of them has been put into its group."""
        self.ask("/api/v2/alerts", [{"labels": labels} for labels in incident])
        path = f"/api/v2/alerts/groups?filter=instance%3D%22{incident[0]['instance']}%22"
        posted = sorted(labels["alertname"] for labels in incident)

        def grouped() -> bool:
            names = sorted(a["labels"]["alertname"] for group in self.ask(path) for a in group["alerts"])
            return all(names.count(name) >= posted.count(name) for name in posted)

        wait_for(grouped)

    def told(self, instance: str) -> Told:
        """Return what each page about ``instance`` holds, and what is told by ticket; what is inhibited is neither."""
        groups = self.ask(f"/api/v2/alerts/groups?filter=instance%3D%22{instance}%22&inhibited=false")
        named = [(g["receiver"]["name"], sorted(a["labels"]["alertname"] for a in g["alerts"])) for g in groups]
        pages = sorted(names for receiver, names in named if receiver == "page" and names)
        return pages, sorted(name for receiver, names in named if receiver == "ticket" for name in names)

    def tells(self, instance: str, expected: Told) -> None:
        """Wait until exactly ``expected`` is told: Alertmanager takes in alerts one after the other."""
        end = time.monotonic() + DEADLINE
        while (told := self.told(instance)) != expected and time.monotonic() < end:
            time.sleep(0.05)
        assert told == expected


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "Alertmanager did not get there in time"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    alertmanager = program("prometheus-alertmanager")
    place: Path = tmp_path_factory.mktemp("alertmanager")
    # The real file with receivers that call nobody: what is tested is who would be told.
    document = yaml.safe_load(CONFIG.read_text())
    document["receivers"] = [{"name": receiver["name"]} for receiver in document["receivers"]]
    (place / "alertmanager.yml").write_text(yaml.safe_dump(document))
    port = free_port()
    argv = [
        alertmanager,
        f"--config.file={place / 'alertmanager.yml'}",
        f"--storage.path={place / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with (place / "log").open("w") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            running = Alertmanager(port)
            wait_for(lambda: process.poll() is not None or running.ready())
            assert process.poll() is None, (place / "log").read_text()
            yield running
        finally:
            process.terminate()


E1 = {"engine": "e"}
FULL = [alert("BudgetDeviceMemoryNearlyExhausted", rank=rank, device=f"d{rank}", **E1) for rank in "01"]
MARGIN = [alert("BudgetMarginBelowFloor", rank=rank, device=f"d{rank}", **E1) for rank in "01"]
INCIDENTS: dict[str, tuple[list[dict[str, str]], list[list[str]], list[str]]] = {
    "both ranks full": (
        [
            *FULL,
            *MARGIN,
            alert("BudgetGTTSpill", rank="0", device="d0", **E1),
            alert("BudgetShapeKnifeEdge", reason="measured_margin", **E1),
            alert("BudgetShapeKnifeEdge", reason="predicted_margin", **E1),
            alert("BudgetKVPoolBelowContract", **E1),
        ],
        [["BudgetDeviceMemoryNearlyExhausted"] * 2],
        ["BudgetKVPoolBelowContract"],
    ),
    "crash loop": (
        [
            alert("BudgetEngineCrashLooping", **E1),
            alert("BudgetEngineDown", **E1),
            alert("BudgetEngineRestarted", **E1),
            alert("BudgetUtilizationAboveLimit", rank="0", **E1),
            alert("BudgetShapeKnifeEdge", reason="utilization_limit", **E1),
            *FULL,
        ],
        [["BudgetEngineCrashLooping"]],
        [],
    ),
    "exporter down": (
        [
            alert("BudgetExporterDown"),
            alert("BudgetEngineDown", **E1),
            alert("BudgetSourceFailing", source="procfs"),
            *MARGIN,
        ],
        [],
        ["BudgetExporterDown"],
    ),
    "a shape that dies of its first request": (
        [
            alert("BudgetShapeDiesOnFirstRequest", **E1),
            alert("BudgetEngineCrashLooping", **E1),
            alert("BudgetEngineUnitFailed", **E1),
            alert("BudgetEngineDown", **E1),
            alert("BudgetEngineDied", cause="first_request_oom", **E1),
            alert("BudgetShapeKnifeEdge", reason="measured_margin", **E1),
            *FULL,
            *MARGIN,
        ],
        [["BudgetShapeDiesOnFirstRequest"]],
        [],
    ),
    "given up": (
        [
            alert("BudgetEngineUnitFailed", **E1),
            alert("BudgetEngineDown", **E1),
            alert("BudgetEngineDied", cause="unknown", **E1),
        ],
        [["BudgetEngineUnitFailed"]],
        [],
    ),
    "a crash loop whose cause is somebody else's memory": (
        [
            alert("BudgetEngineCrashLooping", **E1),
            alert("BudgetForeignProcess", rank="0", device="d0", **E1),
            alert("BudgetZombieMemory", finding="zombie_memory", **E1),
            alert("BudgetFreeAtInitFalling", finding="free_at_init_falling", **E1),
        ],
        [["BudgetEngineCrashLooping"]],
        ["BudgetForeignProcess", "BudgetZombieMemory"],
    ),
    "a leak, first": (
        [alert("BudgetMemoryLeak", rank="0", **E1), *MARGIN],
        [],
        ["BudgetMarginBelowFloor", "BudgetMemoryLeak"],
    ),
    "a leak, half an hour before the floor": (
        [alert("BudgetMemoryLeak", rank="0", **E1), alert("BudgetLeakNearFloor", rank="0", **E1), *MARGIN[:1]],
        [["BudgetLeakNearFloor"]],
        [],
    ),
    "a leak, at the floor": (
        [
            alert("BudgetMemoryLeak", rank="0", **E1),
            alert("BudgetLeakNearFloor", rank="0", **E1),
            *FULL[:1],
            *MARGIN[:1],
        ],
        [["BudgetDeviceMemoryNearlyExhausted"]],
        [],
    ),
    "a stranger takes the margin": (
        [
            alert("BudgetForeignProcess", rank="0", device="d0", **E1),
            *MARGIN[:1],
            alert("BudgetGTTSpill", rank="0", device="d0", **E1),
            alert("BudgetShapeKnifeEdge", reason="measured_margin", **E1),
        ],
        [],
        ["BudgetForeignProcess"],
    ),
    "a card is lost": (
        [
            alert("BudgetDeviceLost", rank="1", device="d1", **E1),
            alert("BudgetEngineNotAnswering", **E1),
            alert("BudgetEngineCoreDead", **E1),
            alert("BudgetEngineCrashLooping", **E1),
            alert("BudgetEngineDown", **E1),
            alert("BudgetSourceFailing", source="amdgpu"),
            alert("BudgetSourceFailing", source="journal"),
        ],
        [["BudgetDeviceLost"]],
        ["BudgetSourceFailing"],
    ),
    "a dead core": (
        [
            alert("BudgetEngineCoreDead", **E1),
            alert("BudgetEngineNotAnswering", **E1),
            alert("BudgetKVPoolBelowContract", **E1),
        ],
        [["BudgetEngineCoreDead"]],
        ["BudgetKVPoolBelowContract"],
    ),
    "a pod in a loop": (
        [
            alert("BudgetPodCrashLooping", namespace="llm", pod="p", container="e", **E1),
            alert("BudgetEngineCrashLooping", **E1),
            alert("BudgetEngineDown", **E1),
            alert("BudgetPodOutOfMemory", namespace="llm", pod="p", container="e", **E1),
            alert("BudgetEngineDied", cause="unknown", **E1),
        ],
        [["BudgetEngineCrashLooping"]],
        ["BudgetPodOutOfMemory"],
    ),
    "a pod whose engine nobody saw": (
        [
            alert("BudgetPodCrashLooping", namespace="llm", pod="p", container="e", **E1),
            alert("BudgetEngineDown", **E1),
        ],
        [["BudgetPodCrashLooping"]],
        [],
    ),
    "killed for host memory": (
        [
            alert("BudgetPodOutOfMemory", namespace="llm", pod="p", container="e", **E1),
            alert("BudgetEngineDied", cause="unknown", **E1),
        ],
        [],
        ["BudgetPodOutOfMemory"],
    ),
    "context alone": (
        [
            alert("BudgetEngineRestarted", **E1),
            alert("BudgetFlagsPendingRestart", **E1),
            alert("BudgetKVPoolChanged", finding="kv_changed_since_last_boot", **E1),
            alert("BudgetGraphOverCharge", finding="graph_charge_over", **E1),
        ],
        [],
        [],
    ),
    "a page and a ticket that have nothing to do with each other": (
        [
            *FULL[:1],
            alert("BudgetCrossCheckDisagrees", device="d0", source="rocm_smi"),
            alert("BudgetBootStalled", engine="other"),
        ],
        [["BudgetDeviceMemoryNearlyExhausted"]],
        ["BudgetBootStalled", "BudgetCrossCheckDisagrees"],
    ),
    "two engines, two incidents": (
        [alert("BudgetEngineDown", **E1), alert("BudgetEngineCrashLooping", engine="other"), *MARGIN],
        [["BudgetEngineCrashLooping"], ["BudgetEngineDown"]],
        [],
    ),
    "a knife edge with its figure, and one without": (
        [
            alert("BudgetGraphCaptureAboveCharge", rank="0", **E1),
            alert("BudgetShapeKnifeEdge", reason="capture_over_charge", **E1),
            alert("BudgetShapeKnifeEdge", reason="kv_minimum", engine="other"),
        ],
        [],
        ["BudgetGraphCaptureAboveCharge", "BudgetShapeKnifeEdge"],
    ),
    "a prediction of a wrong model": (
        [alert("BudgetModelMismatch", **E1), alert("BudgetShapeKnifeEdge", reason="predicted_margin", **E1)],
        [],
        ["BudgetModelMismatch"],
    ),
    "a source": (
        [
            alert("BudgetSourceFailing", source="procfs"),
            alert("BudgetSourceStale", source="procfs"),
            alert("BudgetUnparsedLines", source="journal"),
        ],
        [],
        ["BudgetSourceFailing"],
    ),
}


@pytest.mark.real_part("alertmanager")
@pytest.mark.parametrize("incident", INCIDENTS)
def test_one_incident_is_one_page(manager: Alertmanager, incident: str) -> None:
    posted, pages, tickets = INCIDENTS[incident]
    instance = f"{list(INCIDENTS).index(incident)}.example.org:19470"
    manager.post([labels | {"instance": instance} for labels in posted])
    manager.tells(instance, (pages, tickets))


@pytest.mark.real_part("alertmanager")
def test_an_incident_silences_nothing_on_another_host(manager: Alertmanager) -> None:
    down = alert("BudgetEngineDown", **E1)
    manager.post([down | {"instance": "a"}])
    manager.post([down | {"instance": "b"}])
    manager.tells("a", ([["BudgetEngineDown"]], []))
    manager.tells("b", ([["BudgetEngineDown"]], []))
    manager.post([alert("BudgetEngineCrashLooping", **E1) | {"instance": "a"}])
    manager.tells("a", ([["BudgetEngineCrashLooping"]], []))
    assert manager.told("b") == ([["BudgetEngineDown"]], [])
