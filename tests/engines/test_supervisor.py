"""Who supervises a process, from cgroup texts of real hosts' shapes and from ancestors in a tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from budget_exporter.demo.procfs_tree import Process, build
from budget_exporter.engines._proc import Proc
from budget_exporter.engines.supervisor import Supervised, container_of, supervised, unit_of

ID = "0123456789abcdef" * 4
UNITS = [
    ("0::/system.slice/vllm-qwen.service\n", ("vllm-qwen.service", False)),
    ("0::/system.slice/system-vllm.slice/vllm@qwen.service\n", ("vllm@qwen.service", False)),
    (r"0::/system.slice/vllm\x2dqwen.service" + "\n", (r"vllm\x2dqwen.service", False)),
    ("0::/ai.slice/ai-gpu.slice/vllm.service/payload\n", ("vllm.service", False)),
    ("0::/system.slice/_cpu.service\n", ("cpu.service", False)),
    ("0::/system.slice/vllm.service (deleted)\n", ("vllm.service", False)),
    ("0::/../../system.slice/vllm.service\n", ("vllm.service", False)),
    ("9:name=systemd:/system.slice/a.service\n4:memory:/\n0::/\n", ("a.service", False)),
    ("12:memory:/system.slice/a.service\n1:name=systemd:/system.slice/b.service\n", ("b.service", False)),
    ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service\n", ("vllm.service", True)),
    ("0::/user.slice/user-1000.slice/session-3.scope\n", None),
    ("0::/user.slice/user-1000.slice/user@1000.service/init.scope\n", None),
    ("0::/init.scope\n", None),
    ("0::/system.slice/run-u123.scope\n", None),
    (f"0::/machine.slice/libpod-{ID}.scope/container\n", None),
    (f"0::/system.slice/docker-{ID}.scope/system.slice/inner.service\n", None),
    (f"0::/docker/{ID}/system.slice/inner.service\n", None),
    ("0::/machine.slice/machine-t1.scope/payload/system.slice/inner.service\n", None),
    ("0::/\n", None),
    ("", None),
    ("nonsense\n:::\n", None),
]
CONTAINERS = [
    (f"0::/machine.slice/libpod-{ID}.scope/container\n", ("podman", ID)),
    (f"0::/system.slice/vllm.service/libpod-payload-{ID}\n", ("podman", ID)),
    (f"4:memory:/libpod_parent/libpod-{ID}\n1:name=systemd:/libpod_parent/libpod-{ID}\n", ("podman", ID)),
    (f"0::/system.slice/docker-{ID}.scope\n", ("docker", ID)),
    (f"4:memory:/docker/{ID}\n1:name=systemd:/\n0::/\n", ("docker", ID)),
    (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope\n", ("kubernetes", ID)),
    (f"0::/kubepods/burstable/pod7/{ID}\n", ("kubernetes", ID)),
    (f"0::/kubepods.slice/crio-{ID}.scope\n", ("kubernetes", ID)),
    ("0::/kubepods.slice/other\n", ("kubernetes", None)),
    (f"0::/machine.slice/libpod-conmon-{ID}.scope\n", None),
    ("0::/system.slice/docker.service\n", None),
    ("0::/system.slice/vllm.service\n", None),
]


@pytest.mark.parametrize(("text", "unit"), UNITS)
def test_unit(text: str, unit: tuple[str, bool] | None) -> None:
    assert unit_of(text) == unit


@pytest.mark.parametrize(("text", "container"), CONTAINERS)
def test_container(text: str, container: tuple[str, str | None] | None) -> None:
    assert container_of(text) == container


SCOPE = f"0::/machine.slice/libpod-{ID}.scope/container\n"
CONMON = ("/usr/bin/conmon", "--api-version", "1", "-c", ID, "-n", "qwen", "--exit-dir", "/run/exits")


def who(tmp_path: Path, *processes: Process, environ: dict[str, str] | None = None) -> tuple[str | None, ...]:
    """Return unit, container and supervisor of the first process, whose parents are those that follow."""
    return seen(tmp_path, *processes, environ=environ)[:3]


def seen(tmp_path: Path, *processes: Process, environ: dict[str, str] | None = None) -> Supervised:
    build(tmp_path, processes, 1, "b")
    proc = Proc(tmp_path)
    stats = [proc.stat(p.pid) for p in processes]
    return supervised(proc, [(stat.pid, stat.comm) for stat in stats if stat], environ)


def test_podman_under_a_unit_is_told_by_conmon_s_cgroup(tmp_path: Path) -> None:
    engine = Process(9, 8, ("vllm", "serve"), cgroup=SCOPE)
    shell = Process(8, 7, ("sh",), cgroup=SCOPE)
    conmon = Process(7, 1, CONMON, cgroup="0::/system.slice/vllm-qwen.service\n")
    assert who(tmp_path, engine, shell, conmon) == ("vllm-qwen.service", "qwen", "systemd")


def test_podman_under_a_unit_is_told_by_conmon_s_parent(tmp_path: Path) -> None:
    engine = Process(9, 7, ("vllm", "serve"), cgroup=SCOPE)
    conmon = Process(7, 6, CONMON, cgroup=f"0::/machine.slice/libpod-conmon-{ID}.scope\n")
    podman = Process(6, 1, ("podman", "run", "x"), cgroup="0::/system.slice/vllm-qwen.service\n")
    assert who(tmp_path, engine, conmon, podman) == ("vllm-qwen.service", "qwen", "systemd")


@pytest.mark.parametrize("by_conmon", [False, True])
def test_podman_says_its_unit_in_the_environment(tmp_path: Path, by_conmon: bool) -> None:
    said = {"PODMAN_SYSTEMD_UNIT": "vllm-qwen.service", "OTHER": "x"}
    conmon = Process(7, 1, CONMON, said if by_conmon else {}, cgroup=f"0::/machine.slice/libpod-conmon-{ID}.scope\n")
    engine = Process(9, 7, ("vllm", "serve"), cgroup=SCOPE)
    got = who(tmp_path, engine, conmon, environ=None if by_conmon else said)
    assert got == ("vllm-qwen.service", "qwen", "systemd")


def test_podman_alone_supervises_by_its_name(tmp_path: Path) -> None:
    engine = Process(9, 7, ("vllm", "serve"), cgroup=SCOPE)
    conmon = Process(7, 1, CONMON, cgroup=f"0::/machine.slice/libpod-conmon-{ID}.scope\n")
    init = Process(1, 0, ("/sbin/init",), cgroup="0::/init.scope\n")
    assert who(tmp_path, engine, conmon, init) == (None, "qwen", "podman")


def test_a_unit_of_a_user_is_no_unit_of_the_system_s_bus(tmp_path: Path) -> None:
    user = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/vllm-qwen.service\n"
    conmon = Process(7, 1, CONMON, {"PODMAN_SYSTEMD_UNIT": "vllm-qwen.service"}, cgroup=user)
    engine = Process(9, 7, ("vllm", "serve"), cgroup=SCOPE)
    assert who(tmp_path, engine, conmon) == (None, "qwen", "podman")
    assert who(tmp_path / "alone", Process(9, 1, ("vllm", "serve"), cgroup=user)) == (None, None, "none")


def test_without_conmon_s_argument_there_is_no_name(tmp_path: Path) -> None:
    engine = Process(9, 7, ("vllm", "serve"), cgroup=SCOPE)
    assert who(tmp_path, engine, Process(7, 1, ("conmon", "-n"))) == (None, None, "podman")


def test_docker_and_kubernetes_and_nobody(tmp_path: Path) -> None:
    groups = {"d": f"0::/system.slice/docker-{ID}.scope\n", "k": f"0::/kubepods.slice/crio-{ID}.scope\n", "n": "0::/\n"}
    got = {name: who(tmp_path / name, Process(9, 1, ("vllm", "serve"), cgroup=text)) for name, text in groups.items()}
    assert got == {"d": (None, None, "docker"), "k": (None, None, "kubernetes"), "n": (None, None, "none")}


def test_a_vanished_process_has_no_supervisor(tmp_path: Path) -> None:
    assert supervised(Proc(tmp_path), [(9, "vllm"), (7, "conmon")], None) == (None, None, "podman", None)


OWN = "0::/user.slice/user-1000.slice/session-3.scope\n"
SHIM = "/usr/bin/containerd-shim-runc-v2"


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        (CONMON, (None, "qwen", "podman", ID)),
        (("conmon", "--cid", ID, "--name=qwen"), (None, "qwen", "podman", ID)),
        (("conmon", "-c", "short"), (None, None, "podman", None)),
        ((SHIM, "-namespace", "moby", "-id", ID, "-address", "/run/x.sock"), (None, None, "docker", ID)),
        ((SHIM, "-namespace", "k8s.io", "-id", ID), (None, None, "kubernetes", ID)),
        ((SHIM, "-namespace", "default", "-id", ID), (None, None, "none", None)),
    ],
)
def test_without_a_cgroup_of_its_own_a_container_is_told_by_what_watches_it(
    tmp_path: Path, parent: tuple[str, ...], expected: Supervised
) -> None:
    engine, watcher = Process(9, 7, ("vllm", "serve"), cgroup=OWN), Process(7, 1, parent, cgroup=OWN)
    assert seen(tmp_path, engine, watcher) == expected


def test_the_id_is_known_beside_a_unit(tmp_path: Path) -> None:
    engine = Process(9, 7, ("vllm", "serve"), cgroup=SCOPE)
    conmon = Process(7, 1, CONMON, cgroup="0::/system.slice/vllm-qwen.service\n")
    assert seen(tmp_path, engine, conmon).container_id == ID
