"""Eight real vLLM servers, booted two at a time, each watched by the exporter from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from budget_exporter.engines.address import configured
from budget_exporter.engines.endpoint import EndpointSource
from budget_exporter.engines.procfs import source
from budget_exporter.facts.engine import EngineSighting
from budget_exporter.roots import Roots
from tests.integration.processes import Exporter, Labels, exporter, until
from tests.integration.rig_vllm import Vllm, vllm, write_model

__all__ = ["KEY", "PLANS", "Killed", "Plan", "Scene", "Seen"]

Series = Mapping[tuple[str, Labels], float]
View = Mapping[str, Any]


@dataclass(frozen=True)
class Plan:
    """One server: its flags besides the usual ones, and how it ends."""

    model: str
    flags: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    end: str = "stop"
    """``stop`` by Ctrl-C once it serves, ``kill`` a worker with SIGKILL, ``fail`` while it boots."""


KEY = "a-key-of-the-tests"
_EAGER = ("--max-num-seqs", "4", "--enforce-eager")
_POOL = ("--kv-cache-memory-bytes", "64M")
_TWO = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
"""Without it two workers want a NUMA node each."""
_SPACE = {"VLLM_CPU_KVCACHE_SPACE": "1"}
PLANS: Mapping[str, Plan] = {
    "dp2": Plan("tiny-llama", (*_EAGER, *_POOL, "--max-model-len", "512", "-dp", "2"), _TWO),
    # Other spellings that vLLM takes: "_" for "-", "=", flags cut short, a decimal suffix.
    "tp1": Plan("tiny-llama", ("--max_num_seqs=4", "--enforce-eager", "--kv-cache-mem", "64M", "--max-model=0.5k")),
    "tp2": Plan("tiny-llama", (*_EAGER, *_POOL, "--max-model-len", "512", "-tp", "2"), _TWO, "kill"),
    "gemma2": Plan("tiny-gemma2", (*_EAGER, *_POOL, "--max-model-len", "1000", "--api-key", KEY)),
    # The variable goes before the flag.
    "mla": Plan("tiny-mla", (*_EAGER, *_POOL, "--max-model-len", "1000", "--root-path", "/llm"), _SPACE),
    "too_much": Plan("tiny-llama", (*_EAGER, "--gpu-memory-utilization", "0.99"), end="fail"),
    "too_long": Plan(
        "tiny-llama", (*_EAGER, "--max-model-len", "2k", "--kv-cache-memory-bytes", "128K"), end="fail"
    ),
    "too_large": Plan("tiny-llama", (*_EAGER, "--kv-cache-memory-bytes", "100G"), end="fail"),
}  # fmt: skip
"""By the name the exporter's configuration gives them; the longest first, so that none is left over at the end."""


@dataclass(frozen=True)
class Killed:
    """What was seen after a worker was killed; seconds from the kill."""

    worker: int
    scan: EngineSighting | None
    """The engine in the first look at the processes that began after the worker had died."""
    listed: float
    """Until the exporter's list of the engine's processes was without it."""
    told: float
    """Until the exporter had counted the death."""
    ended: float
    """Until its main process had ended."""
    down: float
    """Until the exporter said that the engine is down."""
    healths: Sequence[tuple[float, str]] = ()
    """What the engine's endpoint answered from then on, each change with its time."""
    shown: Sequence[str] = ()
    """The changes of it that the exporter showed."""


@dataclass(frozen=True)
class Seen:
    """One server as it said itself and as the exporter showed it."""

    name: str
    engine: Vllm
    samples: Sequence[tuple[str, Mapping[str, str], float]] = ()
    """Its own metrics while it served."""
    members: Mapping[int, str] = field(default_factory=dict)
    """Its processes while it served."""
    found: Sequence[EngineSighting] = ()
    """The engines the finder found among them."""
    view: View = field(default_factory=dict)
    """The exporter's view of it while it served."""
    series: Series = field(default_factory=dict)
    killed: Killed | None = None
    status: int = 0
    ended_at: float = 0.0

    def own(self, name: str) -> list[Mapping[str, str]]:
        """Return the labels of each sample ``name`` of its own metrics."""
        return [labels for sample, labels, _ in self.samples if sample == name]

    def value(self, name: str, **labels: str) -> float | None:
        """Return the exporter's one sample with these labels while it served."""
        wanted = set(labels.items())
        found = [value for (metric, have), value in self.series.items() if metric == name and wanted <= have]
        assert len(found) < 2, f"{name}{labels} is ambiguous"
        return found[0] if found else None


class Scene:
    """The exporter that watches, and the servers named in ``wanted``."""

    def __init__(self, folder: Path, wanted: Sequence[str]) -> None:
        self.folder = folder
        # Until its server takes it, a port that is bound is nobody else's.
        self._held = [_hold() for _ in wanted]
        self.ports = {name: int(held.getsockname()[1]) for name, held in zip(wanted, self._held, strict=True)}
        config = {
            "engines": [
                {"name": name, "match": {"port": port}, "log": {"file": str(folder / name / "boot.log")}}
                for name, port in self.ports.items()
            ]
        }
        # YAML is a superset of JSON.
        (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
        self.exporter: Exporter
        self._jobs: dict[str, Future[Seen]] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[Scene]:
        """Run the exporter, boot the servers in the background, two at a time; end all."""
        words = (f"--config.file={self.folder / 'config.yaml'}", "--no-source.journal", "--no-source.systemd")
        with exporter(self.folder / "exporter.log", "serve", *words) as self.exporter:
            self.exporter.ready()
            with ThreadPoolExecutor(2, thread_name_prefix="boot") as pool:
                self._jobs = {name: pool.submit(self._watch, name) for name in self.ports}
                try:
                    yield self
                finally:
                    pool.shutdown(cancel_futures=True)
                    for held in self._held:
                        held.close()

    def seen(self, name: str) -> Seen:
        """Return what was seen of a server, once it has ended."""
        return self._jobs[name].result()

    def view(self, name: str) -> View:
        """Return the exporter's present view of an engine."""
        (view,) = [engine for engine in self.snapshot()["engines"] if engine["name"] == name]
        return dict(view)

    def snapshot(self) -> dict[str, Any]:
        """Return the exporter's present view of all."""
        status, text = self.exporter.get("/api/v1/snapshot")
        assert status == 200
        return dict(json.loads(text))

    def _watch(self, name: str) -> Seen:
        plan = PLANS[name]
        model = write_model(self.folder / "models", plan.model)
        flags = ("--served-model-name", f"served-{name}", *plan.flags)
        with vllm(self.folder / name, model, *flags, environ=plan.environ, port=self.ports[name]) as engine:
            seen = Seen(name, engine, status=engine.ended()) if plan.end == "fail" else self._serve(name, plan, engine)
            until(lambda: self.view(name)["up"] is False, f"{name} is seen to be down")
            return seen

    def _serve(self, name: str, plan: Plan, engine: Vllm) -> Seen:
        engine.serving()
        until(lambda: self.view(name)["phase"] == "serving", f"{name} is seen to serve")
        until(lambda: self._facts(name).get("kv_blocks"), f"the endpoint of {name} tells its pool")
        samples, members = engine.samples(), engine.members()
        found = [sighting for sighting in source(Roots()).find()[0] if sighting.main.pid in members]
        view, series = self.view(name), self.exporter.series()
        killed = None
        if plan.end == "kill":
            killed = self._kill(name, engine)
            status = engine.ended(60)
        else:
            engine.stop()
            status = engine.process.returncode
        return Seen(name, engine, samples, members, found, view, series, killed, status, time.time())

    def _facts(self, name: str) -> Mapping[str, Any]:
        """Return what the exporter has from an engine's endpoint."""
        endpoint = self.view(name)["endpoint"] or {}
        return dict(endpoint.get("facts") or {})

    def _kill(self, name: str, engine: Vllm) -> Killed:
        finder = source(Roots())

        def look() -> EngineSighting | None:
            return next((found for found in finder.find()[0] if found.main.pid == engine.pid), None)

        worker = engine.worker("VLLM::Worker_TP1")
        before = look()
        assert before is not None
        assert worker in {each.pid for each in before.workers}
        door = ThreadPoolExecutor(1, thread_name_prefix="health")
        began = time.monotonic()
        healths = door.submit(asyncio.run, _healths(f"http://127.0.0.1:{engine.port}", began))
        os.kill(worker, signal.SIGKILL)
        until(lambda: worker not in engine.members(), "the worker has died", pause=0.001)
        scan = look()
        first: dict[str, float] = {}
        shown: list[str] = []

        def watch() -> bool:
            view = self.view(name)
            down, now = view["up"] is False, time.monotonic() - began
            health = (view["endpoint"] or {}).get("health")
            if health is not None and health not in shown[-1:]:
                shown.append(health)
            listed = {each["pid"] for each in view["sighting"]["workers"]}
            for what, holds in (
                ("listed", down or worker not in listed),
                ("told", sum(view["failures"].values()) > 0),
                ("ended", engine.process.poll() is not None),
                ("down", down),
            ):
                if holds:
                    first.setdefault(what, now)
            return len(first) == 4

        until(watch, f"the exporter shows all of the death of {name}", 60, pause=0.02)
        with door:
            return Killed(worker, scan, **first, healths=healths.result(), shown=shown)


async def _healths(url: str, began: float) -> list[tuple[float, str]]:
    """Ask an endpoint every 20 ms until nobody listens; return each change with the seconds since ``began``."""
    told: list[tuple[float, str]] = []
    async with EndpointSource().opened(configured(url)) as endpoint:
        while not told or (told[-1][1] != "refused" and time.monotonic() - began < 60):
            health = (await endpoint.health()).health
            if not told or told[-1][1] != health:
                told.append((time.monotonic() - began, health))
            await asyncio.sleep(0.02)
    return told


def _hold() -> socket.socket:
    """Return a socket that holds a free port of loopback without keeping a server from it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    return held
