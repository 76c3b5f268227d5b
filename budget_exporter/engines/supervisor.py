"""Tell from cgroups and ancestors who supervises a process: a systemd unit, a container runtime, or nobody."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from budget_exporter.engines._proc import Proc
from budget_exporter.facts.engine import SupervisorName

__all__ = ["Supervised", "container_of", "supervised", "unit_of"]

_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,247}\.service")
_USER_MANAGER = re.compile(r"user@\d+\.service")
_PODMAN = re.compile(r"libpod-(?:payload-)?([0-9a-f]{64})(?:\.scope)?")
_DOCKER = re.compile(r"docker-([0-9a-f]{64})\.scope")
_ID = re.compile(r"[0-9a-f]{64}")
_POD = re.compile(r"(?:[a-z]+-)*([0-9a-f]{64})(?:\.scope)?")
_ASKED = frozenset({"PODMAN_SYSTEMD_UNIT"})
_SHIM = "containerd-shim"
_NAMESPACES: dict[str, SupervisorName] = {"moby": "docker", "k8s.io": "kubernetes"}
"""Namespaces of containerd: ``moby`` is docker's (its ``plugins-moby`` holds no containers of users)."""


class Supervised(NamedTuple):
    """The system unit, the container's name and id, and who restarts the process."""

    unit: str | None
    container: str | None
    supervisor: SupervisorName
    container_id: str | None = None


class Unit(NamedTuple):
    """A service, and whether it belongs to a user's own manager instead of the system's."""

    name: str
    user: bool


class Container(NamedTuple):
    """Who runs a container, and its id where the cgroup tells."""

    runtime: SupervisorName
    id: str | None


def supervised(proc: Proc, ancestors: Sequence[tuple[int, str]], environ: Mapping[str, str] | None) -> Supervised:
    """
    Return who supervises the first of ``ancestors``: PID and name of a process, its parent, and so on upwards.

    A unit of a user's manager is not named: the system bus does not know it, and a service of the same name there
    would be another. In podman under a unit the unit is the supervisor; it is told by PODMAN_SYSTEMD_UNIT (of
    ``environ`` or of conmon, which watches the container), by conmon's cgroup or by that of conmon's parent. Which
    container it is, its cgroup tells, else conmon's or the shim's command line.
    """
    own = proc.cgroup(ancestors[0][0])
    unit, container = unit_of(own), container_of(own)
    name: str | None = None
    above = [pid for pid, _ in ancestors]
    conmon = next((at for at, (_, comm) in enumerate(ancestors) if comm == "conmon"), None)
    if conmon is not None:
        argv = proc.cmdline(above[conmon])
        # Where cgroups are not delegated, a rootless container has none of its own.
        container = container or Container("podman", _id(_option(argv, "-c", "--cid")))
        name = _option(argv, "-n", "--name")
        unit = _asked(proc, above[conmon], environ) or _first_unit(proc, above[conmon : conmon + 2]) or unit
    elif container is None:
        shim = next((pid for pid, comm in ancestors if comm.startswith(_SHIM)), None)
        container = _shimmed(proc.cmdline(shim)) if shim is not None else None
    identity = container.id if container else None
    if unit is not None and not unit.user:
        return Supervised(unit.name, name, "systemd", identity)
    return Supervised(None, name, container.runtime if container else "none", identity)


def unit_of(cgroup: str) -> Unit | None:
    r"""
    Return the service a process runs in, from the text of ``/proc/PID/cgroup``.

    The name stays as systemd writes it (``\x2d`` and all): it is what its bus is asked for. A scope (a login session,
    a container) is no unit that restarts. Source: systemd ``src/basic/cgroup-util.c``: after the slices comes the unit.
    """
    for path in _paths(cgroup, systemd=True):
        parts = iter(path)
        name = _service(parts)
        if name is not None and _USER_MANAGER.fullmatch(name):
            name = _service(parts)
            return None if name is None else Unit(name, user=True)
        if name is not None:
            return Unit(name, user=False)
    return None


def container_of(cgroup: str) -> Container | None:
    """Return the runtime that made a process's cgroup, and the container's id, from ``/proc/PID/cgroup``."""
    for path in _paths(cgroup, systemd=False):
        pod = any(part.startswith("kubepods") for part in path)
        for part, before in zip(path, ["", *path], strict=False):
            if pod or part.startswith(("crio-", "cri-containerd-")):
                ids = [m[1] for m in map(_POD.fullmatch, path) if m]
                return Container("kubernetes", ids[-1] if ids else None)
            if match := _PODMAN.fullmatch(part):
                return Container("podman", match[1])
            if match := _DOCKER.fullmatch(part) or (_ID.fullmatch(part) if before == "docker" else None):
                return Container("docker", match[match.re.groups])
    return None


def _paths(cgroup: str, *, systemd: bool) -> Iterator[list[str]]:
    """Yield the paths as lists of names: systemd's own hierarchy, the unified one, then (for containers) the others."""
    lines = [line.split(":", 2) for line in cgroup.splitlines()]
    found = {controllers: path for _, controllers, path in (fields for fields in lines if len(fields) == 3)}  # noqa: PLR2004 - cgroups(7)
    first = [found.pop(key) for key in ("name=systemd", "") if key in found]
    for path in first if systemd else [*first, *found.values()]:
        # A container's own cgroup namespace shows the host's groups behind "..".
        yield [part for part in path.removesuffix(" (deleted)").split("/") if part not in ("", "..")]


def _service(parts: Iterator[str]) -> str | None:
    """Return the next part that is not a slice, if it is a service."""
    part = next((part for part in parts if not part.endswith(".slice")), "")
    # systemd puts "_" before a name that would clash with a file of the cgroup file system.
    part = part.removeprefix("_")
    return part if _UNIT.fullmatch(part) else None


def _asked(proc: Proc, conmon: int, environ: Mapping[str, str] | None) -> Unit | None:
    """Return the unit podman was told it runs under."""
    name = (environ or {}).get("PODMAN_SYSTEMD_UNIT")
    if name is None:
        try:
            name = proc.environ(conmon, _ASKED).get("PODMAN_SYSTEMD_UNIT")
        except (OSError, ValueError):
            return None
    if name is None or not _UNIT.fullmatch(name):
        return None
    above = unit_of(proc.cgroup(conmon))
    return Unit(name, user=above is not None and above.user)


def _first_unit(proc: Proc, pids: Sequence[int]) -> Unit | None:
    return next((unit for pid in pids if pid > 1 and (unit := unit_of(proc.cgroup(pid)))), None)


def _shimmed(argv: Sequence[str]) -> Container | None:
    """Return the container that a shim of containerd watches, if its namespace is docker's or Kubernetes'."""
    runtime = _NAMESPACES.get(_option(argv, "-namespace", "--namespace") or "")
    return Container(runtime, _id(_option(argv, "-id", "--id"))) if runtime else None


def _id(text: str | None) -> str | None:
    return text if text is not None and _ID.fullmatch(text) else None


def _option(argv: Sequence[str], *names: str) -> str | None:
    """Return the value of an option that is written ``-n NAME``, ``--name NAME`` or ``--name=NAME``."""
    for at, arg in enumerate(argv):
        if arg in names:
            return argv[at + 1] if at + 1 < len(argv) else None
        if arg.startswith(tuple(f"{name}=" for name in names)):
            return arg.partition("=")[2] or None
    return None
