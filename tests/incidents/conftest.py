"""Play all incidents once: those in real time run while the others are replayed on clocks of their own."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.incidents.expected import INCIDENTS
from tests.incidents.healthy import BOOTS, PLANNED, WEEK, boot_name, boot_of, week
from tests.incidents.live import Live, slug
from tests.incidents.recording import Fired, Recording, fired
from tests.incidents.replay import Replay, replay
from tests.real_parts import program

ROWS = pytest.StashKey[list[tuple[str, ...]]]()
HEADING = ("incident", "state at", "page", "after", "live", "warnings, before inhibition")


@dataclass(frozen=True)
class Raised:
    """What the rules raised on one recording, and when after its begin the state began."""

    alerts: Sequence[Fired]
    state_at: float

    def keys(self, severity: str) -> set[str]:
        """Return the alerts of a severity, with their reason where they have one."""
        return {_key(alert) for alert in self.alerts if alert.severity == severity}

    def after(self, name: str) -> float:
        """Return the seconds from the state to the first time an alert fired."""
        return min(alert.first for alert in self.alerts if _key(alert) == name) - self.state_at


@dataclass(frozen=True)
class Outcome:
    """What became of all incidents."""

    raised: dict[str, Raised]
    live: Live
    scraped: dict[str, float]


def _key(alert: Fired) -> str:
    return f"{alert.name}:{alert.reason}" if alert.reason else alert.name


@pytest.fixture(scope="session")
def outcome(request: pytest.FixtureRequest) -> Iterator[Outcome]:
    promtool = program("promtool", "prometheus")
    program("prometheus")
    program("prometheus-alertmanager")
    # Not pytest's own: the path of an engine's socket may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="incidents-") as place:
        yield from _outcome(request, Path(place), promtool)


def _outcome(request: pytest.FixtureRequest, folder: Path, promtool: str) -> Iterator[Outcome]:
    live = Live(folder, [incident for incident in INCIDENTS if incident.live is not None])
    try:
        made = asyncio.run(_replay(folder / "replays"))
        raised = _raised(promtool, folder, {name: (r.recording, r.state_at or 0.0) for name, r in made.items()})
        live.finish()
        raised |= _raised(promtool, folder, live.recordings())
        up = {r["metric"]["instance"]: float(r["value"][1]) for r in live.paging.query("avg_over_time(up[10m])")}
        found = Outcome(raised, live, {name: up[slug(name)] for name in live.played})
        rows = [row for incident in INCIDENTS for row in _rows(incident.name, found)]
        request.config.stash[ROWS] = [*rows, *_rows_of_boots(found), *_rows(WEEK, found)]
    finally:
        # All is known: what ran live would only slow down the tests that follow.
        live.close()
    yield found


async def _replay(folder: Path) -> dict[str, Replay]:
    """Replay all at once: each waits for its log's reader now and then, and the others go on."""
    todo = {
        i.name: replay(folder / slug(i.name), i.play, interval=i.interval, sparse=i.sparse)
        for i in INCIDENTS
        if i.replayed
    }
    for number, boot in enumerate(BOOTS):
        todo[boot_name(number)] = replay(folder / f"boot-{number}", boot_of(boot), interval=30, sparse=4)
    todo[WEEK] = replay(folder / "week", week, interval=120, sparse=3, planned=PLANNED)
    return dict(zip(todo, await asyncio.gather(*todo.values()), strict=True))


def _raised(promtool: str, folder: Path, recordings: Mapping[str, tuple[Recording, float]]) -> dict[str, Raised]:
    alerts = fired(promtool, folder, {slug(name): recording for name, (recording, _) in recordings.items()})
    return {
        name: Raised([alert for alert in alerts if alert.instance == slug(name)], state_at)
        for name, (_, state_at) in recordings.items()
    }


def _rows(name: str, outcome: Outcome) -> Iterator[tuple[str, ...]]:
    raised = outcome.raised[name]
    played = outcome.live.played.get(name)
    live = {} if played is None else outcome.live.pages(played)
    warnings = ", ".join(sorted(f"{key} {raised.after(key):.0f} s" for key in raised.keys("warning"))) or "none"
    pages = sorted(raised.keys("critical") | live.keys(), key=lambda name: live.get(name, 0.0)) or ["none"]
    for number, page in enumerate(pages):
        after = f"{raised.after(page):.0f} s" if page in raised.keys("critical") else ""
        at = f"{live[page]:.1f} s" if page in live else "" if played is None else "none" if page == "none" else ""
        first = (name, f"{raised.state_at:.0f} s") if number == 0 else ("", "")
        yield (*first, page, after, at, warnings if number == 0 else "")


def _rows_of_boots(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    """Yield one row for all healthy boots, and one more for each that raised something after all."""
    names = [boot_name(number) for number in range(len(BOOTS))]
    quiet = sum(not outcome.raised[name].alerts for name in names)
    yield (f"{quiet} of {len(names)} healthy 0.19 boots", "", "none", "", "", "none")
    for name in names:
        if outcome.raised[name].alerts:
            yield from _rows(name, outcome)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table of the incidents, if they were played."""
    rows = config.stash.get(ROWS, [])
    if not rows:
        return
    widths = [max(len(row[column]) for row in (HEADING, *rows)) for column in range(len(HEADING) - 1)]
    terminalreporter.section("incidents: seconds from the state to the page")
    for row in (HEADING, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        terminalreporter.write_line("  ".join([*cells, row[-1]]).rstrip())
