"""Remember of each engine what its present is judged by: boots, deaths, and how its use went while it served."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from budget_exporter.facts.boot import BootReport, Failure, Phase
from budget_exporter.facts.endpoint import heard
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.history import BootMark, Creep, Past
from budget_exporter.facts.snapshot import DeviceState, FreeAtInit
from budget_exporter.sidecar.fleet import Engine
from budget_exporter.sidecar.owners import Held
from budget_exporter.verdicts.crash_loop import loop
from budget_exporter.verdicts.creep import FEWEST, Window, creep

__all__ = ["BOOTS_KEPT", "LASTED", "SPAN", "WINDOWS_KEPT", "Trends", "mark", "past_of"]

SPAN = 300.0
"""Seconds of one window of a trend."""
SHOWN = 3 * SPAN
"""Seconds after the middle of its newest window in which a trend holds: the next one is due within 2.5 spans of it."""
WINDOWS_KEPT = 72
"""Six hours of windows: a leak that takes longer to show is slower than what a forecast is good for."""
BOOTS_KEPT = 5
LASTED = 3600.0
"""Seconds of serving after which an engine has survived what a first request takes."""


@dataclass(slots=True)
class _Watched:
    """One rank's use since its engine started, by one kind of figure."""

    windows: list[Window] = field(default_factory=list)
    begun: float | None = None
    used: int = 0
    load: float | None = None
    trend: Creep | None = None

    def note(self, now: float, used: int, load: float | None) -> None:
        if self.begun is None or not 0 <= now - self.begun < SPAN:
            self._close(now)
            self.begun, self.used, self.load = now, used, load
        self.used = min(self.used, used)
        # A load that is not known all the time is not known.
        self.load = None if load is None or self.load is None else max(self.load, load)

    def goes_on(self, now: float) -> bool:
        """Return whether it is still watched: what went up before a long sleep tells nothing of now."""
        return bool(self.windows) and now - self.windows[-1].at <= SHOWN

    def _close(self, now: float) -> None:
        # What was not watched to its end, as where the engine slept or the clock stepped, is no window.
        if self.begun is not None and 0 <= now - self.begun < 2 * SPAN:
            self.windows = [*self.windows[1 - WINDOWS_KEPT :], Window(self.begun + SPAN / 2, self.used, self.load)]
            self.trend = creep(self.windows)


class Trends:
    """How the use of every rank goes, from samples once a Snapshot."""

    def __init__(self) -> None:
        self._watched: dict[tuple[str, str], _Watched] = {}

    def note(self, engine: Engine, held: Held, on: Mapping[str, DeviceState], phase: Phase, now: float) -> None:
        """
        Take in what each rank of ``engine`` holds at ``now``, while it serves.

        ``on`` are the ranks' devices. A rank's own memory is what counts; where nobody lists it, the device's, but not
        the host's, which is everybody's. The two are never mixed, since they part by what others hold.
        """
        if engine.running is None or engine.main is None or phase not in {"serving", "unknown"}:
            return
        facts = engine.endpoint.facts if engine.endpoint else None
        load = float(facts.running) if facts is not None and facts.running is not None else None
        for rank, state in on.items():
            own = held.ranks.get(rank)
            kind, used = (
                ("rank", own.used) if own is not None and own.used is not None else ("device", state.memory.used)
            )
            if kind == "device" and state.identity.of_everybody:
                continue
            key = (_epoch(engine), f"{rank}:{kind}")
            self._watched.setdefault(key, _Watched()).note(now, used, load)

    def of(self, engine: Engine, on: Mapping[str, DeviceState], now: float) -> dict[str, Creep | None]:
        """Return the trend of each rank watched for long enough, and still at ``now``, by the kind watched longest."""
        result: dict[str, Creep | None] = {}
        for rank in on:
            kinds = [self._watched.get((_epoch(engine), f"{rank}:{kind}")) for kind in ("rank", "device")]
            watched = (w for w in kinds if w is not None and w.goes_on(now))
            longest = max(watched, key=lambda w: len(w.windows), default=None)
            if longest is not None and len(longest.windows) >= FEWEST:
                result[rank] = longest.trend
        return result

    def forget(self, engines: Sequence[Engine]) -> None:
        """Forget the lives that are over."""
        # One that nobody has looked for lately may still run.
        alive = {_epoch(engine) for engine in engines if engine.up is not False}
        self._watched = {key: watched for key, watched in self._watched.items() if key[0] in alive}


def _epoch(engine: Engine) -> str:
    main = engine.main
    return "" if main is None else f"{main.boot_id}:{main.pid}@{main.start_ticks}"


def past_of(
    engine: Engine,
    trends: Trends,
    held: Held,
    on: Mapping[str, DeviceState],
    told: tuple[Phase, float | None],
    now: float,
) -> Past:
    """Return what the past of ``engine`` says at ``now``; ``told`` is its phase and the Unix time it began."""
    listed = any(state.ownership is not None for state in on.values())
    loops = loop(engine.deaths.lately, engine.deaths.restarts, engine.boots, *told, now)
    return Past(
        boots=tuple(engine.boots),
        crash_loop=loops is not None,
        loop=loops,
        first_request=_first_request(engine),
        trends=trends.of(engine, on, now) if engine.running is not None else {},
        leftover=True if held.leftover else False if listed else None,
    )


def mark(
    engine: Engine, report: BootReport | None, shape: Shape | None, free: Mapping[str, FreeAtInit], phase: Phase
) -> None:
    """Remember the present boot of ``engine`` once it serves; what is learnt of it later is added."""
    if engine.running is None or engine.started_at is None or shape is None or report is None or phase != "serving":
        return
    known = next((boot for boot in engine.boots if boot.started_at == engine.started_at), None)
    since = engine.last_seen if known is None or known.served_at is None else known.served_at
    told = BootMark(
        engine.started_at,
        _digest(shape, report),
        report.kv_tokens,
        {rank: found.bytes for rank, found in free.items()},
        served_at=since,
        lasted=since is not None and engine.last_seen is not None and engine.last_seen - since >= LASTED,
    )
    before = [boot for boot in engine.boots if boot.started_at != engine.started_at]
    engine.boots = [*before[1 - BOOTS_KEPT :], told]


def _first_request(engine: Engine) -> Failure | None:
    """Return how a boot with the present flags died of its first request, where none with them has lasted since."""
    report = heard(engine.report, engine.endpoint.facts if engine.endpoint else None)
    if engine.last is None or report is None:
        return None
    shape = _digest(engine.last.shape, report)
    for death in reversed(engine.deaths.lately):
        if any(boot.lasted and boot.shape == shape and boot.started_at > death.at for boot in engine.boots):
            return None
        life = next((boot for boot in reversed(engine.boots) if boot.started_at <= death.at), None)
        if death.cause == "first_request_oom" and life is not None and life.shape == shape:
            return death
    return None


def _digest(shape: Shape, report: BootReport) -> str:
    """Return what tells whether two boots were given the same: flags, environment, version."""
    given = (sorted(shape.given.items()), sorted(shape.environ.items()), shape.model, report.version or shape.version)
    return hashlib.sha256(repr(given).encode()).hexdigest()[:16]
