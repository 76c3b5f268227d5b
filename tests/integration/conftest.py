"""Fixtures of the integration tests: real programs that our readers are pointed at."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import rig_docker, rig_podman, rig_systemd
from tests.integration.rig_containers import ContainerRig
from tests.real_parts import unavailable


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
def docker_rig() -> Iterator[ContainerRig]:
    """Give a real docker engine of its own; started once for all tests that ask for it."""
    if why := rig_docker.why_not():
        unavailable(why)
    with tempfile.TemporaryDirectory(prefix="budget-rig-") as where, rig_docker.started(Path(where)) as rig:
        yield rig
