"""Engines found in synthetic process trees of vLLM's shape."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from budget_exporter.demo.procfs_tree import Process, add, build, remove, vllm_engine
from budget_exporter.engines._proc import Proc
from budget_exporter.engines.procfs import ProcfsSource, source
from budget_exporter.errors import SourceError
from budget_exporter.facts.engine import EngineSighting, ProcessKey, Worker
from budget_exporter.roots import Roots

ARGV = ("/opt/venv/bin/python3", "/opt/venv/bin/vllm", "serve", "/models/flash", "-tp", "2")
ENVIRON = {"PATH": "/bin", "HIP_VISIBLE_DEVICES": "0,1", "HF_TOKEN": "hf_secret"}
UNIT = "0::/system.slice/vllm-qwen.service\n"
BTIME, BOOT = 1_790_000_000, "11112222-3333-4444-5555-666677778888"
INIT = Process(1, 0, ("/sbin/init",), cgroup="0::/init.scope\n", start_ticks=1)


def tree(tmp_path: Path, *processes: Process) -> ProcfsSource:
    build(tmp_path, [INIT, *processes], BTIME, BOOT)
    return source(Roots(procfs=tmp_path))


def only(finder: ProcfsSource) -> EngineSighting:
    sightings, faults = finder.find()
    assert faults == []
    (sighting,) = sightings
    return sighting


def test_a_tensor_parallel_engine_is_read_from_the_process_that_kept_its_words(tmp_path: Path) -> None:
    engine = vllm_engine(4000, ARGV, ENVIRON, ranks=2, cgroup=UNIT, start_ticks=250_000, cwd="/srv")
    got = only(tree(tmp_path, *engine))
    assert replace(got, model_files=None) == EngineSighting(
        source="procfs",
        main=ProcessKey(4000, 250_000, BOOT),
        started_at=BTIME + 2500.0,
        argv=ARGV,
        environ={"HIP_VISIBLE_DEVICES": "0,1"},
        workers=(
            Worker(4001, "python3"),
            Worker(4002, "VLLM::EngineCore"),
            Worker(4003, "VLLM::Worker_TP0", 0),
            Worker(4004, "VLLM::Worker_TP1", 1),
        ),
        cwd="/srv",
        unit="vllm-qwen.service",
        supervisor="systemd",
    )


def test_one_rank_has_no_worker_but_its_core(tmp_path: Path) -> None:
    got = only(tree(tmp_path, *vllm_engine(4000, ARGV[:4], {})))
    assert [w.title for w in got.workers] == ["python3", "VLLM::EngineCore"]
    assert got.environ == {}


def test_two_engines_are_two_and_their_workers_do_not_mix(tmp_path: Path) -> None:
    finder = tree(tmp_path, *vllm_engine(4000, ARGV, {}, ranks=2), *vllm_engine(5000, ARGV[:4], {}))
    sightings, faults = finder.find()
    assert [(s.main.pid, [w.pid for w in s.workers]) for s in sightings] == [
        (4000, [4001, 4002, 4003, 4004]),
        (5000, [5001, 5002]),
    ]
    assert faults == []


def test_wrappers_and_bystanders_are_no_engines(tmp_path: Path) -> None:
    shell = Process(3900, 1, ("sh", "-c", "vllm serve /models/flash"))
    uv = Process(3950, 3900, ("uv", "run", "vllm", "serve", "/models/flash"))
    grep = Process(6000, 1, ("grep", "vllm", "serve"))
    bench = Process(6001, 1, ("python3", "/opt/venv/bin/vllm", "bench", "serve"))
    finder = tree(tmp_path, shell, uv, *vllm_engine(4000, ARGV, {}, ranks=2, ppid=3950), grep, bench)
    assert only(finder).main.pid == 4000


def test_a_forked_child_that_still_shows_the_command_line_is_a_worker(tmp_path: Path) -> None:
    engine = vllm_engine(4000, ARGV, {})
    fork = Process(4010, 4002, ARGV, comm="vllm")
    assert [w.pid for w in only(tree(tmp_path, *engine, fork)).workers] == [4001, 4002, 4010]


def test_zombies_kernel_threads_and_empty_command_lines_do_not_matter(tmp_path: Path) -> None:
    finder = tree(
        tmp_path,
        Process(2, 0, comm="kthreadd", kernel=True),
        Process(3, 2, comm="kworker/0:1-mm_percpu", kernel=True),
        Process(4000, 1, ARGV, comm="vllm", state="Z"),
        Process(4100, 1, comm="starting"),
        *vllm_engine(5000, ARGV, {}),
        Process(5003, 5002, comm="VLLM::Worker", state="Z"),
    )
    got = only(finder)
    assert got.main.pid == 5000
    assert [w.pid for w in got.workers] == [5001, 5002]


def test_a_name_with_blanks_and_parentheses(tmp_path: Path) -> None:
    build(tmp_path, [Process(7, 1, ("x",), comm="a) R 9 (b", start_ticks=77)], BTIME, BOOT)
    stat = Proc(tmp_path).stat(7)
    assert stat is not None
    assert (stat.comm, stat.state, stat.ppid, stat.start_ticks) == ("a) R 9 (b", "S", 1, 77)


@pytest.mark.parametrize("text", ["", "7 (x) S", "7 (x", "nonsense", "7 (x) S one 2 3 4 5 6 7 8 9 10"])
def test_a_stat_line_that_makes_no_sense_is_no_process(tmp_path: Path, text: str) -> None:
    finder = tree(tmp_path, Process(7, 1, ("x",)))
    (tmp_path / "7" / "stat").write_text(text)
    assert finder.find() == ([], [])


def test_a_reused_pid_is_another_engine(tmp_path: Path) -> None:
    finder = tree(tmp_path, *vllm_engine(4000, ARGV, ENVIRON, start_ticks=1000))
    before = only(finder)
    remove(tmp_path, 4000)
    assert finder.find() == ([], [])
    add(tmp_path, replace(vllm_engine(4000, ARGV[:4], {}, start_ticks=9000)[0]))
    after = only(finder)
    assert (before.main, after.main) == (ProcessKey(4000, 1000, BOOT), ProcessKey(4000, 9000, BOOT))
    assert (after.argv, after.environ) == (ARGV[:4], {})


def test_a_shell_that_becomes_the_server_is_found(tmp_path: Path) -> None:
    shell = Process(4000, 1, ("bash", "serve.sh"), start_ticks=1000)
    finder = tree(tmp_path, shell)
    assert finder.find() == ([], [])
    remove(tmp_path, 4000)
    add(tmp_path, replace(shell, argv=ARGV, comm="vllm"))
    assert only(finder).main == ProcessKey(4000, 1000, BOOT)


def test_a_python_that_becomes_the_server_is_found_though_addresses_are_hidden(tmp_path: Path) -> None:
    launcher = Process(4000, 1, ("python3", "launch.py"), comm="python3", start_ticks=1000)
    finder = tree(tmp_path, launcher)

    def hide() -> None:
        path = tmp_path / "4000" / "stat"
        fields = path.read_text().split()
        fields[25], fields[47], fields[49] = "1", "0", "0"
        path.write_text(" ".join(fields))

    hide()
    assert finder.find() == ([], [])
    remove(tmp_path, 4000)
    add(tmp_path, replace(launcher, argv=ARGV))
    hide()
    assert only(finder).main.pid == 4000


def test_started_at_stays_though_the_clock_is_set(tmp_path: Path) -> None:
    finder = tree(tmp_path, *vllm_engine(4000, ARGV, {}))
    before = only(finder).started_at
    build(tmp_path, [], BTIME + 1, BOOT)
    assert only(finder).started_at == before


def test_an_overwritten_environment_is_unknown(tmp_path: Path) -> None:
    main = replace(vllm_engine(4000, ARGV, {})[0])
    finder = tree(tmp_path, main)
    (tmp_path / "4000" / "environ").write_bytes(b"\0" * 40 + b"HIP_VISIBLE_DEVICES=0\0")
    (sighting,), (fault,) = finder.find()
    assert sighting.environ is None
    assert "overwritten" in fault


UNPRIVILEGED = """
import json, os, sys
from pathlib import Path
from budget_exporter.engines.procfs import source
from budget_exporter.roots import Roots
finder = source(Roots(procfs=Path(sys.argv[1])))
if os.getuid() == 0:
    os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
sightings, faults = finder.find()
print(json.dumps([[s.environ for s in sightings], faults]))
"""


def test_without_permission_the_engine_is_shown_and_the_capability_named() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        tree(Path(name), *vllm_engine(4000, ARGV, ENVIRON, ranks=2))
        for pid in range(4000, 4005):
            Path(name, str(pid), "environ").chmod(0)
        run = subprocess.run([sys.executable, "-c", UNPRIVILEGED, name], capture_output=True, text=True, check=True)
    environs, faults = json.loads(run.stdout)
    assert environs == [None]
    assert faults == [
        f"{name}/4000/environ of a vLLM server: permission denied, needs CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
    ]


def test_an_environment_that_could_not_be_read_is_tried_again(tmp_path: Path) -> None:
    finder = tree(tmp_path, vllm_engine(4000, ARGV, ENVIRON)[0])
    kept = (tmp_path / "4000" / "environ").read_bytes()
    (tmp_path / "4000" / "environ").write_bytes(b"\0" + kept)
    assert finder.find()[0][0].environ is None
    (tmp_path / "4000" / "environ").write_bytes(kept)
    assert only(finder).environ == {"HIP_VISIBLE_DEVICES": "0,1"}


def test_the_pid_that_the_log_prints_in_a_container(tmp_path: Path) -> None:
    main = replace(vllm_engine(4000, ARGV, {})[0], inner_pid=17)
    assert only(tree(tmp_path, main)).inner_pid == 17
    assert only(tree(tmp_path / "host", vllm_engine(4000, ARGV, {})[0])).inner_pid is None


def test_no_tree_is_an_error_and_no_absence_of_engines(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no/stat: cannot be read or has no btime"):
        source(Roots(procfs=tmp_path / "no")).find()
    (tmp_path / "stat").write_text("cpu 0\n")
    with pytest.raises(SourceError, match="btime"):
        source(Roots(procfs=tmp_path)).find()


def test_a_process_half_gone_is_not_half_read(tmp_path: Path) -> None:
    finder = tree(tmp_path, *vllm_engine(4000, ARGV, {}, ranks=2))
    for name in ("cmdline", "environ", "cgroup", "cwd", "status"):
        (tmp_path / "4000" / name).unlink()
    assert finder.find() == ([], [])


def test_processes_come_and_go_while_they_are_read(tmp_path: Path) -> None:
    finder = tree(tmp_path, *vllm_engine(4000, ARGV, ENVIRON, ranks=2, cgroup=UNIT))
    stop = threading.Event()

    def churn() -> None:
        for round_ in range(10_000):
            if stop.is_set():
                return
            pid = 7000 + round_ % 5
            add(tmp_path, Process(pid, 4000, ARGV, ENVIRON, start_ticks=round_))
            remove(tmp_path, pid)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(150):
            got = only(finder)
            assert (got.main.pid, got.environ) == (4000, {"HIP_VISIBLE_DEVICES": "0,1"})
    finally:
        stop.set()
        thread.join()


def test_a_command_line_is_read_once_while_the_program_stays(tmp_path: Path) -> None:
    finder = tree(tmp_path, *vllm_engine(4000, ARGV, {}, ranks=2))
    first = only(finder)
    for pid in range(4000, 4005):
        (tmp_path / str(pid) / "cmdline").unlink()
    assert only(finder) == first
