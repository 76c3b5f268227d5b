"""Every device source: quiet where its platform is not, and never a wrong figure from a file that is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from budget_exporter.demo import amdgpu_tree, procfs_tree
from budget_exporter.devices import amd_processes, amdgpu, gaudi, host, neuron, neuron_hook
from budget_exporter.errors import SourceError
from budget_exporter.facts.device import DeviceReport
from budget_exporter.roots import Roots
from budget_exporter.sources import SOURCES
from budget_exporter.units import GIB, KIB, MIB
from tests.devices.gaudi_host import PAIR, GaudiHost
from tests.hosts import neuron_tree

NAMES = sorted(name for name, room in SOURCES.items() if room == "devices")
NOBODY = 65534
ALWAYS_SAY = {
    "host": "every host has memory",
    "neuron_monitor": "off unless asked for, and then its program is missing",
}
HEAVY = ("torch", "vllm", "numpy", "libnrt", "grpc", "google.protobuf", "pynvml", "pyhlml", "pyrsmi", "tpu_info")
"""Imported by a source where its platform is there, if at all."""

QUIET = """
import asyncio, inspect, json, pathlib, sys
opened, loaded, started = [], [], []
def hook(event, words):
    if event == "open": opened.append(str(words[0]))
    elif event == "ctypes.dlopen": loaded.append(str(words[0]))
    elif event in ("subprocess.Popen", "os.exec", "os.posix_spawn"): started.append(str(words[0]))
from budget_exporter import sources
from budget_exporter.roots import Roots
root, name = pathlib.Path(sys.argv[1]), sys.argv[2]
before = set(sys.modules)
sys.addaudithook(hook)
source = sources.load(name, Roots(root / "sys", root / "proc", root / "root"))
async def ask():
    for pids in (frozenset(), frozenset({1, 4242, 2**22 - 1})):
        told = source.read(pids)
        report = await told if inspect.isawaitable(told) else told
        yield report
async def main():
    return [report async for report in ask()]
reports = asyncio.run(main())
source.close()
print(json.dumps({
    "reports": [repr(report) for report in reports], "opened": opened, "loaded": loaded, "started": started,
    "modules": sorted(set(sys.modules) - before),
}))
"""


def asked(root: Path, name: str) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", QUIET, str(root), name], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ALWAYS_SAY])
def test_on_a_host_without_its_platform_a_source_says_nothing_and_costs_nothing(tmp_path: Path, name: str) -> None:
    for folder in ("sys", "proc", "root"):
        (tmp_path / folder).mkdir()
    found = asked(tmp_path, name)
    assert set(found["reports"]) == {repr(DeviceReport())}
    assert not [path for path in found["opened"] if path.startswith(("/dev/kfd", "/dev/neuron", "/dev/accel"))]
    # The interpreter itself is what ctypes opens when it is imported.
    assert set(found["loaded"]) <= {"None"}
    assert found["started"] == []
    heavy = [
        module for module in found["modules"] if module in HEAVY or module.startswith(tuple(f"{h}." for h in HEAVY))
    ]
    assert heavy == []
    others = {f"budget_exporter.devices.{other}" for other in NAMES if other != name}
    assert not others & set(found["modules"]), "a source loads no other"


@pytest.mark.parametrize("name", NAMES)
def test_no_source_s_text_names_what_must_never_be_imported(name: str) -> None:
    """In the whole package of the sources, whatever they load later."""
    assert name in {path.stem for path in Path(amdgpu.__file__).parent.glob("*.py")}
    for path in Path(amdgpu.__file__).parent.glob("*.py"):
        for line in path.read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]):
                assert words[1].split(".")[0] not in {"torch", "vllm", "libnrt", "numpy"}, f"{path.name}: {line}"


class Source(Protocol):
    """What a test needs of a source that blocks."""

    def read(self, interest: frozenset[int]) -> DeviceReport: ...
    def close(self) -> None: ...


@dataclass
class Case:
    """A host on which one source reads ``file``; ``figures`` are the bytes it tells, by what they are of."""

    source: Source
    file: Path
    figures: Callable[[DeviceReport], dict[str, int | None]]
    own: str
    """The figure that ``file`` holds; all others are of other files."""
    too_large: str
    """Text of the file with a figure larger than the device."""
    for_good: str = ""
    """The fault after which the figure is never right again, though the file holds one."""
    """Whether ``file`` is what a program of the test prints."""

    def read(self) -> dict[str, int | None]:
        """Return what a run tells; a source that fails as a whole tells nothing."""
        try:
            return self.figures(self.source.read(frozenset({4242})))
        except SourceError:
            return {}


def used(report: DeviceReport) -> dict[str, int | None]:
    return {sample.identity.device: sample.memory.used for sample in report.devices}


def held(report: DeviceReport) -> dict[str, int | None]:
    return {f"{each.device} {p.pid}": p.used for each in report.holders for p in each.processes}


def of_amdgpu(folder: Path) -> Case:
    sysfs = folder / "sys"
    amdgpu_tree.build(sysfs)
    card = amdgpu_tree.R9700_PAIR[0].pci
    file = amdgpu_tree.card_directory(sysfs, card) / "mem_info_vram_used"
    ticks = iter(range(1 << 30))
    source = amdgpu.source(Roots(sysfs=sysfs), monotonic=lambda: float(next(ticks)))
    return Case(source, file, used, card, f"{1 << 62}\n")


def of_amd_processes(folder: Path) -> Case:
    sysfs, procfs = folder / "sys", folder / "proc"
    amdgpu_tree.build(sysfs)
    procfs_tree.build(procfs, [procfs_tree.Process(1), procfs_tree.Process(4242, comm="worker")], 1, "b")
    first, second = (card.pci for card in amdgpu_tree.R9700_PAIR)
    amdgpu_tree.add_kfd_process(sysfs, 4242, {first: GIB, second: 2 * GIB})
    file = sysfs / f"class/kfd/kfd/proc/4242/vram_{amdgpu_tree.gpu_id_of(first)}"
    return Case(amd_processes.source(Roots(sysfs, procfs)), file, held, f"{first} 4242", f"{1 << 62}\n")


def of_host(folder: Path) -> Case:
    sysfs, procfs = folder / "sys", folder / "proc"

    def meminfo(node: int, free: int) -> str:
        figures = {"MemTotal": 64 * GIB, "MemFree": free, "Active(file)": 0, "Inactive(file)": 0, "SReclaimable": 0}
        return "".join(f"Node {node} {name}: {value // KIB} kB\n" for name, value in figures.items())

    for node in range(2):
        directory = sysfs / f"devices/system/node/node{node}"
        directory.mkdir(parents=True)
        (directory / "meminfo").write_text(meminfo(node, 10 * GIB))
        (directory / "cpulist").write_text(f"{node}\n")
    (sysfs / "devices/system/node/online").write_text("0-1\n")
    (procfs / "sys/kernel").mkdir(parents=True)
    (procfs / "sys/kernel/osrelease").write_text("6.12.0\n")
    file = sysfs / "devices/system/node/node0/meminfo"
    return Case(host.source(Roots(sysfs, procfs)), file, used, "cpu/node0", meminfo(0, 65 * GIB))


def of_neuron(folder: Path) -> Case:
    sysfs = folder / "sys"
    neuron_tree.build(sysfs, devices=2)
    file = neuron_tree.core_file(sysfs, 0, 0, "total")
    ticks = iter(range(1 << 30))
    source = neuron.source(Roots(sysfs=sysfs), monotonic=lambda: float(next(ticks)))
    return Case(source, file, used, "nd0/hbm0", f"{1 << 62}\n", for_good="below zero, as the kernel prints it")


def of_neuron_hook(folder: Path) -> Case:
    procfs, records = folder / "proc", folder / "records"
    procfs_tree.build(procfs, [procfs_tree.Process(pid, start_ticks=77) for pid in (1, 4242)], 1, "the-boot")
    records.mkdir()
    record = {
        "schema": "budget_exporter_neuron_hook/1", "rank": 0, "replica": 0, "pid": 4242, "start_ticks": 77,
        "pid_namespace": procfs_tree.INITIAL_NAMESPACE, "boot_id": "the-boot", "interval": 10.0, "used": GIB,
        "limit": 24 * GIB, "at": 1.8e9 - 1, "call_seconds": 0.001, "samples": 3, "cpu_seconds": 0.003,
    }  # fmt: skip
    file = records / f"vnc-{procfs_tree.INITIAL_NAMESPACE}-4242.json"
    file.write_text(json.dumps(record))
    source = neuron_hook.source(Roots(procfs=procfs, neuron_hook=records), clock=lambda: 1.8e9)
    return Case(
        source,
        file,
        lambda report: {str(memory.pid): memory.used for memory in report.runtime},
        "4242",
        json.dumps(record | {"used": 1 << 62}),
    )


def of_gaudi(folder: Path) -> Case:
    made = GaudiHost(folder)
    made.cards(*PAIR)
    ticks = iter(range(0, 1 << 30, 20))
    source = gaudi.source(made.roots, monotonic=lambda: float(next(ticks)), hl_smi=str(made.hl_smi))
    table = made.root / "table"
    large = table.read_text().replace(f", {PAIR[0].used // MIB}, {PAIR[0].module}", f", 999999999, {PAIR[0].module}")
    return Case(source, table, used, PAIR[0].pci, large)


BY_CHILD = {"gaudi"}
CASES: dict[str, Callable[[Path], Case]] = {
    "amdgpu": of_amdgpu,
    "amd_processes": of_amd_processes,
    "host": of_host,
    "neuron": of_neuron,
    "neuron_hook": of_neuron_hook,
    "gaudi": of_gaudi,
}
ELSEWHERE = {
    "nvidia": "a library answers: tests/devices/test_nvidia.py",
    "tpu": "a service answers: tests/devices/test_tpu.py",
    "rocm_smi": "tools answer: tests/devices/test_rocm_smi.py",
    "neuron_monitor": "a page or a child answers: tests/devices/test_neuron_monitor.py",
}
FAULTS: dict[str, bytes] = {
    "empty": b"",
    "blank": b"\n \n",
    "garbage": b"\xff\xfe garbage\n",
    "zeros": bytes(4096),
    "negative": b"-4096\n",
    "cut short": b"123",
    "of the wrong kind": b"1.5e9\n",
    "hexadecimal": b"0x40000000\n",
    "two figures": b"4096 4096\n",
    "below zero, as the kernel prints it": b"18446744073709547520\n",
    "endless": b"9" * (1 << 20),
    "an unmounted file's": b"\0\0\0\0\n",
}


def test_every_source_is_in_a_table() -> None:
    assert set(CASES) | set(ELSEWHERE) == set(NAMES)
    assert not set(CASES) & set(ELSEWHERE)
    for where in ELSEWHERE.values():
        assert (Path(__file__).parents[2] / where.split(": ")[1]).is_file()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder whose parents anybody may enter."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, folder: Path) -> Iterator[Case]:
    made = CASES[request.param](folder)
    yield made
    made.source.close()


OF_FILES = pytest.mark.parametrize("case", [name for name in CASES if name not in BY_CHILD], indirect=True)
"""Where it is the source that opens the file, and no program that the test brings."""


def others(case: Case, figures: dict[str, int | None]) -> dict[str, int | None]:
    return {name: figure for name, figure in figures.items() if name != case.own}


@contextmanager
def changed(case: Case, *, back: bool = True) -> Iterator[dict[str, int | None]]:
    """Check that the figure is there before and, ``back`` again, once the file is as it was."""
    good, data = case.read(), case.file.read_bytes()
    assert (good[case.own] or 0) > 0
    yield good
    case.file.write_bytes(data)
    again = case.read()
    assert again == good if back else case.own not in again


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_holds_no_figure_gives_none(case: Case, fault: str) -> None:
    with changed(case, back=case.for_good != fault) as good:
        case.file.write_bytes(FAULTS[fault])
        now = case.read()
        assert now.get(case.own) is None
        assert others(case, now).items() <= others(case, good).items()


def test_a_file_that_vanishes_takes_its_figure_along(case: Case) -> None:
    with changed(case):
        case.file.unlink()
        assert case.read().get(case.own) is None


def test_a_folder_is_no_figure(case: Case) -> None:
    with changed(case):
        case.file.unlink()
        case.file.mkdir()
        assert case.read().get(case.own) is None
        case.file.rmdir()


@OF_FILES
def test_a_pipe_is_no_figure_and_never_waited_for(case: Case) -> None:
    with changed(case):
        case.file.unlink()
        os.mkfifo(case.file)
        assert case.read().get(case.own) is None
        case.file.unlink()


def test_a_figure_larger_than_the_device_is_never_cut_to_it(case: Case) -> None:
    with changed(case) as good:
        case.file.write_text(case.too_large)
        now = case.read().get(case.own)
        assert now is None or now not in good.values()
        assert now is None or now < 0 or now > 64 * GIB


@OF_FILES
def test_a_file_that_may_not_be_read_gives_no_figure(case: Case) -> None:
    with changed(case):
        # An open descriptor goes on answering: what is refused is to open it.
        case.source.close()
        case.file.chmod(0)
        was = os.geteuid()
        os.seteuid(was or NOBODY)
        try:
            now = case.read()
        finally:
            os.seteuid(was)
        assert now.get(case.own) is None
        case.file.chmod(0o644)
