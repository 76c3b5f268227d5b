"""The hook in a real vLLM on the CPU whose workers take themselves for Neuron's, and the exporter that reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration import rig_vllm
from tests.integration.processes import Exporter, exporter, until
from tests.integration.rig_vllm import BOOT, Vllm, vllm, write_model

pytestmark = pytest.mark.real_part("vllm")
ROOT = Path(__file__).parents[2]
HOOK = ROOT / "deploy/neuron-hook"
USED, LIMIT = 18993905664, 25769803776
SERIES = ("budget_neuron_vnc_memory_used_bytes", "budget_neuron_vnc_memory_limit_bytes")


@dataclass
class Seen:
    """What one sample left behind: the record, and then the exporter's two figures for rank 0 and its source."""

    record: Mapping[str, Any]
    vnc: Sequence[float | None]
    success: float | None
    health: int | None


@dataclass
class Scene:
    """The engine, what its workers wrote down, and what was seen of each of the first three samples."""

    engine: Vllm
    watcher: Exporter
    records: Path
    events: Path
    seen: list[Seen] = field(default_factory=list)
    workers: Mapping[str, int] = field(default_factory=dict)
    own: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """What each process wrote down, in order."""
    files: Sequence[str] = ()

    def look(self) -> None:
        """Wait for the samples as they come, the second of which fails, and for the exporter to show each."""
        for number, shown in ((1, [USED + 1, LIMIT]), (2, [None, None]), (3, [USED + 3, LIMIT])):
            record = until(partial(self._record, number), f"sample {number} is written", BOOT if number == 1 else 30)
            # The folder belongs to an engine that the exporter has yet to find.
            until(lambda shown=shown: self.vnc() == shown, f"the exporter shows sample {number}", 9)  # type: ignore[misc]
            success = self.watcher.value("budget_source_success", source="neuron_hook")
            self.seen.append(Seen(record, self.vnc(), success, self.engine.health()))
        self.engine.serving()
        self.workers = {title: self.engine.worker(title) for title in ("VLLM::Worker_TP0", "VLLM::Worker_TP1")}
        lines = [line.partition(" ") for line in self.events.read_text().splitlines()]
        self.own = {int(pid): [words for p, _, words in lines if p == pid] for pid, _, _ in lines}
        self.files = [path.name for path in self.records.iterdir()]

    def vnc(self) -> list[float | None]:
        """Return what the exporter shows of rank 0."""
        return [self.watcher.value(name, engine="hooked", rank="0") for name in SERIES]

    def _record(self, samples: int) -> Mapping[str, Any] | None:
        assert self.engine.process.poll() is None, self.engine.log[-4000:]
        for path in self.records.glob("*.json"):
            found: dict[str, Any] = json.loads(path.read_bytes())
            if found["samples"] == samples:
                return found
        return None


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the hook, as its users do, into a folder of its own: not into the venv that all tests share."""
    target = tmp_path_factory.mktemp("hook") / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(HOOK)]
    subprocess.run(command, check=True)
    return target


@pytest.fixture(scope="module")
def scene(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    rig_vllm.installed()
    folder = tmp_path_factory.mktemp("hooked")
    records, events = folder / "records", folder / "events"
    records.mkdir()
    environ = {
        "PYTHONPATH": f"{site}:{Path(__file__).with_name('stand_in')}",
        "STAND_IN_EVENTS": str(events),
        "BUDGET_NEURON_HOOK_DIR": str(records),
        # Less than the ten seconds it never goes below.
        "BUDGET_NEURON_HOOK_INTERVAL": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    }
    flags = ["--max-num-seqs", "4", "--enforce-eager", "--kv-cache-memory-bytes", "64M", "--max-model-len", "512"]
    flags += ["-tp", "2", "--served-model-name", "hooked-model", "--worker-cls", "neuron_stand_in.StandInWorker"]
    config = folder / "config.yaml"
    # YAML is a superset of JSON.
    engines = [{"name": "hooked", "match": {"served_model_name": "hooked-model"}}]
    config.write_text(json.dumps({"engines": engines, "sources": {"neuron_hook": {"interval": "1s"}}}))
    words = (f"--config.file={config}", "--no-source.journal", "--no-source.systemd")
    with exporter(folder / "exporter.log", "serve", *words) as watcher:
        watcher.ready()
        with vllm(folder / "engine", write_model(folder, "tiny-llama"), *flags, environ=environ) as engine:
            made = Scene(engine, watcher, records, events)
            made.look()
            yield made


def test_nothing_is_sampled_before_the_warm_up_has_returned(scene: Scene) -> None:
    own = scene.own[scene.workers["VLLM::Worker_TP0"]]
    assert own[:4] == ["worker of rank 0", "warm-up begins", "warm-up returns", "sample 1"]
    assert own[4:6] == ["sample 2", "sample 3"]


def test_it_publishes_for_its_rank_and_the_exporter_shows_it(scene: Scene) -> None:
    first = scene.seen[0]
    assert (first.record["used"], first.record["limit"]) == (USED + 1, LIMIT)
    assert (first.record["rank"], first.record["replica"], first.record["interval"]) == (0, 0, 10)
    assert first.record["pid"] == scene.workers["VLLM::Worker_TP0"]
    assert (first.vnc, first.success) == ([USED + 1, LIMIT], 1)


def test_it_survives_a_class_that_fails(scene: Scene) -> None:
    """What is not known any more has no series, the source says why, and the next sample is there again."""
    _, failed, again = scene.seen
    assert (failed.record["failure"], "used" in failed.record) == ("RuntimeError", False)
    assert (failed.vnc, failed.success, failed.health) == ([None, None], 0, 200)
    assert (again.vnc, again.success, again.health) == ([USED + 3, LIMIT], 1, 200)
    assert again.record["at"] - failed.record["at"] >= 10


def test_a_worker_that_is_not_on_neuron_is_left_alone(scene: Scene) -> None:
    """No process but rank 0's has asked, and there is one file and nothing half-written beside it."""
    assert scene.own[scene.workers["VLLM::Worker_TP1"]] == ["worker of rank 1", "warm-up begins", "warm-up returns"]
    assert set(scene.own) == set(scene.workers.values())
    assert len(scene.files) == 1


def test_what_it_costs(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    record = scene.seen[-1].record
    each = record["cpu_seconds"] / record["samples"]
    assert each < 0.05, "half a percent of a core"
    with capsys.disabled():
        sys.stdout.write(
            f"\nthe hook in a real vLLM {rig_vllm.VERSION}: {record['samples']} samples, {each * 1e3:.2f} ms of its "
            f"thread's CPU each, the last call itself {record['call_seconds'] * 1e3:.2f} ms\n"
        )


def test_when_the_engine_has_ended_its_series_have_too(scene: Scene) -> None:
    scene.engine.stop()
    until(lambda: scene.vnc() == [None, None], "the series end", 20)
    assert scene.watcher.value("budget_source_success", source="neuron_hook") == 1
