"""Engines under a real systemd, watched by the exporter itself inside: what is counted as a death, and what is said."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.processes import until
from tests.integration.rig_systemd import PROJECT, SystemdRig

pytestmark = pytest.mark.real_part("systemd")

PORT = 19476
URL = f"http://127.0.0.1:{PORT}"
LOGGED = "INFO 02-03 10:00:00 [api_utils.py:395] version 0.28.0"
# A stand-in for an engine's server: what it does on SIGTERM, and when and how it ends by itself.
ENGINE = f"""#!{sys.executable}
import os, signal, sys, time
def stopped(*_):
    time.sleep(float(os.environ.get("GRACE", "0.3")))
    os._exit(int(os.environ.get("STOPPED", "0")))
signal.signal(signal.SIGTERM, stopped)
print("(APIServer pid=%d) {LOGGED}  model m" % os.getpid(), flush=True)
if "SAYS" in os.environ:
    print(os.environ["SAYS"] % {{"pid": os.getpid()}}, flush=True)
time.sleep(float(os.environ.get("LIFE", "3600")))
os._exit(int(os.environ.get("STATUS", "0")))
"""
UNIT = """[Unit]
{limit}
[Service]
ExecStart=/share/engine/vllm serve example/model --served-model-name {name}
{settings}
"""
EXPORTER = f"""[Service]
WorkingDirectory={PROJECT}
ExecStart={sys.executable} -m budget_exporter serve --web.listen-address=127.0.0.1:{PORT}
"""


class Watched:
    """The exporter inside, and the units of one test."""

    def __init__(self, rig: SystemdRig) -> None:
        self.rig = rig
        self.units: list[str] = []

    def start(self, name: str, *, limit: str = "", **settings: str) -> str:
        """Start an engine as a unit of that name."""
        lines = "\n".join(
            f"Environment={shlex.quote(f'{k}={v}')}" if k.isupper() else f"{k}={v}" for k, v in settings.items()
        )
        unit = f"{name}.service"
        self.rig.add_unit(unit, UNIT.format(name=name, limit=limit, settings=lines))
        # What an active target wants, systemd does not forget when it ends.
        self.rig.shell("systemctl", "add-wants", "rig.target", unit)
        self.units.append(unit)
        self.rig.start(unit)
        return unit

    def engine(self, name: str) -> dict[str, Any] | None:
        """Return what the exporter shows of an engine."""
        told = self.rig.shell("curl", "-sf", f"{URL}/api/v1/snapshot", check=False).stdout
        found = [engine for engine in json.loads(told or "{}").get("engines", ()) if engine["name"] == name]
        return dict(found[0]) if found else None

    def page(self) -> str:
        """Return the page as it is."""
        return self.rig.shell("curl", "-sf", f"{URL}/").stdout

    def until(self, name: str, holds: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
        """Wait until something holds of an engine and return what is shown of it then."""
        shown: list[dict[str, Any]] = []

        def look() -> bool:
            found = self.engine(name)
            shown[:] = [found] if found is not None else []
            return bool(found is not None and holds(found))

        try:
            until(look, f"{name}: {what}", 40, pause=0.1)
        except BaseException:
            print(json.dumps(shown, indent=1))  # noqa: T201 - why a test failed
            raise
        return shown[0]


def deaths(engine: dict[str, Any]) -> int:
    return sum(engine["failures"].values())


@pytest.fixture(scope="module")
def exporter(systemd_rig: SystemdRig) -> Iterator[SystemdRig]:
    program = systemd_rig.share / "engine" / "vllm"
    program.parent.mkdir(exist_ok=True)
    program.write_text(ENGINE)
    program.chmod(0o755)
    systemd_rig.add_unit("supervised-exporter.service", EXPORTER)
    systemd_rig.start("supervised-exporter.service")
    until(
        lambda: systemd_rig.shell("curl", "-sf", f"{URL}/-/ready", check=False).returncode == 0,
        "the exporter is ready",
        40,
    )
    yield systemd_rig
    systemd_rig.remove_unit("supervised-exporter.service")


@pytest.fixture
def watched(exporter: SystemdRig) -> Iterator[Watched]:
    made = Watched(exporter)
    yield made
    for unit in made.units:
        exporter.remove_unit(unit)
        with contextlib.suppress(FileNotFoundError):
            (exporter.merged / "etc/systemd/system/rig.target.wants" / unit).unlink()


def test_a_start_limit_is_said_on_the_page(watched: Watched) -> None:
    unit = watched.start(
        "limited",
        limit="StartLimitIntervalSec=60\nStartLimitBurst=3",
        LIFE="4",
        STATUS="3",
        Restart="always",
        RestartSec="200ms",
    )
    shown = watched.until("limited", lambda e: (e["supervision"] or {}).get("result") == "start-limit-hit", "limit hit")
    assert shown["supervision"]["state"] == "failed"
    assert str(shown["supervision"]["nrestarts"]) == watched.rig.show(unit, "NRestarts") == "3"
    watched.until("limited", lambda e: deaths(e) == 3, "every death is counted")
    shown = watched.until("limited", lambda e: e["verdict"]["findings"]["crash_loop"], "it is a loop")
    assert "it has not come to serve in between" in shown["verdict"]["said"]["crash_loop"]
    assert "systemd has given up starting it (start limit)" in watched.page().lower()


def test_while_systemd_waits_to_restart_the_state_is_auto_restart(watched: Watched) -> None:
    watched.start("waiting", LIFE="1", STATUS="1", Restart="always", RestartSec="20s")
    watched.until("waiting", lambda e: e["up"], "it is found")
    shown = watched.until("waiting", lambda e: (e["supervision"] or {}).get("state") == "auto_restart", "it waits")
    watched.until("waiting", lambda e: deaths(e) == 1, "its death is counted while it waits")
    assert shown["supervision"]["exit_code"] == 1
    assert "Systemd is about to start it again." in watched.page()


STOPS = {
    "stopped-well": ({}, "inactive"),
    "stopped-badly": ({"STOPPED": "1"}, "failed"),
    "stopped-killed": ({"GRACE": "30", "TimeoutStopSec": "1"}, "failed"),
}


def test_a_stop_that_was_asked_for_is_no_death_however_it_ends(watched: Watched) -> None:
    words = {"SAYS": "(APIServer pid=%(pid)d) INFO:     Shutting down"}
    for name, (settings, _) in STOPS.items():
        watched.start(name, Restart="on-failure", **settings)
    by_hand = watched.start("by-hand", Restart="on-failure", **words)
    for name in (*STOPS, "by-hand"):
        watched.until(name, lambda e: e["up"] and e["supervision"] and e["report"], "it is found and heard")
    for name in STOPS:
        watched.rig.shell("systemctl", "stop", f"{name}.service")
    # Systemd was not asked; the engine's own words are those of a stop.
    watched.rig.shell("systemctl", "kill", "-s", "TERM", by_hand)
    for name, (_, state) in STOPS.items():
        shown = watched.until(name, lambda e: e["up"] is False and e["supervision"]["asked"], "it is down")
        assert shown["supervision"]["state"] == state
    since = watched.until("by-hand", lambda e: e["up"] is False, "it is down")["phase_since"]
    # A death that no log explains is counted after at most 20 s.
    watched.until("by-hand", lambda _: _age(watched, since) > 21, "its time to be counted is over")
    for name in (*STOPS, "by-hand"):
        shown = watched.engine(name) or {}
        assert deaths(shown) == 0, shown
    assert watched.page().count("It was stopped on request.") == len(STOPS)


def _age(watched: Watched, since: float) -> float:
    """Return how old a moment is by the exporter's clock."""
    told = watched.rig.shell("curl", "-sf", f"{URL}/api/v1/snapshot").stdout
    return float(json.loads(told)["at"]) - since


def test_an_end_with_exit_code_0_that_nobody_asked_for_is_a_death(watched: Watched) -> None:
    watched.start("silent", LIFE="3", Restart="on-failure")
    watched.until("silent", lambda e: e["up"], "it is found")
    shown = watched.until("silent", lambda e: deaths(e) == 1, "its death is counted")
    assert shown["supervision"]["state"] == "inactive"
    assert (shown["supervision"]["exit_code"], shown["supervision"]["asked"]) == (0, False)
    assert "It ended by itself with exit code 0." in watched.page()


def test_a_restart_by_hand_counts_as_a_restart_and_as_no_death(watched: Watched) -> None:
    unit = watched.start("again", Restart="always", RestartSec="200ms")
    watched.until("again", lambda e: e["up"] and e["supervision"], "it is found")
    watched.rig.shell("systemctl", "kill", "-s", "KILL", unit)
    watched.until("again", lambda e: e["restarts"] == 1 and deaths(e) == 1, "a crash is both")
    watched.rig.shell("systemctl", "restart", unit)
    shown = watched.until("again", lambda e: e["restarts"] == 2, "the restart is counted")
    assert shown["supervision"]["nrestarts"] == 0
    since = shown["sighting"]["started_at"]
    later = watched.until("again", lambda _: _age(watched, since) > 21, "its time to be counted is over")
    assert (later["restarts"], deaths(later)) == (2, 1)
