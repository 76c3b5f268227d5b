"""An engine's own files, read as the engine sees them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from budget_exporter.demo.procfs_tree import Process, build
from budget_exporter.engines.procfs import read_config
from budget_exporter.errors import SourceDenied, SourceError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of process 9 in a tree at ``tmp_path/proc``."""
    rootfs = tmp_path / "rootfs"
    (rootfs / "srv" / "conf").mkdir(parents=True)
    (rootfs / "srv" / "conf" / "a.yaml").write_text("a: 1\n")
    build(tmp_path / "proc", [Process(9, 1, ("x",), cwd="/srv", root=rootfs)], 1, "b")
    return rootfs


def read(root: Path, path: str, cwd: str | None = "/srv") -> str:
    return read_config(root.parent / "proc", 9, cwd, path)


@pytest.mark.parametrize(
    "path", ["conf/a.yaml", "./conf/../conf/a.yaml", "/srv/conf/a.yaml", "../../../srv/conf/a.yaml"]
)
def test_paths_are_those_of_the_engine(root: Path, path: str) -> None:
    assert read(root, path) == "a: 1\n"


def test_a_link_stays_inside_the_engine_s_root(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("secret")
    (root / "srv" / "absolute.yaml").symlink_to("/srv/conf/a.yaml")
    (root / "srv" / "out.yaml").symlink_to("../../secret.yaml")
    (root / "srv" / "directory").symlink_to("/srv/conf")
    assert read(root, "absolute.yaml") == "a: 1\n"
    assert read(root, "directory/a.yaml") == "a: 1\n"
    with pytest.raises(SourceError, match="No such file"):
        read(root, "out.yaml")


def test_what_is_no_plain_small_text_is_refused(root: Path) -> None:
    os.mkfifo(root / "srv" / "fifo")
    (root / "srv" / "loop").symlink_to("loop")
    (root / "srv" / "large").write_bytes(b"a" * ((1 << 20) + 1))
    (root / "srv" / "latin").write_bytes(b"\xe9")
    reasons = {"fifo": "plain file", "conf": "directory", "loop": "symbolic links", "large": "1 MiB", "latin": "UTF-8"}
    for name, why in reasons.items():
        with pytest.raises(SourceError, match=why):
            read(root, name)


def test_a_file_the_kernel_makes_up_is_not_read(root: Path) -> None:
    # As /proc/kmsg: what is read of it is taken from who it is for.
    assert Path("/proc/self/stat").read_text() != ""
    assert read_config(Path("/proc"), os.getpid(), "/", "/proc/self/stat") == ""


def test_an_unknown_working_directory_is_a_missing_permission(root: Path) -> None:
    with pytest.raises(SourceDenied, match="CAP_SYS_PTRACE"):
        read(root, "conf/a.yaml", None)


def test_below_a_chroot_the_directory_is_told_with_the_root_s_own_path(root: Path) -> None:
    assert read(root, "conf/a.yaml", f"{root}/srv") == "a: 1\n"


def test_a_process_that_has_gone(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        read_config(tmp_path, 9, "/", "a.yaml")
