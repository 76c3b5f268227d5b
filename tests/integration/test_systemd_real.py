"""Our supervisor against a real systemd: restarts counted over its bus, states seen, a bus that goes away."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import budget_exporter
from budget_exporter.engines.systemd import SystemdSupervisor, supervisor
from budget_exporter.errors import SourceError
from budget_exporter.facts.engine import Supervision
from budget_exporter.roots import Roots
from tests.integration.rig_systemd import SystemdRig

pytestmark = pytest.mark.real_part("systemd")

CRASHING = """[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=/bin/sh -c 'sleep 0.3; exit 3'
Restart=always
RestartSec=200ms
"""
STEADY = """[Service]
ExecStart=/bin/sleep infinity
"""
SERVER = """[Service]
ExecStart=/share/vllm serve /models/flash -tp 2
Environment=HIP_VISIBLE_DEVICES=0,1 HF_TOKEN=secret
"""
PATIENCE = 60
SYSTEMD = "org.freedesktop.systemd1"


@pytest.fixture
def unit(systemd_rig: SystemdRig, request: pytest.FixtureRequest) -> Iterator[Callable[[str, str], str]]:
    """Give a function that adds and starts a unit of a kind; it is gone after the test."""
    added: list[str] = []

    def start(kind: str, text: str) -> str:
        name = f"{kind}-{request.node.name.replace('_', '-')[:40]}.service"
        systemd_rig.add_unit(name, text)
        added.append(name)
        systemd_rig.start(name)
        return name

    yield start
    for name in added:
        systemd_rig.remove_unit(name)


@contextlib.asynccontextmanager
async def watching(on: SystemdSupervisor, name: str) -> AsyncIterator[AsyncIterator[Supervision]]:
    async with asyncio.timeout(PATIENCE), contextlib.aclosing(on.watch(name)) as changes:  # type: ignore[type-var]
        yield changes


async def until(changes: AsyncIterator[Supervision], wanted: Callable[[Supervision], bool]) -> list[Supervision]:
    """Return what is said up to the first thing that is wanted."""
    said: list[Supervision] = []
    async for now in changes:
        said.append(now)
        if wanted(now):
            return said
    raise AssertionError("the supervisor ended its answer")


async def test_restarts_are_counted_and_told_once(systemd_rig: SystemdRig, unit: Callable[[str, str], str]) -> None:
    name = unit("crashing", CRASHING)
    async with watching(supervisor(Roots(rootfs=systemd_rig.rootfs)), name) as changes:
        said = await until(changes, lambda now: (now.nrestarts or 0) >= 3 and now.state == "auto_restart")
    counts = [now.nrestarts or 0 for now in said]
    assert counts == sorted(counts)
    assert {"active", "auto_restart"} <= {now.state for now in said}
    assert all(a != b for a, b in itertools.pairwise(said))
    ended = [now for now in said if now.state == "auto_restart"]
    assert {(now.exit_code, now.result) for now in ended} == {(3, "exit-code")}
    assert {now.exit_code for now in said if now.state == "active"} == {None}


async def test_a_stop_by_hand_is_seen_and_the_count_is_systemd_s(
    systemd_rig: SystemdRig, unit: Callable[[str, str], str]
) -> None:
    name = unit("crashing", CRASHING)
    async with watching(supervisor(Roots(rootfs=systemd_rig.rootfs)), name) as changes:
        await until(changes, lambda now: (now.nrestarts or 0) >= 1)
        await asyncio.to_thread(systemd_rig.shell, "systemctl", "stop", name)
        last = (await until(changes, lambda now: now.state in ("inactive", "failed")))[-1]
    assert str(last.nrestarts) == systemd_rig.show(name, "NRestarts")


async def test_a_killed_engine_tells_its_signal(systemd_rig: SystemdRig, unit: Callable[[str, str], str]) -> None:
    name = unit("steady", STEADY)
    async with watching(supervisor(Roots(rootfs=systemd_rig.rootfs)), name) as changes:
        await until(changes, lambda now: now.state == "active")
        await asyncio.to_thread(systemd_rig.shell, "systemctl", "kill", "-s", "KILL", name)
        last = (await until(changes, lambda now: now.state == "failed"))[-1]
    assert (last.exit_code, last.result, last.nrestarts) == (137, "signal", 0)


async def test_a_unit_that_does_not_exist_is_inactive(systemd_rig: SystemdRig) -> None:
    async with watching(supervisor(Roots(rootfs=systemd_rig.rootfs)), "no-such.service") as changes:
        assert await anext(changes) == Supervision("systemd", "no-such.service", "inactive", None)


async def test_a_unit_that_appears_later_is_seen(systemd_rig: SystemdRig, unit: Callable[[str, str], str]) -> None:
    name = "steady-test-a-unit-that-appears-later-is-seen.service"
    async with watching(supervisor(Roots(rootfs=systemd_rig.rootfs)), name) as changes:
        await until(changes, lambda now: now.state == "inactive")
        assert await asyncio.to_thread(unit, "steady", STEADY) == name
        said = await until(changes, lambda now: now.state == "active")
    assert said[-1].nrestarts == 0


async def test_all_units_share_one_connection_that_ends_with_the_last(
    systemd_rig: SystemdRig, unit: Callable[[str, str], str]
) -> None:
    first, second = unit("steady", STEADY), unit("crashing", CRASHING)
    on = supervisor(Roots(rootfs=systemd_rig.rootfs))
    before = names_on_the_bus(systemd_rig)
    async with watching(on, first) as one, watching(on, second) as two:
        await until(one, lambda now: now.state == "active")
        await until(two, lambda now: (now.nrestarts or 0) >= 1)
        assert len(names_on_the_bus(systemd_rig) - before) == 1
    await asyncio.to_thread(eventually, lambda: not names_on_the_bus(systemd_rig) - before)


def eventually(holds: Callable[[], Any]) -> Any:
    """Return what ``holds`` returns once it is true."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if value := holds():
            return value
        time.sleep(0.05)
    raise AssertionError("it did not come true")


def names_on_the_bus(rig: SystemdRig) -> set[str]:
    """Return the connections of the bus, but for the one that asks."""
    lines = rig.shell("busctl", "list", "--unique", "--no-legend").stdout.splitlines()
    return {line.split()[0] for line in lines if line.split()[2] != "busctl"}


async def test_a_bus_that_goes_away_is_said_and_found_again(
    systemd_rig: SystemdRig, unit: Callable[[str, str], str]
) -> None:
    name = unit("steady", STEADY)
    on = supervisor(Roots(rootfs=systemd_rig.rootfs))
    async with watching(on, name) as changes:
        await until(changes, lambda now: now.state == "active")
        await asyncio.to_thread(systemd_rig.shell, "systemctl", "kill", "-s", "KILL", "dbus.service")
        with pytest.raises(SourceError, match="bus"):
            await until(changes, lambda now: now.state == "failed")
    # Its socket starts the bus again; until systemd is back on it, nobody answers for it.
    await asyncio.to_thread(
        eventually, lambda: systemd_rig.shell("busctl", "status", SYSTEMD, check=False).returncode == 0
    )
    async with watching(on, name) as changes:
        assert (await anext(changes)).state == "active"


INSIDE = """
import asyncio, json, sys
sys.modules["dbus_fast"] = None  # as where the extra is not installed
from budget_exporter.engines.systemd import SystemdSupervisor
from budget_exporter.roots import Roots

async def main():
    said = []
    async for now in SystemdSupervisor(Roots(), poll=0.1).watch(sys.argv[1]):
        said.append((now.state, now.nrestarts))
        if (now.nrestarts or 0) >= 2:
            return print(json.dumps(said))

asyncio.run(asyncio.wait_for(main(), 50))
"""


def test_without_dbus_fast_systemctl_is_asked(systemd_rig: SystemdRig, unit: Callable[[str, str], str]) -> None:
    name = unit("crashing", CRASHING)
    said = json.loads(run_inside(systemd_rig, INSIDE, name))
    assert said[-1][1] >= 2
    assert {state for state, _ in said} <= {"active", "activating", "auto_restart", "inactive", "failed"}


FIND = """
import json
from budget_exporter.engines.procfs import source
from budget_exporter.roots import Roots

sightings, faults = source(Roots()).find()
print(json.dumps([[s.unit, s.supervisor, dict(s.environ), list(s.argv)[1:]] for s in sightings] + faults))
"""


async def test_the_finder_names_the_unit_that_our_supervisor_follows(
    systemd_rig: SystemdRig, unit: Callable[[str, str], str]
) -> None:
    script = systemd_rig.share / "vllm"
    script.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n", encoding="utf-8")
    script.chmod(0o755)
    name = unit("vllm", SERVER)
    async with watching(supervisor(Roots(rootfs=systemd_rig.rootfs)), name) as changes:
        await until(changes, lambda now: now.state == "active")
    # "active" begins with the fork; the program is vllm from exec on.
    found = await asyncio.to_thread(eventually, lambda: json.loads(run_inside(systemd_rig, FIND)))
    serve = ["/share/vllm", "serve", "/models/flash", "-tp", "2"]
    assert found == [[name, "systemd", {"HIP_VISIBLE_DEVICES": "0,1"}, serve]]


def run_inside(rig: SystemdRig, code: str, *args: str) -> str:
    """Run our code inside, where the rig's own /proc and bus are the host's."""
    home = Path(budget_exporter.__file__).parent.parent
    return rig.shell("env", f"PYTHONPATH={home}", sys.executable, "-c", code, *args).stdout
