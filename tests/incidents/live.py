"""Incidents in real time, all at once: real exporters, one Prometheus, one Alertmanager, one webhook."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.incidents.expected import Incident
from tests.incidents.recording import Recording
from tests.incidents.stage import Stage
from tests.integration.incident import serve
from tests.integration.paging import Paging
from tests.integration.processes import Exporter

__all__ = ["Live", "Played", "slug"]

LIMIT = 170.0
"""Seconds within which all must have been played and paged."""
INTERVAL = 5
"""Seconds between two expositions of an incident that is not replayed."""
GOES_ON = 600
"""Seconds for which such an incident goes on as it ended."""


def slug(name: str) -> str:
    """Return an incident's name as an ``instance`` label and a folder."""
    return "-".join(name.replace(".", "").split())


@dataclass
class Played:
    """One incident as it is played: its stage, its exporter, and what was recorded of it."""

    incident: Incident
    stage: Stage
    exporter: Exporter
    recording: Recording
    failure: BaseException | None = None


class Live:
    """Everything that runs; ``finish`` waits for the end."""

    def __init__(self, folder: Path, incidents: Sequence[Incident]) -> None:
        self._stack = contextlib.ExitStack()
        self._over = threading.Event()
        self._players: list[threading.Thread] = []
        self._recorders: list[threading.Thread] = []
        self.played: dict[str, Played] = {}
        with contextlib.ExitStack() as unless_started:
            unless_started.callback(self._stack.close)
            for incident in incidents:
                self.played[incident.name] = self._prepare(folder / slug(incident.name), incident)
            targets = {slug(name): played.exporter.address for name, played in self.played.items()}
            self.paging = Paging(folder, targets)
            self._stack.callback(self.paging.close)
            for played in self.played.values():
                played.exporter.ready()
            unless_started.pop_all()
        self.began = time.monotonic()
        for played in self.played.values():
            self._players.append(threading.Thread(target=self._play, args=(played,), daemon=True))
            if not played.incident.replayed:
                self._recorders.append(threading.Thread(target=self._record, args=(played,), daemon=True))
        for thread in self._players + self._recorders:
            thread.start()

    def _prepare(self, folder: Path, incident: Incident) -> Played:
        stage = Stage(folder, live=True)
        exporter = self._stack.enter_context(serve(stage.host, folder / "exporter.log", "--no-source.containers"))
        return Played(incident, stage, exporter, Recording(time.time(), INTERVAL))

    def _play(self, played: Played) -> None:
        due = time.monotonic()
        try:
            for wait in played.incident.play(played.stage):
                due += wait
                if self._over.wait(max(0.0, due - time.monotonic())):
                    return
        except BaseException as error:  # noqa: BLE001 - told where the incident is judged
            played.failure = error

    def _record(self, played: Played) -> None:
        due = time.monotonic()
        played.recording.begin = time.time()
        while not self._over.is_set():
            played.recording.add(played.exporter.get()[1])
            due += INTERVAL
            self._over.wait(due - time.monotonic())

    def finish(self) -> None:
        """Wait until everything is played and every page has come that must, or can no longer come in time."""
        while not self._done() and time.monotonic() < self.began + LIMIT:
            time.sleep(0.5)
        self._over.set()
        for thread in self._players + self._recorders:
            thread.join(10)

    def recordings(self) -> dict[str, tuple[Recording, float]]:
        """Return what was recorded of those that are not replayed, each gone on as it ended, and its state's begin."""
        result = {}
        for name, played in self.played.items():
            if not played.incident.replayed:
                played.recording.hold(GOES_ON // INTERVAL)
                result[name] = (played.recording, (played.stage.state_at or 0.0) - played.recording.begin)
        return result

    def _done(self) -> bool:
        if time.monotonic() - self.began < LIMIT / 2:
            return False  # those that must not page have their time too
        waiting = [p for p in self.played.values() if (p.incident.live or {}).keys() - self.pages(p).keys()]
        playing = any(thread.is_alive() for thread in self._players)
        failed = any(played.failure for played in self.played.values())
        return failed or (not waiting and not playing)

    def pages(self, played: Played) -> dict[str, float]:
        """Return when each page about an incident reached the webhook first, in seconds after its state began."""
        began = played.stage.state_at or 0.0
        told = self.paging.hook.of("firing", instance=slug(played.incident.name), severity="critical")
        first: dict[str, float] = {}
        for page in told:
            first.setdefault(page.labels["alertname"], page.at - began)
        return first

    def close(self) -> None:
        """End everything."""
        self._over.set()
        self._stack.close()
        for played in self.played.values():
            played.stage.host.serve(None)
