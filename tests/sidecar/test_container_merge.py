"""An engine that procfs and a daemon both know is one engine, with the daemon's name for it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from budget_exporter.facts.container import Container
from budget_exporter.facts.engine import EngineSighting, ProcessKey, Shape
from budget_exporter.roots import Roots
from budget_exporter.sidecar.containers import PATIENCE, Containers, merged
from budget_exporter.sidecar.fleet import Running
from budget_exporter.sidecar.threads import Found

ID, OTHER = "ab" * 32, "cd" * 32
DOCKER = "/run/docker.sock"


def running(pid: int = 7, **known: object) -> Running:
    sighting = EngineSighting("procfs", ProcessKey(pid, 70, "b"), 100.0, ("vllm", "serve", "m"), {})
    return Running(replace(sighting, **known), Shape(model="m"))  # type: ignore[arg-type]


def container(**known: object) -> Container:
    whole = Container("docker", DOCKER, ID, "qwen", "running", 7, 100.0, ("vllm", "serve", "n"))
    return replace(whole, **known)  # type: ignore[arg-type]


def told(*found: Running, by: list[Container]) -> list[EngineSighting]:
    return [each.sighting for each in merged(found, by, lambda sighting: Shape(model=sighting.argv[-1]))]


def test_a_process_in_a_container_is_called_as_its_daemon_calls_it() -> None:
    (found,) = told(running(9, container_id=ID, supervisor="docker"), by=[container()])
    assert (found.container, found.supervisor, found.unit) == ("qwen", "docker", None)
    assert (found.container_id, found.container_socket, found.main.pid) == (ID, DOCKER, 9)
    assert told(running(7), by=[container(log_driver="k8s-file")])[0].log_driver == "k8s-file"


def test_without_an_id_the_first_process_of_a_container_is_in_it() -> None:
    assert [each.container for each in told(running(7), running(8), by=[container()])] == ["qwen", None]
    # The same PID in a namespace that is not ours says nothing.
    assert told(running(7), by=[container(hidden=True, argv=())])[0].container is None


def test_a_process_of_one_container_is_in_no_other() -> None:
    assert told(running(7, container_id=OTHER), by=[container()])[0].container is None


@pytest.mark.parametrize(
    ("known", "socket", "label", "expected"),
    [
        ({}, "/run/podman/podman.sock", "u.service", ("u.service", "systemd")),
        ({"unit": "v.service"}, "/run/podman/podman.sock", "u.service", ("v.service", "systemd")),
        ({}, "/run/user/1000/podman/podman.sock", "u.service", (None, "podman")),
        ({}, "/run/podman/podman.sock", "no unit", (None, "podman")),
    ],
)
def test_a_container_under_a_unit_is_supervised_by_it(
    known: dict[str, object], socket: str, label: str, expected: tuple[str | None, str]
) -> None:
    by = container(runtime="podman", socket=socket, labels={"PODMAN_SYSTEMD_UNIT": label})
    (found,) = told(running(7, **known), by=[by])
    assert (found.unit, found.supervisor) == expected
    assert found.container == "qwen"


def test_an_engine_that_only_its_daemon_knows_is_one_more() -> None:
    by = [
        container(hidden=True, environ={"CUDA_VISIBLE_DEVICES": "1"}),
        container(id=OTHER, hidden=True, argv=()),
        container(id="ef" * 32, hidden=True, pid=None),
        container(id="01" * 32),
    ]
    first, found = told(running(7, container_id=OTHER), by=by)
    assert first.container == "qwen"
    assert (found.source, found.container, found.supervisor) == ("containers", "qwen", "docker")
    assert (found.main, found.inner_pid) == (ProcessKey(0, 100_000, ID), 1)
    assert (found.argv, found.environ) == (("vllm", "serve", "n"), {"CUDA_VISIBLE_DEVICES": "1"})
    assert told(by=[container(hidden=True, own_pids=False)])[0].inner_pid is None


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Path]:
    """Give the root of a host with a docker that takes connections and says nothing."""
    path = tmp_path / "run/docker.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield tmp_path


async def test_an_engine_waits_a_while_for_the_name_of_its_container(silent: Path) -> None:
    woken = asyncio.Event()
    containers = Containers(Roots(rootfs=silent), frozenset(), woken.set, 1.0)
    containers.start()
    await asyncio.wait_for(woken.wait(), 10)
    found = Found([running(7, supervisor="docker", container_id=ID), running(8, unit="u.service")], all=True)
    for now, complete in ((100.0, False), (100.0 + PATIENCE - 0.1, False), (100.0 + PATIENCE, True)):
        seen = containers.merge(found, now)
        assert (len(seen.running), seen.all) == (1 + complete, complete)
    assert [(health.name, health.settled) for health in containers.health()] == [("containers", False)]
    await containers.close()


async def test_where_there_is_no_daemon_nothing_is_waited_for_and_nothing_fails(tmp_path: Path) -> None:
    found = Found([running(7, supervisor="docker", container_id=ID)], all=True)
    for off in (frozenset[str](), frozenset({"containers"})):
        woken = asyncio.Event()
        containers = Containers(Roots(rootfs=tmp_path), off, woken.set, 1.0)
        containers.start()
        if not off:
            await asyncio.wait_for(woken.wait(), 10)
        assert (containers.merge(found, 100.0), containers.health()) == (found, [])
        await containers.close()


@pytest.fixture
def nobody(silent: Path) -> Iterator[None]:
    """Be a user without rights, in particular none to the socket."""
    (silent / "run/docker.sock").chmod(0)
    if os.geteuid() != 0:
        yield
        return
    for each in (silent, silent.parent, silent.parents[1]):
        each.chmod(0o755)
    groups = os.getgroups()
    os.setgroups([])
    os.seteuid(65534)
    yield
    os.seteuid(0)
    os.setgroups(groups)


async def failures(roots: Roots, found: Found) -> list[str]:
    """Return what is wrong once the daemon has refused us."""
    woken = asyncio.Event()
    containers = Containers(roots, frozenset(), woken.set, 1.0)
    containers.merge(found, 100.0)
    containers.start()
    async with asyncio.timeout(10):
        while not (containers._looked and all(health.runs for health in containers.health())):
            await woken.wait()
            woken.clear()
    await containers.close()
    return [health.error for health in containers.health()]


async def test_a_daemon_that_we_may_not_ask_is_no_fault_until_it_is_missed(silent: Path, nobody: None) -> None:
    path = silent / "run/docker.sock"
    refused = f"{path}: permission denied; needs the socket's group, or root"
    nothing, unnamed = Found([], all=True), Found([running(7, supervisor="docker", container_id=ID)], all=True)
    assert await failures(Roots(rootfs=silent), nothing) == []
    assert await failures(Roots(rootfs=silent), unnamed) == [refused]
    assert await failures(Roots(rootfs=silent, container_sockets=(path,)), nothing) == [refused]
