"""The many ways vLLM's processes look: releases, executors, namespaces, front ends without an engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from budget_exporter.demo.procfs_tree import Process, add, build, remove, vllm_engine
from budget_exporter.engines.procfs import ProcfsSource, source
from budget_exporter.facts.engine import EngineSighting
from budget_exporter.roots import Roots

SERVE = ("/opt/venv/bin/python3", "/opt/venv/bin/vllm", "serve", "/models/flash")
MODULE = ("python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/flash")
SPAWN = ("python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(5, pipe_handle=7)")
INIT = Process(1, 0, ("/sbin/init",), cgroup="0::/init.scope\n", start_ticks=1)
ID = "0123456789abcdef" * 4


def tree(tmp_path: Path, *processes: Process) -> ProcfsSource:
    build(tmp_path, [INIT, *processes], 1_790_000_000, "b")
    return source(Roots(procfs=tmp_path))


def found(finder: ProcfsSource) -> list[EngineSighting]:
    sightings, faults = finder.find()
    assert faults == []
    return sightings


def only(finder: ProcfsSource) -> EngineSighting:
    (sighting,) = found(finder)
    return sighting


def titled(pid: int, ppid: int, title: str) -> Process:
    return Process(pid, ppid, title=title)


def ranks(sighting: EngineSighting) -> dict[int, int | None]:
    return {worker.pid: worker.rank for worker in sighting.workers}


# Releases


def test_0_10_1_workers_append_their_part_to_the_title_of_the_core_they_were_forked_from(tmp_path: Path) -> None:
    core = titled(11, 10, "VLLM::EngineCore")
    workers = [titled(12 + rank, 11, f"VLLM::EngineCore_TP{rank}") for rank in range(2)]
    assert ranks(only(tree(tmp_path, Process(10, 1, SERVE), core, *workers))) == {11: None, 12: 0, 13: 1}


def test_0_10_1_workers_that_were_spawned_append_it_to_their_command_line(tmp_path: Path) -> None:
    core = titled(11, 10, "VLLM::EngineCore")
    workers = [
        replace(titled(12 + rank, 11, f"{' '.join(SPAWN)} --multiprocessing-fork_TP{rank}"), comm="python3")
        for rank in range(2)
    ]
    assert ranks(only(tree(tmp_path, Process(10, 1, SERVE), core, *workers))) == {11: None, 12: 0, 13: 1}


def test_0_10_1_replicas_say_nothing_of_a_rank_in_the_engine(tmp_path: Path) -> None:
    cores = [titled(11, 10, "VLLM::DPEngineCore_0"), titled(12, 10, "VLLM::DPEngineCore_1")]
    workers = [titled(13, 11, "VLLM::DPEngineCore_0_TP1"), titled(14, 12, "VLLM::DPEngineCore_1_TP1")]
    got = only(tree(tmp_path, Process(10, 1, SERVE), *cores, *workers))
    assert ranks(got) == dict.fromkeys((11, 12, 13, 14))


def test_before_0_10_1_processes_have_no_titles(tmp_path: Path) -> None:
    """Two API servers and a core of 0.9: spawned ones show the spawning, forked ones the server's own command line."""
    children = [Process(11, 10, SPAWN), Process(12, 10, MODULE), Process(13, 12, MODULE), Process(14, 11, SPAWN)]
    got = only(tree(tmp_path, Process(10, 1, MODULE), *children))
    assert (got.main.pid, ranks(got)) == (10, dict.fromkeys((11, 12, 13, 14)))


def test_the_workers_of_a_v0_engine_are_known_by_their_parents_alone(tmp_path: Path) -> None:
    """The engine process of V0 is spawned by the server, its VllmWorkerProcess by that; torch names their threads."""
    engine = Process(11, 10, SPAWN, comm="pt_main_thread")
    worker = Process(12, 11, SPAWN, comm="pt_main_thread")
    got = only(tree(tmp_path, Process(10, 1, MODULE), engine, worker))
    assert {worker.pid: worker.title for worker in got.workers} == dict.fromkeys((11, 12), "pt_main_thread")
    assert ranks(got) == dict.fromkeys((11, 12))


def test_a_title_that_grows_behind_a_name_that_is_cut_is_read_again(tmp_path: Path) -> None:
    finder = tree(tmp_path, Process(10, 1, SERVE), titled(11, 10, "glm-4.6-air::Worker"))
    assert ranks(only(finder)) == {11: None}
    (tmp_path / "11" / "cmdline").write_bytes(b"glm-4.6-air::Worker_TP1".ljust(150, b"\0"))
    assert ranks(only(finder)) == {11: 1}


# Executors


RAY_FLAGS = [
    ("--distributed-executor-backend", "ray"),
    ("--distributed-executor=ray",),
    ("--distributed_executor_backend=mp", "--data-parallel-backend", "ray"),
    ("-dpb", "ray"),
]
RAY = [
    Process(50, 1, ("/opt/ray/raylet", "--raylet_socket_name=/tmp/ray/raylet"), comm="raylet"),
    titled(51, 50, "ray::RayWorkerWrapper.execute_method"),
    titled(52, 50, "ray::RayWorkerProc"),
    titled(53, 50, "ray::DPMoEEngineCoreActor.run"),
    Process(54, 51, SPAWN),
    titled(55, 50, "ray::IDLE"),
    titled(56, 50, "ray::TrainWorkerGroup.step"),
]


@pytest.mark.parametrize("flags", RAY_FLAGS, ids=" ".join)
def test_workers_of_a_ray_cluster_are_the_only_engine_s_that_uses_it(tmp_path: Path, flags: tuple[str, ...]) -> None:
    other = vllm_engine(70, SERVE, {})
    ray, plain = found(
        tree(tmp_path, Process(10, 1, (*SERVE, *flags)), titled(11, 10, "VLLM::EngineCore"), *RAY, *other)
    )
    assert ranks(ray) == dict.fromkeys((11, 51, 52, 53, 54))
    assert [worker.pid for worker in plain.workers] == [71, 72]


def test_a_cluster_that_the_engine_has_started_lies_below_it(tmp_path: Path) -> None:
    server = Process(10, 1, (*SERVE, "--distributed-executor-backend", "ray"))
    own = replace(RAY[0], ppid=10)
    assert set(ranks(only(tree(tmp_path, server, own, *RAY[1:])))) == set(range(50, 57))


def test_of_two_engines_on_ray_neither_is_given_the_workers(tmp_path: Path) -> None:
    servers = [Process(pid, 1, (*SERVE, "--distributed-executor-backend", "ray")) for pid in (10, 20)]
    assert [s.workers for s in found(tree(tmp_path, *servers, *RAY))] == [(), ()]


def test_two_engines_on_ray_of_which_one_has_its_own_cluster_share_nothing(tmp_path: Path) -> None:
    servers = [Process(pid, 1, (*SERVE, "--distributed-executor-backend", "ray")) for pid in (10, 20)]
    inside = [Process(30, 10, ("raylet",)), titled(31, 30, "ray::RayWorkerWrapper")]
    assert [set(ranks(s)) for s in found(tree(tmp_path, *servers, *inside, *RAY))] == [{30, 31}, set()]


def test_workers_of_an_engine_that_is_served_elsewhere_are_no_engine(tmp_path: Path) -> None:
    assert found(tree(tmp_path, *RAY)) == []
    assert only(tree(tmp_path / "plain", Process(10, 1, SERVE), *RAY)).workers == ()


def test_a_config_file_may_name_ray(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "engine.yaml").write_text("distributed-executor-backend: ray\n")
    server = Process(10, 1, (*SERVE, "--config", "/engine.yaml"), root=root)
    assert set(ranks(only(tree(tmp_path / "proc", server, *RAY)))) == {51, 52, 53, 54}


# Front ends


def test_api_servers_beside_the_first_are_no_engines(tmp_path: Path) -> None:
    servers = [titled(11 + index, 10, f"VLLM::APIServer_{index}") for index in range(4)]
    core = titled(15, 10, "VLLM::EngineCore")
    got = only(tree(tmp_path, Process(10, 1, (*SERVE, "--api-server-count", "4")), *servers, core))
    assert ranks(got) == dict.fromkeys(range(11, 16))


def test_servers_of_replicas_under_one_supervisor_are_one_engine(tmp_path: Path) -> None:
    """0.32, --data-parallel-multi-port-external-lb: each replica has a port and a process group of its own."""
    servers = [titled(11 + rank, 10, f"VLLM::APIServer_DP{rank}") for rank in range(2)]
    cores = [titled(21 + rank, 11 + rank, f"VLLM::EngineCore_DP{rank}") for rank in range(2)]
    got = only(tree(tmp_path, Process(10, 1, (*SERVE, "-dp", "2", "-dpm")), *servers, *cores))
    assert ranks(got) == dict.fromkeys((11, 12, 21, 22))


@pytest.mark.parametrize(
    "argv",
    [
        ("/opt/venv/bin/python3", "/opt/venv/bin/vllm", "launch", "render", "/models/flash"),
        ("python3", "-m", "vllm.entrypoints.launchers.render.entry", "/models/flash"),
        ("vllm-router", "--worker-urls", "http://127.0.0.1:8000"),
        ("/opt/venv/bin/python3", "/opt/venv/bin/vllm", "run-batch", "-i", "in.jsonl"),
    ],
    ids=" ".join,
)
def test_a_front_end_without_an_engine_is_none(tmp_path: Path, argv: tuple[str, ...]) -> None:
    assert found(tree(tmp_path, Process(10, 1, argv))) == []


@pytest.mark.parametrize(
    "argv",
    [
        (*SERVE, "--headless"),
        (*SERVE, "--grpc"),
        ("python3", "-m", "vllm.entrypoints.grpc_server", "--model", "/models/flash"),
        ("python3", "-m", "vllm.entrypoints.api_server", "--model", "/models/flash"),
    ],
    ids=" ".join,
)
def test_an_engine_without_the_usual_front_end_is_one(tmp_path: Path, argv: tuple[str, ...]) -> None:
    assert only(tree(tmp_path, Process(10, 1, argv), titled(11, 10, "VLLM::EngineCore"))).argv == argv


def test_replicas_behind_somebody_else_s_balancer_are_engines_of_their_own(tmp_path: Path) -> None:
    servers = [Process(10 * rank, 1, (*SERVE, "-dp", "2", "--data-parallel-rank", str(rank - 1))) for rank in (1, 2)]
    assert [s.main.pid for s in found(tree(tmp_path, *servers))] == [10, 20]


def test_what_a_killed_server_leaves_behind_is_no_engine(tmp_path: Path) -> None:
    finder = tree(tmp_path, *vllm_engine(10, (*SERVE, "-tp", "2"), {}, ranks=2))
    assert only(finder).main.pid == 10
    remove(tmp_path, 10)
    remove(tmp_path, 12)
    add(tmp_path, titled(12, 1, "VLLM::EngineCore"))
    assert found(finder) == []


# Namespaces


CONTAINERS = {
    "podman": (("/usr/bin/conmon", "-c", ID, "-n", "qwen"), "conmon", f"0::/machine.slice/libpod-{ID}.scope\n", "qwen"),
    "docker": (
        ("/usr/bin/containerd-shim-runc-v2", "-namespace", "moby", "-id", ID),
        "containerd-shim",
        f"0::/system.slice/docker-{ID}.scope\n",
        None,
    ),
    "kubernetes": (
        ("/usr/bin/containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", ID),
        "containerd-shim",
        f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope\n",
        None,
    ),
}


@pytest.mark.parametrize("runtime", CONTAINERS)
def test_a_container_seen_from_the_host(tmp_path: Path, runtime: str) -> None:
    watcher, comm, cgroup, name = CONTAINERS[runtime]
    shell = Process(9, 8, ("sh", "-c", "exec vllm serve /models/flash"), cgroup=cgroup, inner_pid=1)
    engine = [
        replace(each, inner_pid=7 + at)
        for at, each in enumerate(vllm_engine(10, SERVE, {}, ppid=9, cgroup=cgroup, start_ticks=2000))
    ]
    got = only(tree(tmp_path, Process(8, 1, watcher, comm=comm), shell, *engine))
    assert (got.supervisor, got.container, got.unit, got.inner_pid) == (runtime, name, None, 7)
    assert [worker.pid for worker in got.workers] == [11, 12]


def test_a_container_of_a_pod_that_shares_its_pid_namespace(tmp_path: Path) -> None:
    """The pause process is PID 1, our own and the engine's first process are its children; cgroups begin with ".."."""
    ours = f"0::/../cri-containerd-{'f' * 64}.scope\n"
    theirs = f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope\n"
    build(
        tmp_path,
        [
            Process(1, 0, ("/pause",), cgroup=ours),
            Process(7, 0, ("python3", "-m", "budget_exporter"), cgroup=ours),
            *vllm_engine(20, SERVE, {}, ppid=0, cgroup=theirs),
        ],
        1_790_000_000,
        "b",
    )
    got = only(source(Roots(procfs=tmp_path)))
    assert (got.main.pid, got.inner_pid, got.supervisor) == (20, None, "kubernetes")


def test_a_worker_s_pid_that_another_program_got_is_no_worker(tmp_path: Path) -> None:
    finder = tree(tmp_path, *vllm_engine(10, (*SERVE, "-tp", "2"), {}, ranks=2))
    assert ranks(only(finder)) == {11: None, 12: None, 13: 0, 14: 1}
    remove(tmp_path, 14)
    add(tmp_path, Process(14, 1, ("nginx",), start_ticks=99_000))
    assert ranks(only(finder)) == {11: None, 12: None, 13: 0}
    remove(tmp_path, 13)
    # The same name, for a process that has not set its title yet.
    add(tmp_path, Process(13, 12, ("python3", "x"), comm="VLLM::Worker_TP", start_ticks=99_001))
    assert ranks(only(finder)) == {11: None, 12: None, 13: None}
