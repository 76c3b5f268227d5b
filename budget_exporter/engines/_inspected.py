"""Read what a daemon says of a container, taking from it only what may be known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from budget_exporter.engines.arguments import ENVIRON_ALLOWED, server_arguments
from budget_exporter.errors import SourceError
from budget_exporter.facts.container import Container, ContainerRuntime
from budget_exporter.facts.engine import Supervision, UnitState

__all__ = ["LABELS_ALLOWED", "Course", "container", "supervision"]

LABELS_ALLOWED = frozenset(
    {
        "PODMAN_SYSTEMD_UNIT",
        "com.docker.compose.project",
        "com.docker.compose.service",
        "com.docker.compose.project.config_files",
    }
)
_STATES: dict[str, UnitState] = {
    "created": "inactive",
    "configured": "inactive",
    "initialized": "activating",
    "running": "active",
    "paused": "active",
    "restarting": "auto_restart",
    "stopping": "inactive",
    "removing": "inactive",
    "dead": "failed",
}
"""``State.Status`` of docker 20 to 28 and podman 4 to 5; what has ended is told by how it ended."""
_ENDED = ("exited", "stopped")
_ASKED_TO = (0, 130, 143)
"""Exit codes of a process that was asked to end: well, by SIGINT, by SIGTERM."""
_SIGNAL = 128
_ACTIONS = ("kill", "stop")
"""Events that only somebody's request makes; a policy's restart makes none of them."""


@dataclass(frozen=True, slots=True)
class Course:
    """What events have told of the present life of a container: whether it has ended, and was asked to."""

    asked: bool = False
    ended: bool = False

    def after(self, action: str, runtime: ContainerRuntime) -> Course:
        """
        Return what holds after an event.

        Podman says ``restart`` before the end where somebody asked for it, and after the end where its policy restarts;
        docker says it after the new start. Docker says ``kill`` before each asked end, podman for ``podman kill`` only.
        """
        if action == "start":
            return Course()
        if action == "die":
            return replace(self, ended=True)
        asked = action in _ACTIONS or (action == "restart" and runtime == "podman" and not self.ended)
        return replace(self, asked=self.asked or asked)


def container(answer: object, runtime: ContainerRuntime, socket: str, course: Course) -> Container:
    """
    Return the container that ``answer`` (of ``/containers/ID/json``) describes.

    Of its environment and labels only allow-listed names are taken, of its command line nothing unless it is a vLLM
    server's. Raise SourceError where the answer describes no container.
    """
    top = _mapping(answer)
    state, config, host = _mapping(top.get("State")), _mapping(top.get("Config")), _mapping(top.get("HostConfig"))
    identity, name, status = top.get("Id"), top.get("Name"), state.get("Status")
    if not (isinstance(identity, str) and isinstance(name, str) and isinstance(status, str) and identity and name):
        raise SourceError(f"{socket}: what is said of a container makes no sense")
    argv = tuple(part for part in (top.get("Path"), *_list(top.get("Args"))) if isinstance(part, str))
    # Docker says Running while it waits to start a container again, but then there is no process.
    pid = _number(state.get("Pid")) or None
    ended = pid is None and status not in ("created", "configured", "initialized")
    code = _number(state.get("ExitCode")) if ended else None
    driver = _mapping(host.get("LogConfig")).get("Type")
    return Container(
        runtime=runtime,
        socket=socket,
        id=identity,
        name=name.removeprefix("/"),
        status=status,
        pid=pid,
        started_at=_time(state.get("StartedAt")),
        argv=argv if server_arguments(argv) is not None else (),
        environ=_allowed(_list(config.get("Env")), ENVIRON_ALLOWED),
        labels={k: v for k, v in _mapping(config.get("Labels")).items() if k in LABELS_ALLOWED and isinstance(v, str)},
        cwd=config["WorkingDir"] if isinstance(config.get("WorkingDir"), str) and config["WorkingDir"] else None,
        own_pids=host.get("PidMode") != "host",
        nrestarts=_number(top.get("RestartCount")),
        exit_code=code,
        oom_killed=ended and state.get("OOMKilled") is True,
        log_driver=driver if isinstance(driver, str) and driver else None,
        asked=ended and (course.asked or status == "stopping" or code in _ASKED_TO),
    )


def supervision(name: str, runtime: ContainerRuntime, found: Container | None) -> Supervision:
    """
    Return what the runtime does about the container ``name``; one that is not there is ``inactive``.

    One that has ended is ``failed``, unless it was asked to end.
    """
    if found is None:
        return Supervision(runtime, name, "inactive", None)
    ended: UnitState = "inactive" if found.asked else "failed"
    return Supervision(
        supervisor=runtime,
        unit=name,
        state=ended if found.status in _ENDED else _STATES.get(found.status, "unknown"),
        nrestarts=found.nrestarts,
        exit_code=found.exit_code,
        result=_result(found),
        asked=None if found.exit_code is None else found.asked,
    )


def _result(found: Container) -> str:
    """Return how it ended in systemd's words for that, nothing while it runs."""
    if found.exit_code is None:
        return ""
    if found.oom_killed:
        return "oom-kill"
    if found.exit_code == 0:
        return "success"
    return "signal" if found.exit_code > _SIGNAL else "exit-code"


def _allowed(entries: list[Any], allowed: frozenset[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=") if isinstance(entry, str) else ("", "", "")
        # Of two entries the runtime hands on the last.
        if equals and name in allowed:
            found[name] = value
    return found


def _time(value: object) -> float | None:
    """Return the Unix time of an RFC 3339 text with nanoseconds; None for none, and for year 1, which means never."""
    if not isinstance(value, str) or value.startswith("0001-"):
        return None
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError):
        return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
