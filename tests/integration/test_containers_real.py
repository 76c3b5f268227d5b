"""Engines in containers of a real podman and a real docker: found, named, followed through restarts and removal."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from budget_exporter.engines import docker, podman
from budget_exporter.engines._container_supervisor import ContainerSupervisor
from budget_exporter.engines.containers import source
from budget_exporter.facts.container import Container
from budget_exporter.facts.engine import Supervision
from budget_exporter.roots import Roots
from tests.integration.processes import Exporter, exporter, until
from tests.integration.rig_containers import ContainerRig

SECRET = "hunter2-do-not-tell"  # noqa: S105 - a made-up one
PATIENCE = 30
SUPERVISORS = {"podman": podman, "docker": docker}


@pytest.fixture(
    params=[
        pytest.param("podman", marks=pytest.mark.real_part("podman")),
        pytest.param("rootless", marks=pytest.mark.real_part("rootless podman")),
        pytest.param("docker", marks=pytest.mark.real_part("docker")),
    ]
)
def rig(request: pytest.FixtureRequest) -> Iterator[ContainerRig]:
    """Give the one and the other; nothing of a test is left in it."""
    running: ContainerRig = request.getfixturevalue(f"{request.param}_rig")
    yield running
    running.clear()


@pytest.fixture
def serve(rig: ContainerRig, tmp_path: Path) -> Iterator[Exporter]:
    words = ("serve", f"--path.rootfs={rig.rootfs}", "--no-source.journal", "--log.level=debug")
    with exporter(tmp_path / "exporter.log", *words) as running:
        yield running.ready()


def first_process(rig: ContainerRig, name: str) -> int:
    return int(rig.cli("inspect", "--format", "{{.State.Pid}}", name))


def rows(series: dict[tuple[str, frozenset[tuple[str, str]]], float], engine: str) -> dict[str, float | str]:
    """Return what is published of the supervision of an engine."""
    found: dict[str, float | str] = {}
    for (name, labels), value in series.items():
        of = dict(labels)
        if of.get("engine") != engine:
            continue
        if name == "budget_engine_unit_state" and value:
            found["state"] = of["state"]
        if name == "budget_engine_info":
            found["supervisor"] = of["supervisor"]
        for short in ("up", "restarts_total", "nrestarts"):
            if name == f"budget_engine_{short}":
                found[short] = value
        if name == "budget_engine_failures_total":
            found["failures"] = float(found.get("failures", 0.0)) + value
    return found


def published(serve: Exporter, engine: str, **wanted: float | str) -> dict[str, float | str]:
    """Wait until all that is wanted is published of the engine; return it."""

    found: dict[str, float | str] = {}

    def holds() -> bool:
        found.clear()
        found.update(rows(serve.series(), engine))
        return wanted.items() <= found.items()

    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"{engine}: {wanted} is not {found}:\n{serve.log}"
        time.sleep(0.1)
    return found


def engines(serve: Exporter) -> set[str]:
    """Return the names of what serves our model: other tests' engines may run on this machine."""
    infos = [dict(labels) for name, labels in serve.series() if name == "budget_engine_info"]
    return {labels["engine"] for labels in infos if labels["model"] == "org/model"}


def test_an_engine_is_followed_through_restarts_a_crash_and_a_new_container(rig: ContainerRig, serve: Exporter) -> None:
    rig.start("qwen", "org/model", "--port", "9123", options=("--restart=on-failure",))
    published(serve, "qwen", up=1.0, supervisor=rig.runtime, state="active", nrestarts=0.0, restarts_total=0.0)
    os.kill(first_process(rig, "qwen"), signal.SIGKILL)
    published(serve, "qwen", up=1.0, state="active", nrestarts=1.0, restarts_total=1.0)
    # What killed it, no log tells; that nobody asked for it, the runtime's own restart does.
    published(serve, "qwen", failures=1.0)
    rig.cli("restart", "qwen")
    published(serve, "qwen", up=1.0, state="active", restarts_total=2.0)
    rig.remove("qwen")
    gone = published(serve, "qwen", up=0.0, state="inactive", restarts_total=2.0)
    assert "nrestarts" not in gone
    rig.start("qwen", "org/model", "--port", "9123", options=("--restart=on-failure",))
    published(serve, "qwen", up=1.0, state="active", nrestarts=0.0, restarts_total=3.0, failures=1.0)
    assert engines(serve) == {"qwen"}


def test_a_planned_stop_is_no_failure_and_a_crash_without_a_policy_is_one(rig: ContainerRig, serve: Exporter) -> None:
    rig.start("stopped", "org/model", "--port", "9124")
    rig.start("crashed", "org/model", "--port", "9125", options=("--env=LIFE=3", "--env=STATUS=3"))
    published(serve, "stopped", up=1.0, state="active")
    rig.cli("stop", "stopped")
    published(serve, "stopped", up=0.0, state="inactive")
    published(serve, "crashed", up=0.0, state="failed", failures=1.0)
    assert published(serve, "stopped", up=0.0)["failures"] == 0.0


def test_names_stay_while_the_service_is_away_and_are_taken_up_again(rig: ContainerRig, serve: Exporter) -> None:
    rig.start("qwen", "org/model", "--port", "9126")
    published(serve, "qwen", up=1.0, state="active", nrestarts=0.0)
    rig.stop_service()
    until(lambda: serve.value("budget_source_success", source=rig.runtime) == 0.0, "the service is missed", PATIENCE)
    assert "state" not in published(serve, "qwen", up=1.0, supervisor=rig.runtime)
    rig.start_service()
    published(serve, "qwen", up=1.0, state="active", nrestarts=0.0, restarts_total=0.0)
    assert engines(serve) == {"qwen"}


def test_no_secret_of_a_container_is_told(rig: ContainerRig, serve: Exporter) -> None:
    secret = (f"--env=HF_TOKEN={SECRET}", f"--label=password={SECRET}", "--env=VLLM_LOGGING_LEVEL=INFO")
    rig.start("qwen", "org/model", "--port", "9127", "--api-key", SECRET, options=secret)
    published(serve, "qwen", up=1.0, state="active")
    pages = [serve.get(path)[1] for path in ("/metrics", "/", "/api/v1/snapshot", "/api/v1/engines")]
    assert "qwen" in pages[0]
    assert not [page for page in (*pages, serve.log) if SECRET in page]
    rig.remove("qwen")
    published(serve, "qwen", up=0.0)
    assert SECRET not in serve.log


def test_two_daemons_cost_at_most_the_exporter_s_memory(rig: ContainerRig, serve: Exporter) -> None:
    rig.start("qwen", "org/model", "--port", "9128")
    published(serve, "qwen", up=1.0, state="active")
    status = Path(f"/proc/{serve.pid}/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    assert resident < 56 * 1024


def test_an_engine_whose_processes_are_hidden_is_known_by_its_daemon_alone(rig: ContainerRig, tmp_path: Path) -> None:
    rig.start("qwen", "org/model", "--port", "9129", "--max-model-len", "4K", options=("--env=LIFE=600",))
    words = ("serve", f"--path.rootfs={rig.rootfs}", "--no-source.journal")
    hidden = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGTERM")
    with exporter(tmp_path / "exporter.log", *words, prefix=hidden) as serve:
        published(serve, "qwen", up=1.0, supervisor=rig.runtime, state="active", restarts_total=0.0)
        rig.cli("restart", "qwen")
        published(serve, "qwen", up=1.0, restarts_total=1.0)
        rig.cli("stop", "qwen")
        published(serve, "qwen", up=0.0, state="inactive", restarts_total=1.0)
        assert engines(serve) == {"qwen"}


@pytest.mark.real_part("podman")
def test_a_container_under_a_unit_is_one_engine_with_the_unit_s_name(podman_rig: ContainerRig, tmp_path: Path) -> None:
    """As a quadlet starts it: podman hands its unit on to conmon and to a label of the container."""
    unit = replace(podman_rig, environ={**podman_rig.environ, "PODMAN_SYSTEMD_UNIT": "vllm-qwen.service"})
    words = ("serve", f"--path.rootfs={unit.rootfs}", "--no-source.journal", "--no-source.systemd")
    try:
        unit.start("systemd-vllm-qwen", "org/model", "--port", "9131")
        with exporter(tmp_path / "exporter.log", *words) as serve:
            published(serve, "vllm-qwen", up=1.0, supervisor="systemd")
            unit.remove("systemd-vllm-qwen")
            published(serve, "vllm-qwen", up=0.0)
            unit.start("systemd-vllm-qwen", "org/model", "--port", "9131")
            published(serve, "vllm-qwen", up=1.0, supervisor="systemd", restarts_total=1.0)
            assert engines(serve) == {"vllm-qwen"}
    finally:
        podman_rig.clear()


@pytest.mark.real_part("podman")
def test_a_container_under_a_unit_is_heard_where_podman_writes_to_a_file(
    podman_rig: ContainerRig, tmp_path: Path
) -> None:
    """The unit's journal has nothing of it then."""
    unit = replace(podman_rig, environ={**podman_rig.environ, "PODMAN_SYSTEMD_UNIT": "vllm-filed.service"})
    (unit.share / "filed").write_text(
        "(APIServer pid=1) INFO 02-03 10:00:00 [api_utils.py:395] version 0.28.0  model m\n"
    )
    try:
        unit.start("filed", "org/model", options=("--log-driver=k8s-file", "--env=SAY=/share/filed"))
        with exporter(
            tmp_path / "exporter.log", "serve", f"--path.rootfs={unit.rootfs}", "--no-source.systemd"
        ) as serve:
            published(serve, "vllm-filed", up=1.0, supervisor="systemd")
            told = {"engine": "vllm-filed", "version": "0.28.0", "unit_name": "vllm-filed.service"}

            def heard() -> bool:
                rows = [dict(labels) for name, labels in serve.series() if name == "budget_engine_info"]
                return any(told.items() <= row.items() for row in rows)

            until(heard, "its version is read from its log", PATIENCE)
    finally:
        podman_rig.clear()


async def heard(rig: ContainerRig, wanted: Callable[[Container], bool]) -> Container:
    """Return the first container that is told and wanted."""
    finder = source(Roots(rootfs=rig.rootfs))
    (socket,) = await finder.sockets()
    async with asyncio.timeout(PATIENCE):
        async for containers, faults in finder.watch(socket):
            assert faults == []
            for each in containers:
                if wanted(each):
                    return each
    raise AssertionError("the daemon ended its answer")


async def test_what_is_taken_of_a_container(rig: ContainerRig) -> None:
    options = (
        f"--env=HF_TOKEN={SECRET}",
        "--env=CUDA_VISIBLE_DEVICES=1",
        f"--label=password={SECRET}",
        "--label=com.docker.compose.service=llm",
        "--workdir=/share",
    )
    identity = await asyncio.to_thread(
        rig.start, "qwen", "org/model", "--api-key", SECRET, "--port", "9130", options=options
    )
    found = await heard(rig, lambda each: each.pid is not None)
    assert (found.runtime, found.name, found.id, found.status) == (rig.runtime, "qwen", identity, "running")
    assert (found.socket, found.pid) == (str(rig.socket), first_process(rig, "qwen"))
    assert (found.environ, found.labels) == ({"CUDA_VISIBLE_DEVICES": "1"}, {"com.docker.compose.service": "llm"})
    assert (found.cwd, found.nrestarts, found.exit_code, found.hidden) == ("/share", 0, None, False)
    assert found.started_at == pytest.approx(time.time(), abs=30)
    assert SECRET not in repr(found)
    await asyncio.to_thread(rig.remove, "qwen")
    # What is no vLLM server tells nothing of its command line.
    await asyncio.to_thread(
        rig.cli, "run", "--detach", "--name=other", "--network=host", "--volume=/usr:/usr:ro", "localhost/engine:1",
        "/usr/bin/env", f"X={SECRET}", "sleep", "600",
    )  # fmt: skip
    assert (await heard(rig, lambda each: each.name == "other" and each.pid is not None)).argv == ()


class Watched:
    """What a supervisor says of a container, taken in as a task."""

    def __init__(self, rig: ContainerRig, unit: str) -> None:
        self.said: list[Supervision] = []
        supervisor: ContainerSupervisor = SUPERVISORS[rig.runtime].supervisor(Roots(rootfs=rig.rootfs))
        self._task = asyncio.create_task(self._watch(supervisor, unit))

    async def _watch(self, supervisor: ContainerSupervisor, unit: str) -> None:
        async for now in supervisor.watch(unit):
            self.said.append(now)

    async def until(self, wanted: Callable[[Supervision], bool]) -> Supervision:
        """Return the newest word once it is wanted."""
        async with asyncio.timeout(PATIENCE):
            while not (self.said and wanted(self.said[-1])):
                if self._task.done():
                    self._task.result()
                await asyncio.sleep(0.05)
        return self.said[-1]

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})


async def test_a_supervisor_tells_how_a_container_ends(rig: ContainerRig) -> None:
    watched = Watched(rig, "qwen")
    absent = Supervision(rig.runtime, "qwen", "inactive", None)  # type: ignore[arg-type]
    try:
        assert await watched.until(lambda _: True) == absent
        await asyncio.to_thread(rig.start, "qwen", "org/model", options=("--env=LIFE=1", "--env=STATUS=3"))
        ended = await watched.until(lambda now: now.state == "failed")
        assert (ended.exit_code, ended.result, ended.nrestarts) == (3, "exit-code", 0)
        await asyncio.to_thread(rig.remove, "qwen")
        assert await watched.until(lambda now: now.state == "inactive") == absent
        await asyncio.to_thread(rig.start, "qwen", "org/model")
        assert (await watched.until(lambda now: now.state == "active")).exit_code is None
        await asyncio.to_thread(rig.cli, "kill", "qwen")
        assert (await watched.until(lambda now: now.state != "active")).state == "inactive"
    finally:
        await watched.close()


@pytest.mark.real_part("docker")
async def test_a_container_above_its_memory_limit_says_so(docker_rig: ContainerRig) -> None:
    watched = Watched(docker_rig, "big")
    try:
        await asyncio.to_thread(
            docker_rig.start, "big", "org/model", options=("--memory=30m", "--env=EAT_MIB=200", "--restart=on-failure")
        )
        ended = await watched.until(lambda now: now.state == "auto_restart")
        assert (ended.exit_code, ended.result) == (137, "oom-kill")
        assert (await watched.until(lambda now: (now.nrestarts or 0) >= 2)).nrestarts is not None
    finally:
        await watched.close()
        await asyncio.to_thread(docker_rig.remove, "big")


@pytest.mark.real_part("podman")
@pytest.mark.parametrize("seconds", [2, 5])
async def test_a_stop_that_podman_had_to_enforce_was_asked_for_all_the_same(
    podman_rig: ContainerRig, seconds: int
) -> None:
    watched = Watched(podman_rig, "deaf")
    try:
        deaf = "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
        await asyncio.to_thread(
            podman_rig.cli, "run", "--detach", "--name=deaf", *(f"--volume={m}" for m in podman_rig.mounts),
            "localhost/engine:1", "/usr/bin/env", "python3", "-c", deaf,
        )  # fmt: skip
        await watched.until(lambda now: now.state == "active")
        await asyncio.to_thread(podman_rig.cli, "stop", f"--time={seconds}", "deaf")
        ended = await watched.until(lambda now: now.exit_code is not None)
        assert (ended.state, ended.exit_code, ended.asked) == ("inactive", 137, True)
    finally:
        await watched.close()
        await asyncio.to_thread(podman_rig.remove, "deaf")
