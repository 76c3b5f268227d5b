"""What is taken of a daemon's answer, and what a container's state and end mean."""

from __future__ import annotations

from typing import Any

import pytest

from budget_exporter.engines._inspected import Course, container, supervision
from budget_exporter.errors import SourceError
from budget_exporter.facts.container import Container, ContainerRuntime
from budget_exporter.facts.engine import Supervision

SOCKET = "/run/docker.sock"
ID = "ab" * 32


def answer(**changes: Any) -> dict[str, Any]:
    """Return an answer of the shape of docker's and podman's; a changed part replaces the whole part."""
    whole: dict[str, Any] = {
        "Id": ID,
        "Name": "/qwen",
        "Path": "python3",
        "Args": ["-m", "vllm.entrypoints.openai.api_server", "--model", "m"],
        "RestartCount": 2,
        "State": {"Status": "running", "Running": True, "Pid": 7, "ExitCode": 0, "StartedAt": "2026-01-02T03:04:05.5Z"},
        "HostConfig": {"PidMode": ""},
        "Config": {"Env": [], "Labels": {}, "WorkingDir": "/w"},
    }
    return whole | changes


def state(status: str, code: int = 0, pid: int = 0, **more: Any) -> dict[str, Any]:
    return {"Status": status, "Pid": pid, "ExitCode": code, "StartedAt": "2026-01-02T03:04:05Z", **more}


def read(course: Course | None = None, runtime: ContainerRuntime = "docker", **changes: Any) -> Container:
    return container(answer(**changes), runtime, SOCKET, course or Course())


def test_a_running_server() -> None:
    assert read() == Container(
        "docker", SOCKET, ID, "qwen", "running", 7, 1767323045.5,
        ("python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"), cwd="/w", nrestarts=2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("told", "driver"),
    [({"Type": "k8s-file", "Path": "/p"}, "k8s-file"), ({"Type": ""}, None), ({"Type": 7}, None), ([], None)],
)
def test_where_the_runtime_puts_the_output(told: Any, driver: str | None) -> None:
    assert read(HostConfig={"LogConfig": told}).log_driver == driver


def test_only_what_is_allowed_is_taken_of_environment_labels_and_command() -> None:
    config = {
        "Env": ["HF_TOKEN=hunter2", "CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=1", "no-equals", 7],
        "Labels": {"password": "hunter2", "com.docker.compose.service": "llm", "PODMAN_SYSTEMD_UNIT": 7},
    }
    found = read(Config=config, Path="sh", Args=["-c", "hunter2"])
    assert (found.environ, found.labels) == ({"CUDA_VISIBLE_DEVICES": "1"}, {"com.docker.compose.service": "llm"})
    assert (found.argv, found.cwd) == ((), None)
    told = read(Path="vllm", Args=["serve", "m", "--api-key", "hunter2"])
    assert told.argv == ("vllm", "serve", "m", "--api-key", "hunter2")
    assert "hunter2" not in repr(told)


@pytest.mark.parametrize("parts", [{"HostConfig": None}, {"Config": None}, {"Args": None}, {"HostConfig": {}}])
def test_parts_that_are_missing_leave_their_fields_empty(parts: dict[str, Any]) -> None:
    assert read(**parts).name == "qwen"


@pytest.mark.parametrize(
    "nonsense",
    [
        None,
        [],
        "x",
        {},
        answer(Id=7),
        answer(Id=""),
        answer(Name=None),
        answer(State=None),
        answer(State={"Status": 1}),
    ],
)
def test_what_describes_no_container_is_an_error_that_tells_nothing_of_it(nonsense: object) -> None:
    with pytest.raises(SourceError, match=r"^/run/docker.sock: what is said of a container makes no sense$"):
        container(nonsense, "docker", SOCKET, Course())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0001-01-01T00:00:00Z", None),
        ("yesterday", None),
        (None, None),
        ("2026-01-02T03:04:05.123456789+01:00", 1767319445.123456),
    ],
)
def test_moments(text: str | None, expected: float | None) -> None:
    assert read(State=state("running", pid=7) | {"StartedAt": text}).started_at == expected


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (state("created"), ("inactive", None, "")),
        (state("configured"), ("inactive", None, "")),
        (state("initialized"), ("activating", None, "")),
        (state("running", pid=7), ("active", None, "")),
        (state("paused", pid=7), ("active", None, "")),
        # Docker while it backs off: running by its own word, but nothing runs.
        (state("restarting", 1, Running=True, Restarting=True), ("auto_restart", 1, "exit-code")),
        (state("exited", 0), ("inactive", 0, "success")),
        (state("exited", 3), ("failed", 3, "exit-code")),
        (state("exited", 143), ("inactive", 143, "signal")),
        (state("exited", 137), ("failed", 137, "signal")),
        (state("exited", 137, OOMKilled=True), ("failed", 137, "oom-kill")),
        (state("stopped", 137), ("failed", 137, "signal")),
        (state("stopping", 0, pid=7), ("inactive", None, "")),
        (state("removing", 137), ("inactive", 137, "signal")),
        (state("dead", 1), ("failed", 1, "exit-code")),
        (state("dreaming", pid=7), ("unknown", None, "")),
    ],
)
def test_states(what: dict[str, Any], expected: tuple[str, int | None, str]) -> None:
    told = supervision("qwen", "docker", read(State=what))
    assert (told.state, told.exit_code, told.result) == expected
    assert (told.supervisor, told.unit, told.nrestarts) == ("docker", "qwen", 2)


def test_a_container_that_is_not_there_is_inactive() -> None:
    assert supervision("qwen", "podman", None) == Supervision("podman", "qwen", "inactive", None)


@pytest.mark.parametrize(
    ("runtime", "actions", "asked"),
    [
        ("docker", "create start kill die stop", True),
        ("docker", "start kill die", True),
        ("docker", "start die", False),
        ("docker", "start die start die", False),
        ("docker", "start kill die stop start restart die", False),
        ("podman", "start restart die", True),
        ("podman", "start die restart", False),
        ("podman", "start kill die cleanup", True),
        ("podman", "start kill die init start die", False),
    ],
)
def test_who_was_asked_is_told_by_the_order_of_events(runtime: ContainerRuntime, actions: str, asked: bool) -> None:
    course = Course()
    for action in actions.split():
        course = course.after(action, runtime)
    ended = read(course, runtime, State=state("exited", 137))
    assert (ended.asked, supervision("qwen", runtime, ended).state) == (asked, "inactive" if asked else "failed")
