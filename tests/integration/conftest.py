"""Fixtures of the integration tests: real programs that our readers are pointed at."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import rig_docker, rig_podman, rig_systemd, rig_vllm
from tests.integration.real_engines import PLANS, Scene, Seen
from tests.integration.rig_containers import ContainerRig
from tests.real_parts import unavailable


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Give real vLLM servers and the exporter that watches them: of the plans those that some test asks for."""
    rig_vllm.installed()
    calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    asked = {call.params.get("seen") for call in calls}
    with Scene(tmp_path_factory.mktemp("vllm"), [name for name in PLANS if name in asked]).running() as scene:
        yield scene


@pytest.fixture
def seen(request: pytest.FixtureRequest, servers: Scene) -> Seen:
    """Give what was seen of the server that the test's parameter names."""
    return servers.seen(request.param)


@pytest.fixture(scope="session")
def systemd_rig() -> Iterator[rig_systemd.SystemdRig]:
    """Give a real systemd as PID 1, with journal and system bus; booted once for all tests that ask for it."""
    if why := rig_systemd.why_not():
        unavailable(why)
    with tempfile.TemporaryDirectory(prefix="budget-rig-") as where, rig_systemd.started(Path(where)) as rig:
        yield rig


@pytest.fixture(scope="session")
def podman_rig() -> Iterator[ContainerRig]:
    """Give a real podman with its REST service; started once for all tests that ask for it."""
    if why := rig_podman.why_not():
        unavailable(why)
    with tempfile.TemporaryDirectory(prefix="budget-rig-") as where, rig_podman.started(Path(where)) as rig:
        yield rig


@pytest.fixture(scope="session")
def rootless_rig() -> Iterator[ContainerRig]:
    """Give a real podman of a user without rights, started once for all tests that ask for it."""
    if why := rig_podman.why_not(rootless=True):
        unavailable(why)
    with (
        tempfile.TemporaryDirectory(prefix="budget-rig-") as where,
        rig_podman.started(Path(where), rootless=True) as rig,
    ):
        yield rig


@pytest.fixture(scope="session")
def docker_rig() -> Iterator[ContainerRig]:
    """Give a real docker engine of its own; started once for all tests that ask for it."""
    if why := rig_docker.why_not():
        unavailable(why)
    with tempfile.TemporaryDirectory(prefix="budget-rig-") as where, rig_docker.started(Path(where)) as rig:
        yield rig
