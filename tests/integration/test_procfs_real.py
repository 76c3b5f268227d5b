"""The finder on this machine's own /proc: real processes, one of them wiped as setproctitle wipes vLLM's workers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from budget_exporter.engines.arguments import shape
from budget_exporter.engines.procfs import ProcfsSource, read_config, source
from budget_exporter.facts.engine import EngineSighting
from budget_exporter.roots import Roots
from tests.integration.processes import until

VLLM = """
import ctypes, os, sys, time

def wipe(title):
    # As setproctitle does it: write over the arguments and on over the environment.
    fields = open("/proc/self/stat").read().rpartition(")")[2].split()
    start, end, after = int(fields[45]), int(fields[46]), int(fields[48])
    ctypes.memset(start, 0, after - start)
    ctypes.memmove(start, title, min(len(title), end - start - 1))
    ctypes.CDLL(None).prctl(15, ctypes.c_char_p(title))

def child(title, below=()):
    if os.fork() == 0:
        for each in below:
            child(each)
        wipe(title)
        time.sleep(600)

assert sys.argv[1] == "serve"
child(b"VLLM::EngineCore", [b"VLLM::Worker_TP0", b"VLLM::Worker_TP1"])
time.sleep(600)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Give a function that starts a program of this name with these arguments; its whole group is ended afterwards."""
    running: list[subprocess.Popen[bytes]] = []

    def run(name: str, *args: str, text: str = VLLM, through: tuple[str, ...] = ()) -> int:
        script = tmp_path / name
        script.write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}", encoding="utf-8")
        script.chmod(0o755)
        environ = {
            "PATH": os.environ["PATH"],
            "HIP_VISIBLE_DEVICES": "1,0",
            "HF_TOKEN": "secret",
            "MARK": str(tmp_path),
        }
        running.append(
            subprocess.Popen([*through, str(script), *args], env=environ, cwd=tmp_path, start_new_session=True)
        )
        return running[-1].pid

    yield run
    for process in running:
        os.killpg(process.pid, 9)
        process.wait(30)


def mine(finder: ProcfsSource, tmp_path: Path) -> list[EngineSighting]:
    return [s for s in finder.find()[0] if str(tmp_path / "vllm") in s.argv]


def test_an_engine_is_found_with_its_wiped_workers(start: Callable[..., int], tmp_path: Path) -> None:
    (tmp_path / "engine.yaml").write_text("max-model-len: 32K\ngpu-memory-utilization: 0.5\n", encoding="utf-8")
    before = time.time()
    pid = start("vllm", "serve", "/models/flash", "-tp", "2", "--config", "engine.yaml")
    finder = source(Roots())
    titles = ["VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1"]
    got = until(
        lambda: next((s for s in mine(finder, tmp_path) if sorted(w.title for w in s.workers) == titles), None),
        "three processes below the engine have given themselves titles",
    )
    assert got.main.pid == pid
    assert got.argv[1:] == (str(tmp_path / "vllm"), "serve", "/models/flash", "-tp", "2", "--config", "engine.yaml")
    assert got.environ == {"HIP_VISIBLE_DEVICES": "1,0"}
    assert {w.title: w.rank for w in got.workers} == {titles[0]: None, titles[1]: 0, titles[2]: 1}
    assert got.cwd == str(tmp_path)
    # btime is whole seconds, and the clock may be set between the boot and now.
    assert abs(got.started_at - before) < 5
    read = shape(got.argv, got.environ, lambda path: read_config(Path("/proc"), pid, got.cwd, path))
    assert (read.faults, read.max_model_len, read.utilization, read.tensor_parallel_size) == ((), 32768, 0.5, 2)
    core = next(w for w in got.workers if w.rank is None)
    wiped = Path(f"/proc/{core.pid}/environ").read_bytes()
    assert b"HIP_VISIBLE_DEVICES" not in wiped


def test_wrappers_count_once_and_bystanders_never(start: Callable[..., int], tmp_path: Path) -> None:
    start("vllm", "serve", "/models/flash", through=("sh", "-c", '"$0" "$@"; true'))
    start("other", "vllm", "serve", text="import time\ntime.sleep(600)\n")
    finder = source(Roots())
    found = until(lambda: mine(finder, tmp_path), "the engine behind a shell")
    assert len(found) == 1
    assert found[0].argv[1] == str(tmp_path / "vllm")


def test_an_engine_that_ends_is_gone_and_a_new_one_is_another(start: Callable[..., int], tmp_path: Path) -> None:
    finder = source(Roots())
    first = start("vllm", "serve", "/models/flash")
    before = until(lambda: mine(finder, tmp_path), "the first engine")[0].main
    os.killpg(first, 9)
    until(lambda: not mine(finder, tmp_path), "the first engine has gone")
    second = start("vllm", "serve", "/models/flash")
    after = until(lambda: mine(finder, tmp_path), "the second engine")[0].main
    assert (before.pid, after.pid) == (first, second)
    assert before != after
    assert before.boot_id == after.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
