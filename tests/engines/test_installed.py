"""The release of a package that a process was started from."""

from __future__ import annotations

from pathlib import Path

import pytest

from budget_exporter.engines.installed import installed_version

VENV = ["/opt/venv/bin/python3", "/opt/venv/bin/vllm", "serve", "M"]


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    """Give a procfs in which process 7 has a root of its own, with a venv."""
    packages = tmp_path / "container/opt/venv/lib/python3.12/site-packages"
    for name in ("vllm-0.19.1+cu129.dist-info", "vllm", "vllm_flash_attn-2.7.dist-info", "vllm-router-1.dist-info"):
        (packages / name).mkdir(parents=True)
    proc = tmp_path / "proc/7"
    proc.mkdir(parents=True)
    (proc / "root").symlink_to(tmp_path / "container")
    return tmp_path / "proc"


def test_the_package_beside_the_program(procfs: Path) -> None:
    assert installed_version(procfs, 7, VENV) == "0.19.1+cu129"
    assert installed_version(procfs, 7, ["/opt/venv/bin/python3", "-m", "vllm.entrypoints.openai.api_server"])


def test_the_script_s_prefix_before_the_interpreter_s(procfs: Path) -> None:
    usr = procfs / "7/root/usr/local/lib/python3.12/dist-packages/vllm-0.18.0.dist-info"
    usr.mkdir(parents=True)
    assert installed_version(procfs, 7, ["/opt/venv/bin/python3", "/usr/local/bin/vllm", "serve"]) == "0.18.0"


def test_an_absolute_link_is_followed_in_the_process_s_own_root(procfs: Path) -> None:
    (procfs / "7/root/srv").mkdir()
    (procfs / "7/root/srv/current").symlink_to("/opt/venv")
    assert installed_version(procfs, 7, ["/srv/current/bin/vllm", "serve"]) == "0.19.1+cu129"


def test_two_releases_are_none(procfs: Path) -> None:
    (procfs / "7/root/opt/venv/lib/python3.12/site-packages/vllm-0.20.0.dist-info").mkdir()
    assert installed_version(procfs, 7, VENV) is None


@pytest.mark.parametrize(
    "argv", [[], ["vllm", "serve"], ["/opt/venv/vllm"], ["/none/bin/vllm"], ["/opt/\0/bin/vllm"], ["/bin/vllm"]]
)
def test_what_cannot_be_told_is_none(procfs: Path, argv: list[str]) -> None:
    assert installed_version(procfs, 7, argv) is None


def test_a_process_that_is_gone_has_none(procfs: Path) -> None:
    assert installed_version(procfs, 8, VENV) is None
