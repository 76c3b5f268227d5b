"""The real rocm-smi and pyrsmi read the tree our reader reads; the real kernel's errors reach our reader (strace)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from budget_exporter.demo import amdgpu_tree as tree, procfs_tree
from budget_exporter.devices import amd_processes, amdgpu
from budget_exporter.devices._pid_namespace import shows_host_pids
from budget_exporter.facts.device import DeviceReport, DeviceSample
from budget_exporter.roots import Roots
from budget_exporter.units import GIB, MIB
from tests.real_parts import program, unavailable

FAKE_SYS = Path(__file__).with_name("fake_sys.sh")
PYRSMI, PYRSMI_1 = (Path(__file__).parents[2] / f".cache/pyrsmi-{version}" for version in ("0.2.0", "1.1.0"))
FIRST, SECOND = "0000:03:00.0", "0000:06:00.0"
USED = (31675383808, 30333206528)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    path = tmp_path / "sys"
    tree.build(path)
    for pci, used in zip((FIRST, SECOND), USED, strict=True):
        tree.set_used(path, pci, used)
    return path


def ours(sysfs: Path) -> DeviceReport:
    source = amdgpu.source(Roots(sysfs=sysfs))
    try:
        return source.read(frozenset())
    finally:
        source.close()


def rocm_smi(sysfs: Path, *arguments: str, check: bool = True) -> dict[str, dict[str, str]]:
    command = [str(FAKE_SYS), str(sysfs), program("rocm-smi"), *arguments, "--json"]
    out = subprocess.run(command, capture_output=True, text=True, check=check, timeout=60).stdout
    found: dict[str, dict[str, str]] = json.loads(out) if out.strip() else {}
    return found


def figures_of_rocm_smi(sysfs: Path, pool: str) -> dict[str, tuple[int, int]]:
    """Return (total, used) in bytes by PCI address: its own cardN is no address."""
    bus = rocm_smi(sysfs, "--showbus")
    memory = rocm_smi(sysfs, "--showmeminfo", pool.lower())
    return {
        bus[card]["PCI Bus"].lower(): (int(m[f"{pool} Total Memory (B)"]), int(m[f"{pool} Total Used Memory (B)"]))
        for card, m in memory.items()
    }


def figures(sample: DeviceSample) -> tuple[int, int]:
    return (sample.memory.size, sample.memory.used)


IGPU = "0000:7b:00.0"


@dataclass(frozen=True)
class Truth:
    """How one host's cards are numbered: in HIP, and by rocm-smi and pyrsmi 0.2.0, which leave some out."""

    hip: dict[str, int | None]
    smi: list[str]


TRUTH = {
    "two cards": Truth({FIRST: 0, SECOND: 1}, [FIRST, SECOND]),
    "iGPU first": Truth({IGPU: 0, FIRST: 1, SECOND: 2}, [IGPU, FIRST, SECOND]),
    "KFD reversed": Truth({FIRST: 1, SECOND: 0}, [FIRST, SECOND]),
    "first card hidden": Truth({FIRST: None, SECOND: 0}, [SECOND]),
    "numbered from 5": Truth({FIRST: 0, SECOND: 1}, []),
}
"""HIP numbers cards in KFD's order, librocm_smi64 5.2.3 in that of cardN; and of cards whose N is not below their
count it finds none."""


@pytest.fixture(params=TRUTH)
def topology(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Truth]:
    """Lay one of the five hosts, its cards in use to different degrees: a worker on each, and one on all of them."""
    sysfs = tmp_path / "sys"
    cards = tree.TOPOLOGIES[request.param]
    tree.build(sysfs, cards)
    for number, card in enumerate(cards):
        tree.set_used(sysfs, card.pci, (29 - number) * GIB + 512 * MIB, gtt_used=(3 + number) * GIB)
        if not card.kfd_hidden:
            tree.add_kfd_process(sysfs, 4242 + number, {card.pci: (28 - number) * GIB})
    tree.add_kfd_process(sysfs, 5000, {card.pci: GIB + 4096 * n for n, card in enumerate(cards) if not card.kfd_hidden})
    return sysfs, TRUTH[request.param]


@pytest.mark.real_part("rocm-smi")
def test_rocm_smi_says_the_same_of_every_card_it_finds(topology: tuple[Path, Truth]) -> None:
    """Its list is held to the table above, so that what is wrong in it stays known; ours is held to the truth."""
    sysfs, truth = topology
    report = ours(sysfs)
    assert report.faults == ()
    assert {sample.identity.device: sample.identity.order for sample in report.devices} == truth.hip
    theirs = {pool: figures_of_rocm_smi(sysfs, pool) for pool in ("VRAM", "GTT")}
    assert list(theirs["VRAM"]) == truth.smi
    for sample in report.devices:
        pool = "GTT" if sample.identity.integrated else "VRAM"
        if sample.identity.device in truth.smi:
            assert figures(sample) == theirs[pool][sample.identity.device]


def held(sysfs: Path) -> dict[int, dict[str, int]]:
    """Return what our reader says each process holds, in bytes by card; every list of a card must be complete."""
    if not shows_host_pids(Path("/proc")):
        unavailable("the host's PIDs: these tests run in a PID namespace of their own")
    report = amd_processes.source(Roots(sysfs=sysfs)).read(frozenset())
    assert report.faults == ()
    result: dict[int, dict[str, int]] = {}
    for holders in report.holders:
        assert holders.complete
        for process in holders.processes:
            if process.used:
                result.setdefault(process.pid, {})[holders.device] = process.used
    return result


@pytest.mark.real_part("rocm-smi")
def test_rocm_smi_says_the_same_of_every_process(topology: tuple[Path, Truth]) -> None:
    """Where it knows the cards it gives a process's sum; where it finds none it says 0 of one that holds 28 GiB."""
    sysfs, truth = topology
    processes = held(sysfs)
    shown = [device for device, order in truth.hip.items() if order is not None]
    assert {device for by_card in processes.values() for device in by_card} == set(shown)
    assert processes[5000].keys() == set(shown)
    theirs = rocm_smi(sysfs, "--showpids", check=False)["system"]
    assert theirs.keys() == {f"PID{pid}" for pid in processes}
    for pid, by_card in processes.items():
        _, cards, used, *_ = theirs[f"PID{pid}"].split(", ")
        expected = (str(len(by_card)), sum(by_card.values())) if truth.smi else ("unknown", 0)
        assert (cards, int(used)) == expected


@pytest.mark.real_part("rocm-smi")
def test_a_process_that_lacks_one_cards_file_is_unknown_to_rocm_smi_and_not_to_us(sysfs: Path) -> None:
    tree.add_kfd_process(sysfs, 4242, {FIRST: USED[0]})
    (sysfs / f"class/kfd/kfd/proc/4242/vram_{tree.gpu_id_of(SECOND)}").unlink()
    assert rocm_smi(sysfs, "--showpids", check=False)["system"]["PID4242"] == "unknown, 1, unknown, unknown, unknown"
    assert held(sysfs) == {4242: {FIRST: USED[0]}}


@pytest.mark.real_part("rocm-smi")
def test_rocm_smi_and_our_open_descriptors_see_the_same_change(sysfs: Path) -> None:
    source = amdgpu.source(Roots(sysfs=sysfs))
    for used in (USED[0], 8, 34208743424):
        tree.set_used(sysfs, FIRST, used)
        report = source.read(frozenset())
        assert {s.identity.device: figures(s) for s in report.devices} == figures_of_rocm_smi(sysfs, "VRAM")
        assert report.devices[0].memory.used == used
    source.close()


@pytest.mark.real_part("rocm-smi")
def test_rocm_smi_shows_a_process_that_the_tree_says_is_there(sysfs: Path) -> None:
    tree.add_kfd_process(sysfs, 4242, {FIRST: USED[0]})
    assert rocm_smi(sysfs, "--showpids")["system"]["PID4242"] == f"unknown, 1, {USED[0]}, 0, 0"
    tree.add_kfd_process(sysfs, 4242, {FIRST: 5 * GIB})
    assert rocm_smi(sysfs, "--showpids")["system"]["PID4242"] == f"unknown, 1, {5 * GIB}, 0, 0"
    tree.remove_kfd_process(sysfs, 4242)
    assert "PID4242" not in json.dumps(rocm_smi(sysfs, "--showpids"))


WITH_PYRSMI = """
import json, sys
answers, sys.stdout = sys.stdout, sys.stderr  # pyrsmi prints that it found no rocminfo, which nothing here needs
from pyrsmi import rocml
rocml.smi_initialize()
for _ in sys.stdin:
    count = rocml.smi_get_device_count()
    print(json.dumps([[rocml.smi_get_device_memory_total(i), rocml.smi_get_device_memory_used(i)]
                      for i in range(count)]), file=answers, flush=True)
rocml.smi_shutdown()
"""


def rocm_home(folder: Path) -> Path:
    """Return what ROCM_PATH must name: pyrsmi looks for ``lib/librocm_smi64.so`` there and nowhere else."""
    found = [
        path for pattern in ("*/librocm_smi64.so.1", "librocm_smi64.so.1") for path in Path("/usr/lib").glob(pattern)
    ]
    if not found:
        unavailable("librocm_smi64.so.1 (package librocm-smi64-1)")
    (folder / "lib").mkdir(parents=True)
    (folder / "lib/librocm_smi64.so").symlink_to(found[0])
    return folder


@pytest.mark.real_part("pyrsmi")
def test_pyrsmi_says_the_same_and_sees_changes_without_a_restart(sysfs: Path, tmp_path: Path) -> None:
    if not (PYRSMI / "pyrsmi/rocml.py").exists():
        unavailable("pyrsmi 0.2.0 (make test installs it)")
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(PYRSMI),
        "ROCM_PATH": str(rocm_home(tmp_path / "rocm")),
    }
    command = [str(FAKE_SYS), str(sysfs), sys.executable, "-c", WITH_PYRSMI]
    source = amdgpu.source(Roots(sysfs=sysfs))
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        for used in (USED[0], 8, 34208743424):
            tree.set_used(sysfs, FIRST, used)
            child.stdin.write("read\n")
            child.stdin.flush()
            line = child.stdout.readline()
            assert line, child.stderr.read()
            report = source.read(frozenset())
            assert [list(figures(sample)) for sample in report.devices] == json.loads(line)
            assert report.devices[0].memory.used == used
        child.stdin.close()
        assert child.wait(timeout=30) == 0
    source.close()


PYRSMI_SAYS = """
import json, sys
answers, sys.stdout = sys.stdout, sys.stderr
from pyrsmi import rocml as r
r.smi_initialize()
json.dump([[f"{i >> 32:04x}:{i >> 8 & 255:02x}:{i >> 3 & 31:02x}.{i & 7}", r.smi_get_device_memory_total(n),
            r.smi_get_device_memory_used(n)] for n in range(r.smi_get_device_count())
           for i in [r.smi_get_device_pci_id(n)]] + [sorted(r.smi_get_device_compute_process())], answers)
"""
CHECKS = """
import json
from budget_exporter.devices import rocm_smi
from budget_exporter.errors import SourceError
from budget_exporter.roots import Roots
try:
    report = rocm_smi.source(Roots(), limit=30.0).read(frozenset())
    print(json.dumps([{check.device: check.used for check in report.cross_checks}, list(report.faults)]))
except SourceError as error:
    print(json.dumps([{}, [str(error)]]))
"""


def in_fake(sysfs: Path, script: str, environment: dict[str, str]) -> Any:
    """Return what a Python script says that has ``sysfs`` for /sys."""
    command = [str(FAKE_SYS), str(sysfs), sys.executable, "-c", script]
    environment = {"PATH": os.environ["PATH"], **environment}
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=120).stdout)


def with_pyrsmi(folder: Path) -> dict[str, str]:
    """Return the environment in which pyrsmi 0.2.0 finds its library."""
    if not (PYRSMI / "pyrsmi/rocml.py").exists():
        unavailable("pyrsmi 0.2.0 (make test installs it)")
    return {"PYTHONPATH": str(PYRSMI), "ROCM_PATH": str(rocm_home(folder / "rocm"))}


@pytest.mark.real_part("pyrsmi")
def test_pyrsmi_says_the_same_of_every_card_and_process_it_finds(topology: tuple[Path, Truth], tmp_path: Path) -> None:
    sysfs, truth = topology
    *cards, pids = in_fake(sysfs, PYRSMI_SAYS, with_pyrsmi(tmp_path))
    assert [address for address, _, _ in cards] == truth.smi
    drivers = {sample.identity.device: figures(sample) for sample in ours(sysfs).devices}
    for pci, size, used in cards:
        # What is VRAM to it is of an iGPU a small part of what the card has.
        assert ((size, used) == drivers[pci]) is (pci != IGPU)
    assert pids == sorted(held(sysfs))


@pytest.mark.parametrize(
    "tool", [pytest.param(name, marks=pytest.mark.real_part(name)) for name in ("rocm-smi", "pyrsmi")]
)
def test_the_cross_check_differs_by_nothing_from_ours(topology: tuple[Path, Truth], tmp_path: Path, tool: str) -> None:
    """Our own source, with the real tools over /sys; where they find no card it has no figure."""
    sysfs, truth = topology
    program("rocm-smi")
    checks, faults = in_fake(sysfs, CHECKS, with_pyrsmi(tmp_path) if tool == "pyrsmi" else {})
    drivers = {sample.identity.device: sample.memory.used for sample in ours(sysfs).devices}
    assert checks == {pci: drivers[pci] for pci in truth.smi}
    if truth.smi:
        assert faults == []
    else:
        (fault,) = faults
        assert fault.startswith("pyrsmi: lists no card; rocm-smi: " if tool == "pyrsmi" else "rocm-smi: ")


AMDSMI = """
class AmdSmiMemoryType:
    VRAM, VIS_VRAM, GTT = "VRAM", "VIS_VRAM", "GTT"
def amdsmi_init(*_): pass
def amdsmi_shut_down(): pass
def amdsmi_get_processor_handles(): return {handles}
def amdsmi_get_gpu_device_bdf(handle): return handle
def amdsmi_get_gpu_memory_usage(handle, pool): return {used} if pool == "VRAM" else 0
"""


@pytest.mark.real_part("pyrsmi")
@pytest.mark.parametrize(
    ("handles", "used", "checks", "said"),
    [
        ([FIRST, SECOND], USED[0], {FIRST: USED[0], SECOND: USED[0]}, ""),
        ([FIRST], 0, {}, f"pyrsmi: {FIRST}: VRAM 0, which no running card holds"),
        ([], 5, {}, "pyrsmi: exit code 1: ROCMLError_LibraryNotFound: "),
    ],
    ids=["two cards", "silent zero bytes", "silent zero cards"],
)
def test_the_other_generation_of_pyrsmi_and_its_silent_zeros(
    sysfs: Path, tmp_path: Path, handles: list[str], used: int, checks: dict[str, int], said: str
) -> None:
    """The real pyrsmi 1.1.0 over a stand-in for the amdsmi package: its library is not to be had here."""
    if not (PYRSMI_1 / "pyrsmi/rocml.py").exists():
        unavailable("pyrsmi 1.1.0 (make test installs it)")
    (tmp_path / "amdsmi.py").write_text(AMDSMI.format(handles=handles, used=used))
    environment = {"PYTHONPATH": f"{PYRSMI_1}:{tmp_path}", "ROCM_PATH": str(tmp_path)}
    no_programs = "import os; os.environ['PATH'] = '/nowhere'"
    found, faults = in_fake(sysfs, no_programs + CHECKS, environment)
    assert found == checks
    assert [fault[: len(said)] for fault in faults] == ([said] if said else [])


WHOSE = """
import json, sys
from pathlib import Path
from budget_exporter.devices._pid_namespace import shows_host_pids
print(json.dumps([shows_host_pids(Path(path)) for path in sys.argv[1:]]))
"""


@pytest.mark.real_part("unshare")
def test_a_real_pid_namespace_is_not_the_hosts_and_the_hosts_procfs_is_known_inside(tmp_path: Path) -> None:
    """A container with the host's /proc mounted elsewhere sees both; the kernel's own numbers tell them apart."""
    if os.geteuid() != 0:
        unavailable("root, for a mount of the host's procfs in a namespace")
    outside = tmp_path / "host"
    outside.mkdir()
    inside = f'mount --rbind /proc {outside} && exec unshare --pid --fork --mount-proc "$@"'
    command = [program("unshare", "util-linux"), "--mount", "--propagation", "private", "sh", "-euc", inside, "sh"]
    command += [sys.executable, "-c", WHOSE, "/proc", str(outside)]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60).stdout
    initial = str(Path("/proc/self/ns/pid").readlink()) == "pid:[4026531836]"
    assert json.loads(out) == [False, initial]
    assert shows_host_pids(Path("/proc")) is initial


Reading = tuple[int | None, int | None, list[str]]
READS = """
import json, sys
from pathlib import Path
from budget_exporter.devices import amd_processes, amdgpu
from budget_exporter.roots import Roots
source = amdgpu.source(Roots(sysfs=Path(sys.argv[1])))
if len(sys.argv) > 2:
    amd_processes.source(Roots(sysfs=Path(sys.argv[1]), procfs=Path(sys.argv[2]))).read(frozenset({4242}))
for _ in range(4):
    report = source.read(frozenset())
    used = {s.identity.device: s.memory.used for s in report.devices}
    print(json.dumps([used.get("0000:03:00.0"), used.get("0000:06:00.0"), list(report.faults)]))
"""


def reads_under(sysfs: Path, injection: str) -> list[Reading]:
    """Run four reads while the kernel's answers for the first card's use are replaced as strace is told."""
    target = tree.card_directory(sysfs, FIRST) / "mem_info_vram_used"
    command = [program("strace"), "--quiet=all", "-o", os.devnull, "-P", str(target.resolve())]
    command += ["-e", "trace=pread64", "-e", f"inject=pread64:{injection}", sys.executable, "-c", READS, str(sysfs)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [(first, second, faults) for first, second, faults in map(json.loads, out.splitlines())]


@pytest.mark.real_part("strace")
@pytest.mark.parametrize("answer", ["retval=0", "error=ENODEV", "error=EIO", "error=ENOENT", "error=ESTALE"])
def test_one_empty_read_or_dead_descriptor_costs_nothing(sysfs: Path, answer: str) -> None:
    assert reads_under(sysfs, f"{answer}:when=2") == [(USED[0], USED[1], [])] * 4


@pytest.mark.real_part("strace")
@pytest.mark.parametrize(
    ("injection", "sentence"),
    [
        ("retval=0:when=2..3", "empty"),
        ("error=ENODEV:when=2..3", "No such device"),
        ("error=EIO:when=2..3", "Input/output error"),
        ("error=EPERM:when=2", "Operation not permitted"),
    ],
)
def test_one_that_lasts_costs_one_sample_of_one_card(sysfs: Path, injection: str, sentence: str) -> None:
    healthy: Reading = (USED[0], USED[1], [])
    failed: Reading = (None, USED[1], [f"{FIRST}: mem_info_vram_used: {sentence}"])
    assert reads_under(sysfs, injection) == [healthy, failed, healthy, healthy]


@pytest.mark.real_part("strace")
def test_no_device_node_is_opened_and_nothing_is_written(sysfs: Path, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    tree.add_kfd_process(sysfs, 4242, {FIRST: USED[0]})
    procfs_tree.build(tmp_path / "proc", [procfs_tree.Process(4242)], 1, "boot")
    procfs_tree.open_card(tmp_path / "proc", 4242, pci=FIRST, render_minor=128, client=1, vram=1, gtt=1)
    watched = "trace=open,openat,creat,truncate,ftruncate,pwrite64,unlink,rename,ioctl"
    command = [program("strace"), "-f", "-o", str(log), "-e", watched, sys.executable, "-B", "-c", READS]
    command += [str(sysfs), str(tmp_path / "proc")]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    calls = log.read_text().splitlines()
    assert sum(str(sysfs) in call for call in calls) > 10
    assert any("4242/fdinfo/20" in call for call in calls)
    assert any("kfd/proc/4242/vram_" in call for call in calls)
    assert [c for c in calls if "/dev/kfd" in c or "/dev/dri" in c] == []
    opened = [call for call in calls if "open" in call.partition("(")[0]]
    assert [c for c in opened if any(flag in c for flag in ("O_WRONLY", "O_RDWR", "O_CREAT"))] == []
    assert [c for c in calls if "(" in c and c.split("(")[0].split()[-1] not in {"open", "openat", "ioctl"}] == []
