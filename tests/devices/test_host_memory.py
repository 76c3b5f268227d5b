"""The host's memory by NUMA node, from trees and from this machine itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from budget_exporter.devices import host
from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.facts.device import DeviceReport, DeviceSample, MemoryLimit
from budget_exporter.roots import Roots
from budget_exporter.units import GIB, KIB, MIB

FIGURES = {
    "MemTotal": 64 * GIB // KIB,
    "MemFree": 10 * GIB // KIB,
    "MemUsed": 54 * GIB // KIB,
    "Active(file)": 5 * GIB // KIB,
    "Inactive(file)": 7 * GIB // KIB,
    "Shmem": 3 * GIB // KIB,
    "SReclaimable": 2 * GIB // KIB,
    "HugePages_Total": 0,
}
USED = 40 * GIB
"""64 GiB without 10 free, 12 of page cache and 2 that slabs give back; shared memory counts as used."""


def meminfo(number: int | None = 0, **figures: int | str | None) -> str:
    """Return a meminfo of node ``number``; a figure of None leaves its line out."""
    said = FIGURES | {name.replace("_file", "(file)"): figure for name, figure in figures.items()}
    start = "" if number is None else f"Node {number} "
    return "".join(
        f"{start}{name}:{figure!s:>16}{'' if name.startswith('Huge') else ' kB'}\n"
        for name, figure in said.items()
        if figure is not None
    )


class Host:
    """A tree with two nodes and the source that reads it, with time in hand."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.now = 1000.0
        self.sysfs, self.procfs = folder / "sys", folder / "proc"
        self.nodes = self.sysfs / "devices/system/node"
        self.sysfs.mkdir()
        for number in range(nodes):
            self.node(number).parent.mkdir(parents=True)
            self.node(number).write_text(meminfo(number))
            (self.node(number).parent / "cpulist").write_text(f"{number * 4}-{number * 4 + 3}\n")
            (self.nodes / "online").write_text(f"0-{nodes - 1}\n")
        (self.procfs / "sys/kernel").mkdir(parents=True)
        (self.procfs / "sys/kernel/osrelease").write_text("6.12.0\n")
        (self.procfs / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654\nflags\t\t: fpu\n")
        roots = Roots(sysfs=self.sysfs, procfs=self.procfs)
        self.source = host.source(roots, clock=lambda: 1.8e9, monotonic=lambda: self.now)

    def node(self, number: int) -> Path:
        return self.nodes / f"node{number}/meminfo"

    def process(self, pid: int, files: Mapping[str, str]) -> Path:
        folder = self.procfs / str(pid)
        for name, text in {"comm": "VLLM::Worker\n", **files}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return folder

    def read(self, *interest: int, after: float = 1.0) -> DeviceReport:
        self.now += after
        return self.source.read(frozenset(interest))


@pytest.fixture
def two(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def one(tmp_path: Path) -> Host:
    return Host(tmp_path, nodes=1)


def keys(report: DeviceReport) -> list[str]:
    return [sample.identity.device for sample in report.devices]


def figures(sample: DeviceSample) -> tuple[int, int]:
    return sample.memory.size, sample.memory.used


def test_two_nodes(two: Host) -> None:
    report = two.read()
    assert (report.faults, keys(report)) == ((), ["cpu/node0", "cpu/node1"])
    assert [figures(sample) for sample in report.devices] == [(64 * GIB, USED)] * 2
    identity = report.devices[1].identity
    assert (identity.platform, identity.model, identity.driver) == ("host", "AMD EPYC 9654", "6.12.0")
    assert (identity.order, identity.cpus, identity.sampler) == (1, "4-7", "node_meminfo")
    assert report.devices[0].memory.at == 1.8e9


def test_page_cache_is_not_used_and_shared_memory_is(one: Host) -> None:
    one.node(0).write_text(meminfo(MemFree=0, Active_file=30 * MIB, Inactive_file=22 * MIB))
    assert figures(one.read().devices[0]) == (64 * GIB, 10 * GIB)


def test_memory_that_is_plugged_in_makes_no_other_device(one: Host) -> None:
    before = one.read().devices[0]
    one.node(0).write_text(meminfo(MemTotal=65 * MIB))
    after = one.read().devices[0]
    assert figures(after) == (65 * GIB, 41 * GIB)
    assert after.identity == before.identity
    assert after.identity.uuid is not None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "empty"),
        ("\n", "empty"),
        ("garbage", "no line MemTotal"),
        (meminfo(MemTotal=None), "no line MemTotal"),
        (meminfo(SReclaimable=None), "no line SReclaimable"),
        (meminfo()[: meminfo().index("SReclaimable") + 20], "no line SReclaimable"),
        (meminfo(MemFree="-5"), "MemFree: not a number of kB: '-5'"),
        (meminfo(MemFree="1e6"), "MemFree: not a number of kB: '1e6'"),
        (meminfo(MemTotal="9" * 40), f"MemTotal: not a number of kB: '{'9' * 24}'"),
        (meminfo(MemFree=65 * MIB), f"{79 * GIB} bytes are free or can be freed, of {64 * GIB}"),
        (meminfo(MemFree="٣"), "MemFree: not a number of kB: '٣'"),
    ],
    ids=str,
)
def test_a_node_whose_figures_cannot_be_right_is_no_sample_and_a_fault(two: Host, text: str, sentence: str) -> None:
    two.read()
    two.node(0).write_text(text)
    report = two.read()
    assert (report.faults, keys(report)) == ((f"cpu/node0: meminfo: {sentence}",), ["cpu/node1"])
    two.node(0).write_text(meminfo(0))
    assert (two.read().faults, len(two.read().devices)) == ((), 2)


def test_a_node_without_memory_is_no_device_and_no_fault(two: Host) -> None:
    two.node(1).write_text(meminfo(1, **dict.fromkeys(("MemTotal", "MemFree", "Active_file", "Inactive_file"), 0)))
    two.node(1).write_text(two.node(1).read_text().replace(str(FIGURES["SReclaimable"]), "0"))
    assert (two.read().faults, keys(two.read())) == ((), ["cpu/node0"])


def test_a_node_that_is_no_longer_there_ends(two: Host) -> None:
    two.read()
    two.node(1).unlink()
    assert (two.read().faults, keys(two.read())) == ((), ["cpu/node0"])
    (two.node(1).parent / "cpulist").unlink()
    two.node(1).parent.rmdir()
    assert (two.read().faults, keys(two.read())) == ((), ["cpu/node0"])


def test_a_pipe_or_a_folder_in_place_of_a_file_does_not_hang(two: Host) -> None:
    two.node(0).unlink()
    os.mkfifo(two.node(0))
    two.node(1).unlink()
    two.node(1).mkdir()
    report = two.read()
    assert report.faults == ("cpu/node0: meminfo: not a regular file", "cpu/node1: meminfo: not a regular file")
    assert report.devices == ()


def test_all_nodes_gone_fail_the_source_and_do_not_turn_into_the_whole_host(one: Host) -> None:
    one.read()
    (one.procfs / "meminfo").write_text(meminfo(None, MemAvailable=24 * MIB))
    one.nodes.rename(one.nodes.with_name("gone"))
    with pytest.raises(SourceError, match="no longer any node"):
        one.read()
    one.nodes.with_name("gone").rename(one.nodes)
    assert keys(one.read()) == ["cpu/node0"]


def test_a_kernel_without_nodes_has_the_whole_host_as_one(tmp_path: Path) -> None:
    bare = Host(tmp_path, nodes=0)
    assert bare.read() == DeviceReport()
    (bare.procfs / "meminfo").write_text(meminfo(None, MemAvailable=21 * MIB))
    report = bare.read()
    assert (report.faults, keys(report), figures(report.devices[0])) == ((), ["cpu/node0"], (64 * GIB, 43 * GIB))
    assert (report.devices[0].identity.sampler, report.devices[0].identity.cpus) == ("meminfo", "")
    (bare.procfs / "meminfo").write_text(meminfo(None))
    assert bare.read().faults == ("cpu/node0: meminfo: no line MemAvailable",)


def test_what_may_not_be_read_is_said(tmp_path: Path) -> None:
    """As a user without rights: root may read everything."""
    Host(tmp_path, nodes=2)
    nodes = tmp_path / "sys/devices/system/node"
    (nodes / "node0/meminfo").chmod(0)
    code = (
        "from pathlib import Path; from budget_exporter.devices import host; from budget_exporter.roots import Roots; "
        f"tmp = Path({str(tmp_path)!r}); "
        "print(host.source(Roots(sysfs=tmp / 'sys', procfs=tmp / 'proc')).read(frozenset()).faults)"
    )
    run = _as_nobody(tmp_path, code)
    assert run.stdout == "('cpu/node0: meminfo: permission denied (CAP_DAC_READ_SEARCH grants it)',)\n", run.stderr
    nodes.chmod(0)
    run = _as_nobody(tmp_path, code)
    assert f"{SourceDenied.__name__}: {nodes}: permission denied (CAP_DAC_READ_SEARCH grants it)" in run.stderr
    nodes.chmod(0o755)


def _as_nobody(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    for path in (folder, *folder.parents):
        if path.stat().st_uid == os.getuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    drop = (
        "import os; os.getuid() or (os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(*[65534] * 3)); "
    )
    # Imported before the rights go: the packages may lie where only root looks.
    early = "import budget_exporter.devices.host, budget_exporter.roots; "
    return subprocess.run([sys.executable, "-c", early + drop + code], capture_output=True, text=True, check=False)


# Processes


def test_a_process_s_proportional_share_and_without_it_what_is_its_own(one: Host) -> None:
    one.process(11, {"smaps_rollup": "55d0 ---p [rollup]\nRss:    900 kB\nPss:    700 kB\nPss_Anon: 600 kB\n"})
    one.process(12, {"statm": "5000 300 100 1 0 200 0\n"})
    one.process(13, {"smaps_rollup": "", "statm": "0 0 0 0 0 0 0\n"})
    one.process(14, {"statm": "garbage\n"})
    one.process(15, {"statm": "5000 100 300 1 0 200 0\n"})
    (held,) = one.read(11, 12, 13, 14, 15, 99).holders
    page = os.sysconf("SC_PAGE_SIZE")
    assert [(each.pid, each.used) for each in held.processes] == [
        (11, 700 * KIB),
        (12, 200 * page),
        (13, 0),
        (14, None),
        (15, None),
    ]
    assert (held.device, held.complete, held.processes[0].name) == ("cpu/node0", False, "VLLM::Worker")


def test_processes_are_looked_at_now_and_then_and_when_others_are_of_interest(one: Host) -> None:
    rollup = one.process(11, {"smaps_rollup": "Pss: 700 kB\n"}) / "smaps_rollup"
    one.process(12, {"smaps_rollup": "Pss: 5 kB\n"})
    assert one.read().holders == ()
    assert [each.used for each in one.read(11).holders[0].processes] == [700 * KIB]
    rollup.write_text("Pss: 900 kB\n")
    assert [each.used for each in one.read(11, after=9).holders[0].processes] == [700 * KIB]
    assert [each.used for each in one.read(11, after=1).holders[0].processes] == [900 * KIB]
    assert [each.pid for each in one.read(11, 12).holders[0].processes] == [11, 12]
    assert one.read().holders == ()


def test_of_several_nodes_it_is_not_told_what_a_process_holds(two: Host) -> None:
    two.process(11, {"smaps_rollup": "Pss: 700 kB\n"})
    assert two.read(11).holders == ()


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"memory.max": f"{8 * GIB}\n"}, 8 * GIB),
        ({"memory.max": "max\n"}, None),
        ({"memory.max": "max\n", "memory/memory.limit_in_bytes": f"{GIB}\n"}, GIB),
        ({"memory/memory.limit_in_bytes": f"{4 * GIB}\n"}, 4 * GIB),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ({"memory.max": "-1\n"}, None),
        ({"memory.max": "garbage\n"}, None),
        ({"memory.max": "9" * 60}, None),
        ({"memory.max": "0\n"}, None),
        ({}, None),
    ],
    ids=str,
)
def test_what_a_container_lets_a_process_have(two: Host, files: dict[str, str], limit: int | None) -> None:
    two.process(11, {f"root/sys/fs/cgroup/{name}": text for name, text in files.items()})
    wanted = () if limit is None else (MemoryLimit(11, 1.8e9, limit),)
    assert two.read(11, 99).limits == wanted


# This machine


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """Run a process that takes as many MiB as its input says and answers once it has them."""
    code = """
import sys
held = []
for line in sys.stdin:
    held.append(bytearray(b"x") * (int(line) << 20))
    print("has", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        yield run
        run.kill()


def test_this_machine_s_figures_are_its_own(child: subprocess.Popen[str]) -> None:
    source = host.source(Roots(), processes_every=0)
    assert child.stdin is not None
    assert child.stdout is not None
    before = source.read(frozenset({child.pid}))
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    # Memory may be plugged in or out of a virtual machine meanwhile.
    assert sum(sample.memory.size for sample in before.devices) == pytest.approx(int(total.split()[1]) * KIB, rel=0.2)
    assert all(0 < sample.memory.used < sample.memory.size for sample in before.devices)
    child.stdin.write("256\n")
    child.stdin.flush()
    assert child.stdout.readline() == "has\n"
    deadline = time.monotonic() + 10
    while True:
        after = source.read(frozenset({child.pid}))
        if len(before.devices) > 1:
            return
        (was,), (now,) = before.holders[0].processes, after.holders[0].processes
        assert was.used is not None
        assert now.used is not None
        if 250 * MIB < now.used - was.used < 270 * MIB:
            return
        assert time.monotonic() < deadline, (was.used, now.used)
        time.sleep(0.1)
