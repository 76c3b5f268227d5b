"""Play an incident on a clock of its own: the real sidecar on the host's tree, one look a scrape."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from budget_exporter import config
from budget_exporter.evidence.rotation import Place
from budget_exporter.publish.metrics import families
from budget_exporter.sidecar.wiring import Options, Sidecar
from budget_exporter.sources import SOURCES
from tests.incidents.recording import Recording
from tests.incidents.stage import Stage, Waits

__all__ = ["ENGINE", "Clock", "Replay", "replay"]

ENGINE = "vllm-qwen"
OFF = frozenset({"systemd", "journal", "containers", "endpoint", "rocm_smi"})
"""
Sources that a host on a clock of its own cannot have.

The tree has no bus, journal or daemon; an endpoint is asked in real time, and its answers would come hours late.
"""
PATIENCE = 20.0
"""Real seconds the log's follower has to read what was written."""


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = float(int(time.time()))

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class Replay:
    """What was recorded, and when after its begin the incident's state began; None where it has none."""

    recording: Recording
    state_at: float | None


async def replay(
    folder: Path,
    play: Callable[[Stage], Waits],
    *,
    interval: int = 15,
    sparse: int = 1,
    planned: Sequence[tuple[float, float]] = (),
) -> Replay:
    """
    Play the incident and return what the exporter said of it every ``interval`` seconds.

    Where nothing is done on the host the exporter looks at it only every ``sparse`` intervals, and what it said last
    stands for the time between; for weeks. ``planned`` are the seconds after the begin from which and until which the
    configuration allows the engine to be down.
    """
    clock = Clock()
    stage = Stage(folder, clock)
    if planned:
        windows = ", ".join(f"{{from: {_iso(clock.now + a)}, until: {_iso(clock.now + b)}}}" for a, b in planned)
        with stage.host.config.open("a", encoding="utf-8") as file:
            file.write(f"    maintenance: [{windows}]\n")
    watched = _Watched(stage, clock)
    await watched.settle()
    recording = Recording(clock.now, interval)
    due = clock.now
    try:
        for wait in play(stage):
            until = clock.now + wait
            while due <= until:
                clock.now = due
                recording.add(await watched.scrape())
                same = min(sparse - 1, max(0, int((until - due) // interval) - 1))
                recording.hold(same)
                due += interval * (1 + same)
            clock.now = until
    finally:
        await watched.close()
    return Replay(recording, None if stage.state_at is None else stage.state_at - recording.begin)


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


class _Watched:
    """The sidecar on the stage's host."""

    def __init__(self, stage: Stage, clock: Clock) -> None:
        self._stage = stage
        loaded = config.load(stage.host.config, frozenset(SOURCES))
        self._sidecar = Sidecar(loaded, Options(roots=stage.host.roots, off=OFF), clock)

    async def settle(self) -> None:
        """Look until the exporter is ready to be scraped."""
        deadline = time.monotonic() + PATIENCE
        while not (self._sidecar.snapshot and self._sidecar.snapshot.ready):
            assert time.monotonic() < deadline, "the exporter does not get ready"
            self._sidecar.look()
            await asyncio.sleep(0.01)

    async def scrape(self) -> str:
        """Return the exposition as it is now, all lines of the log read."""
        self._sidecar.look()
        await asyncio.sleep(0)
        if not self._heard():
            deadline = time.monotonic() + PATIENCE
            while not self._heard():
                assert time.monotonic() < deadline, "the log is not read"
                await asyncio.sleep(0.01)
            self._sidecar.look()
        snapshot = self._sidecar.snapshot
        assert snapshot is not None
        return generate_latest(_Families(families(snapshot))).decode()

    def _heard(self) -> bool:
        """Return whether the log was read to its end: only the follower knows."""
        size = self._stage.host.log.stat().st_size
        if size == 0:
            return True
        attended = self._sidecar._attendants._of(ENGINE)
        follower = attended.follower
        place = Place.of(follower.cursor) if follower is not None and follower.cursor is not None else None
        return place is not None and place.offset >= size and self._sidecar._attendants.heard(ENGINE)

    async def close(self) -> None:
        """Let go of everything."""
        await self._sidecar.close()


class _Families(Collector):
    """The families of one Snapshot, for who renders them."""

    def __init__(self, made: Iterable[Family]) -> None:
        self._made = made

    def collect(self) -> Iterable[Family]:
        return self._made
