"""What an engine in a pod is called, from the kubelet's links and from its own environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from budget_exporter.demo.procfs_tree import Process, build
from budget_exporter.engines import procfs
from budget_exporter.engines._pods import PodNames
from budget_exporter.engines.supervisor import Supervised
from budget_exporter.facts.engine import EngineSighting
from budget_exporter.roots import Roots

ID = "0123456789abcdef" * 4
POD = f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope\n"


def found(tmp_path: Path, cgroup: str, environ: dict[str, str] | None = None, link: str = "") -> EngineSighting:
    build(tmp_path / "proc", [Process(9, 1, ("vllm", "serve", "m"), environ or {}, cgroup=cgroup)], 1, "b")
    (tmp_path / "var/log/containers").mkdir(parents=True)
    if link:
        (tmp_path / "var/log/containers" / link).symlink_to("/var/log/pods/x/y/0.log")
    (sighting,), faults = procfs.source(Roots(procfs=tmp_path / "proc", rootfs=tmp_path)).find()
    assert faults == []
    return sighting


def test_the_kubelet_s_link_names_the_container(tmp_path: Path) -> None:
    sighting = found(tmp_path, POD, link=f"qwen-7d9f_llm_vllm-server-{ID}.log")
    assert (sighting.container, sighting.supervisor, sighting.container_id) == ("vllm-server", "kubernetes", ID)


@pytest.mark.parametrize("link", ["", f"qwen-{ID}.log", f"qwen_llm_Not A Name-{ID}.log", f"a_b_c-{ID[::-1]}.log"])
def test_without_a_link_there_is_no_name(tmp_path: Path, link: str) -> None:
    sighting = found(tmp_path, POD, link=link)
    assert (sighting.container, sighting.supervisor) == (None, "kubernetes")


def test_in_a_shared_pid_namespace_the_environment_tells(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "CONTAINER_NAME": "vllm"}
    sighting = found(tmp_path, "0::/../other\n", environ)
    assert (sighting.container, sighting.supervisor, sighting.environ) == ("vllm", "kubernetes", {})


def test_a_variable_of_that_name_outside_a_pod_is_somebody_else_s(tmp_path: Path) -> None:
    sighting = found(tmp_path, "0::/\n", {"CONTAINER_NAME": "vllm"})
    assert (sighting.container, sighting.supervisor) == (None, "none")


def test_what_is_no_name_is_none(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "CONTAINER_NAME": "a\nb"}
    assert found(tmp_path, "0::/\n", environ).container is None


def test_a_name_is_kept_while_its_container_runs(tmp_path: Path) -> None:
    names, by = PodNames(tmp_path), Supervised(None, None, "kubernetes", ID)
    assert names.told(by, None).container is None
    link = tmp_path / f"var/log/containers/p_n_c-{ID}.log"
    link.parent.mkdir(parents=True)
    link.symlink_to("x")
    assert names.told(by, None).container == "c"
    link.unlink()
    assert names.told(by, None).container == "c"
    names.keep(frozenset())
    assert names.told(by, None).container is None
