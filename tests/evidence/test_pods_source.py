"""Logs of pods, on trees as a kubelet leaves them."""

from __future__ import annotations

import asyncio
import gzip
import os
from contextlib import aclosing
from pathlib import Path

import pytest

from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.evidence import LogTarget
from budget_exporter.evidence.boot import BootReader
from budget_exporter.evidence.pods import PodTail, source
from budget_exporter.roots import Roots

POD = LogTarget("tiny", pod="serving/vllm-qwen-*/vllm")
UID, OTHER = "1f0c7a52-5a3f-4a8e-9d2c-1d1b8f0e9a11", "9d1b8f0e-9a11-4a8e-9d2c-1f0c7a525a3f"
IDENTITY = "c0ffee" * 10 + "c0ff"


def cri(text: str, tag: str = "F", stream: str = "stdout", second: int = 29) -> bytes:
    return f"2026-02-03T10:00:{second:02}.297966219Z {stream} {tag} {text}\n".encode()


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    path = tmp_path / "var/log/pods"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def directory(pods: Path) -> Path:
    return made(pods, f"serving_vllm-qwen-7d9f_{UID}")


def made(pods: Path, name: str) -> Path:
    path = pods / name / "vllm"
    path.mkdir(parents=True)
    return path


def write(path: Path, *lines: bytes) -> None:
    with path.open("ab") as file:
        file.write(b"".join(lines))


def tail(pods: Path, cursor: str | None = None, target: LogTarget = POD) -> PodTail:
    return PodTail(pods.parents[2], target, cursor, 65536)


def texts(reader: PodTail) -> list[str]:
    """Return what comes up to the end of what is there, without stamps."""
    found: list[str] = []
    quiet = 0
    while quiet < 2:  # going over to the next run takes a look without a line
        records = reader.read()
        quiet = 0 if records else quiet + 1
        for record in records:
            found += [line.split(b" ", 3)[3].decode() for line in record.data.split(b"\n") if line]
    return found


def test_the_newest_run_is_read_with_what_was_rotated_of_it(pods: Path, directory: Path) -> None:
    write(directory / "0.log", cri("of the run before"))
    packed = directory / "1.log.20260203-090000.gz"
    packed.write_bytes(gzip.compress(cri("one")))
    write(directory / "1.log.20260203-100000", cri("two"))
    write(directory / "1.log", cri("three"))
    os.utime(packed)  # packing touched it last
    assert texts(tail(pods)) == ["one", "two", "three"]


def test_a_restarted_container_is_followed_to_its_next_log_and_nothing_of_the_last_is_lost(
    pods: Path, directory: Path
) -> None:
    write(directory / "0.log", cri("one"))
    reader = tail(pods)
    assert texts(reader) == ["one"]
    write(directory / "0.log", cri("last words"))
    write(directory / "1.log", cri("two"))
    assert texts(reader) == ["last words", "two"]
    write(directory / "2.log", cri("three"))
    (directory / "0.log").unlink()
    assert texts(reader) == ["three"]


def test_a_rotation_while_it_is_followed_loses_nothing(pods: Path, directory: Path) -> None:
    log = directory / "0.log"
    write(log, cri("one"))
    reader = tail(pods)
    assert texts(reader) == ["one"]
    write(log, cri("two"))
    log.rename(directory / "0.log.20260203-100029")
    write(log, cri("three"))
    assert texts(reader) == ["two", "three"]


def test_a_pod_made_anew_under_its_name_is_followed_on(pods: Path, directory: Path) -> None:
    write(directory / "3.log", cri("one"))
    reader = tail(pods)
    assert texts(reader) == ["one"]
    write(directory / "3.log", cri("two"))
    anew = made(pods, f"serving_vllm-qwen-7d9f_{OTHER}")
    write(anew / "0.log", cri("three"))
    os.utime(anew.parent, (os.stat(directory.parent).st_mtime + 1,) * 2)  # noqa: PTH116 - beside os.utime
    assert texts(reader) == ["two", "three"]


def test_going_on_by_cursor_neither_loses_nor_repeats(pods: Path, directory: Path) -> None:
    write(directory / "0.log", cri("one"))
    (record,) = tail(pods).read()
    write(directory / "0.log", cri("two"))
    (directory / "0.log").rename(directory / "0.log.20260203-100029")
    write(directory / "0.log", cri("three"))
    write(directory / "1.log", cri("four"))
    assert texts(tail(pods, record.cursor)) == ["two", "three", "four"]
    (directory / "0.log").unlink()
    assert texts(tail(pods, record.cursor)) == ["four"]


@pytest.mark.parametrize("cursor", ["", "x", "a/b/1|x", "../../etc/0|1:2:3", "a|1"])
def test_a_cursor_that_means_nothing_any_more_starts_at_the_newest_run(
    pods: Path, directory: Path, cursor: str
) -> None:
    write(directory / "0.log", cri("one"))
    assert texts(tail(pods, cursor)) == ["one"]


def test_a_container_is_found_by_its_id_and_read_through_the_runtime_s_link(pods: Path, directory: Path) -> None:
    """As docker does it: the log lies below its own directory, and both links are absolute."""
    root = pods.parents[2]
    real = root / "var/lib/docker/containers/x/x-json.log"
    real.parent.mkdir(parents=True)
    real.write_bytes(cri("one"))
    (directory / "0.log").symlink_to("/var/lib/docker/containers/x/x-json.log")
    links = root / "var/log/containers"
    links.mkdir()
    link = links / f"vllm-qwen-7d9f_serving_vllm-{IDENTITY}.log"
    link.symlink_to(f"/var/log/pods/{directory.parent.name}/vllm/0.log")
    assert texts(tail(pods, target=LogTarget("tiny", container_id=IDENTITY))) == ["one"]
    with pytest.raises(SourceError, match="no pod unknown below"):
        tail(pods, target=LogTarget("tiny", container_id="unknown")).read()


def test_patterns_that_fit_several_pods_are_an_error_that_names_them(pods: Path, directory: Path) -> None:
    write(directory / "0.log", cri("one"))
    write(made(pods, f"serving_vllm-qwen-8c1d_{OTHER}") / "0.log", cri("another"))
    with pytest.raises(SourceError, match=r"several pods are .*: serving_vllm-qwen-7d9f, serving_vllm-qwen-8c1d"):
        tail(pods).read()


@pytest.mark.parametrize("pod", [None, "vllm", "a/b", "a//c", "a/b/c/d"])
def test_a_target_that_is_no_pod_is_an_error(pods: Path, pod: str | None) -> None:
    with pytest.raises(SourceError, match="no NAMESPACE/POD/CONTAINER given for the log of tiny"):
        tail(pods, target=LogTarget("tiny", pod=pod)).read()


def test_a_host_without_pods_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="var/log/pods: No such file"):
        PodTail(tmp_path, POD, None, 100).read()


def test_pods_that_may_not_be_read_name_the_permission(pods: Path) -> None:
    pods.chmod(0)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(SourceDenied, match=r"Permission denied; needs CAP_DAC_READ_SEARCH"):
            tail(pods).read()
    finally:
        os.seteuid(was)
        pods.chmod(0o755)


async def test_parts_of_a_line_are_put_together_and_their_times_kept(pods: Path, directory: Path) -> None:
    """The container runtime writes what is longer than its buffer in parts; stderr may come in between."""
    write(
        directory / "0.log",
        cri("INFO 02-03 10:00:22 [gpu_worker.py:436] Available KV cache ", "P"),
        cri("noise", stream="stderr"),
        cri("memory: 6.87 GiB"),
        cri("INFO 02-03 10:00:23 [core.py:1] Application startup complete.", second=31),
    )
    batches = source(Roots(rootfs=pods.parents[2]), poll=0.01).batches(POD, None)
    reader = BootReader()
    async with aclosing(batches), asyncio.timeout(10):  # type: ignore[type-var]
        while batch := await anext(batches):
            reader.feed(batch)
    report = reader.report()
    assert report.common.kv_available is not None
    assert (report.phase, report.phase_at) == ("serving", 1770112831.297966)
