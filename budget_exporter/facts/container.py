"""What a container daemon says of one container, with nothing in it that must not be told on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

ContainerRuntime = Literal["podman", "docker"]


@dataclass(frozen=True, slots=True)
class Container:
    """
    One container as its daemon saw it.

    ``environ`` and ``labels`` hold allow-listed names only. ``argv`` is the command line only where it is a vLLM
    server's, else empty; like ``environ`` it is no part of the text form.
    """

    runtime: ContainerRuntime
    socket: str
    """The daemon's socket, as a path of ours."""
    id: str
    name: str
    status: str
    """The daemon's own word: ``created``, ``running``, ``restarting``, ``exited`` …"""
    pid: int | None = None
    """The PID of its first process in the daemon's PID namespace, None where it does not run."""
    started_at: float | None = None
    """Unix time of the last start, None where it was never started."""
    argv: tuple[str, ...] = field(default=(), repr=False)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    labels: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    own_pids: bool = True
    """Whether it has a PID namespace of its own, in which the first process is 1."""
    nrestarts: int | None = None
    exit_code: int | None = None
    """Of the last end, None while it runs and before the first start."""
    oom_killed: bool = False
    asked: bool = False
    """Whether somebody is known to have asked the daemon for the end that it has come to."""
    log_driver: str | None = None
    """Where the runtime puts its output: ``journald``, ``k8s-file``, ``json-file``, ``passthrough`` …"""
    hidden: bool = False
    """Whether its processes are none of those that our procfs shows."""
