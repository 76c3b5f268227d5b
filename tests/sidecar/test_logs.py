"""Which log is whose: a log that two running engines write to is nobody's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from budget_exporter.config import EngineConfig, LogConfig
from budget_exporter.facts.engine import EngineSighting, ProcessKey, Shape, SupervisorName
from budget_exporter.sidecar.fleet import Engine, Running
from budget_exporter.sidecar.logs import LINGER, logs_of

NOW = 1000.0
NONE: frozenset[str] = frozenset()


def engine(
    name: str,
    *,
    unit: str | None = None,
    container: str | None = None,
    runs: bool = True,
    config: EngineConfig | None = None,
    seen: float = NOW,
) -> Engine:
    key = ProcessKey(1, 1, "b")
    last = Running(EngineSighting("procfs", key, 5.0, (), {}, unit=unit, container=container), Shape())
    ended = None if runs else seen
    return Engine(
        name, config, running=last if runs else None, last=last, looked=True, main=key, started_at=5.0, last_seen=seen,
        ended_at=ended,
    )  # fmt: skip


def test_a_unit_or_a_container_has_a_journal_and_an_engine_by_itself_has_none() -> None:
    logs, shared = logs_of([engine("a", unit="a.service"), engine("b", container="b"), engine("c")], NONE, NOW)
    assert {name: (log.source, log.name) for name, log in logs.items()} == {
        "a": ("journal", "unit=a.service"), "b": ("journal", "container=b"),
    }  # fmt: skip
    assert shared == []
    assert logs_of([engine("a", unit="a.service")], frozenset({"journal"}), NOW) == ({}, [])


def test_the_configuration_decides() -> None:
    file = EngineConfig(name="a", log=LogConfig(file="/log"))
    none = EngineConfig(name="b", log=LogConfig(none=True))
    logs, _ = logs_of(
        [engine("a", unit="a.service", config=file), engine("b", unit="b.service", config=none)], NONE, NOW
    )
    assert [(name, log.source) for name, log in logs.items()] == [("a", "file")]


def in_container(name: str, runtime: SupervisorName, socket: str | None = None, **names: str | None) -> Engine:
    found = engine(name)
    assert found.last is not None
    sighting = replace(found.last.sighting, supervisor=runtime, container_socket=socket, **names)  # type: ignore[arg-type]
    found.last = found.running = replace(found.last, sighting=sighting)
    return found


def test_an_engine_in_a_container_or_a_pod_is_read_where_its_log_is_kept() -> None:
    """By the daemon that has told of the container, by the kubelet's files, else from the journal."""
    engines = [
        in_container("a", "podman", "/run/podman/podman.sock", container="c-a", container_id="1"),
        in_container("b", "kubernetes", container="c-b", container_id="2"),
        in_container("c", "docker", container="c-c"),
    ]
    logs, _ = logs_of(engines, NONE, NOW)
    assert {name: (log.source, log.name) for name, log in logs.items()} == {
        "a": ("container_logs", "container=c-a"), "b": ("pods", "pod=2"), "c": ("journal", "container=c-c"),
    }  # fmt: skip
    assert logs["a"].target.socket == "/run/podman/podman.sock"
    off, _ = logs_of(engines, frozenset({"container_logs", "pods"}), NOW)
    assert {log.source for log in off.values()} == {"journal"}


@pytest.mark.parametrize(
    ("driver", "source", "name"),
    [
        ("k8s-file", "container_logs", "container=c"),
        ("json-file", "container_logs", "container=c"),
        # Its lines are the unit's in the journal: under conmon's unit, or on the unit's own standard output.
        ("journald", "journal", "unit=u.service"),
        ("passthrough", "journal", "unit=u.service"),
        (None, "journal", "unit=u.service"),
    ],
)
def test_a_container_under_a_unit_is_read_where_its_runtime_writes(driver: str | None, source: str, name: str) -> None:
    it = in_container("a", "systemd", "/s", container="c", unit="u.service", log_driver=driver)
    (log,) = logs_of([it], NONE, NOW)[0].values()
    assert (log.source, log.name) == (source, name)
    off = logs_of([it], frozenset({"container_logs"}), NOW)[0]["a"]
    assert off.source == "journal"


def test_a_container_made_anew_has_the_same_log_and_another_pod_has_not() -> None:
    before = logs_of([in_container("a", "podman", "/s", container="c-a", container_id="1")], NONE, NOW)[0]["a"]
    after = logs_of([in_container("a", "podman", "/s", container="c-a", container_id="2")], NONE, NOW)[0]["a"]
    assert after.same(before)
    pods = [logs_of([in_container("b", "kubernetes", container_id=each)], NONE, NOW)[0]["b"] for each in "12"]
    assert not pods[1].same(pods[0])


def test_a_container_or_a_pod_can_be_configured() -> None:
    configs = [LogConfig(container="c"), LogConfig(pods="ns/pod-*/vllm"), LogConfig(journal=True)]
    engines = [engine(str(i), config=EngineConfig(name=str(i), log=log)) for i, log in enumerate(configs)]
    logs, _ = logs_of(engines, NONE, NOW)
    assert [(log.source, log.name) for log in logs.values()] == [
        ("container_logs", "container=c"), ("pods", "pod=ns/pod-*/vllm"),
    ]  # fmt: skip
    assert logs_of(engines, frozenset({"container_logs", "pods"}), NOW)[0] == {}


def test_two_running_servers_in_one_unit_have_no_log_of_their_own() -> None:
    """Each would be told the other's figures and deaths."""
    pair = [engine("u", unit="u.service"), engine("u@8001", unit="u.service", container="other")]
    assert logs_of(pair, NONE, NOW) == ({}, ["unit=u.service"])


def test_of_several_the_one_that_runs_has_the_log_and_else_the_one_that_ran_last() -> None:
    stopped = engine("u", unit="u.service", runs=False, seen=NOW - 5)
    logs, shared = logs_of([stopped, engine("u@8001", unit="u.service")], NONE, NOW)
    assert (list(logs), shared) == (["u@8001"], [])
    later = engine("u@8001", unit="u.service", runs=False, seen=NOW - 1)
    assert list(logs_of([stopped, later], NONE, NOW)[0]) == ["u@8001"]


def test_a_log_is_the_same_log_after_a_restart() -> None:
    again = engine("a", unit="a.service")
    before = logs_of([again], NONE, NOW)[0]["a"]
    again.started_at = NOW
    after = logs_of([again], NONE, NOW)[0]["a"]
    assert after.same(before)
    assert not after.same(None)
    assert not logs_of([engine("a", unit="b.service")], NONE, NOW)[0]["a"].same(before)


def test_the_log_of_an_engine_that_is_gone_is_followed_for_a_while_and_a_configured_one_s_for_ever() -> None:
    """Containers with a new name at every start would else leave a child process each."""
    gone = engine("a", container="a", runs=False)
    assert list(logs_of([gone], NONE, NOW + LINGER)[0]) == ["a"]
    assert logs_of([gone], NONE, NOW + LINGER + 1)[0] == {}
    kept = engine("a", container="a", runs=False, config=EngineConfig(name="a"))
    assert list(logs_of([kept], NONE, NOW + LINGER + 1)[0]) == ["a"]
