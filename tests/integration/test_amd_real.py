"""The real rocm-smi and pyrsmi read the tree our reader reads; the real kernel's errors reach our reader (strace)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from budget_exporter.demo import amdgpu_tree as tree
from budget_exporter.devices import amdgpu
from budget_exporter.facts.device import DeviceReport, DeviceSample
from budget_exporter.roots import Roots
from budget_exporter.units import GIB, MIB
from tests.real_parts import program, unavailable

FAKE_SYS = Path(__file__).with_name("fake_sys.sh")
PYRSMI = Path(__file__).parents[2] / ".cache/pyrsmi-0.2.0"
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


def rocm_smi(sysfs: Path, *arguments: str) -> dict[str, dict[str, str]]:
    command = [str(FAKE_SYS), str(sysfs), program("rocm-smi"), *arguments, "--json"]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
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


@pytest.mark.real_part("rocm-smi")
@pytest.mark.parametrize(
    ("topology", "shown"),
    [
        ("two cards", {FIRST, SECOND}),
        ("iGPU first", {FIRST, SECOND, "0000:7b:00.0"}),
        ("KFD reversed", {FIRST, SECOND}),
        ("first card hidden", {SECOND}),
        ("numbered from 5", set()),
    ],
)
def test_rocm_smi_says_the_same_of_every_card_it_finds(tmp_path: Path, topology: str, shown: set[str]) -> None:
    sysfs = tmp_path / "sys"
    cards = tree.TOPOLOGIES[topology]
    tree.build(sysfs, cards)
    for number, card in enumerate(cards):
        tree.set_used(sysfs, card.pci, (29 - number) * GIB + 512 * MIB, gtt_used=(3 + number) * GIB)
    report = ours(sysfs)
    assert report.faults == ()
    assert {sample.identity.device for sample in report.devices} == {card.pci for card in cards}
    theirs = {pool: figures_of_rocm_smi(sysfs, pool) for pool in ("VRAM", "GTT")}
    assert set(theirs["VRAM"]) == shown
    for sample in report.devices:
        pool = "GTT" if sample.identity.integrated else "VRAM"
        if sample.identity.device in shown:
            assert figures(sample) == theirs[pool][sample.identity.device]


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


Reading = tuple[int | None, int | None, list[str]]
READS = """
import json, sys
from pathlib import Path
from budget_exporter.devices import amdgpu
from budget_exporter.roots import Roots
source = amdgpu.source(Roots(sysfs=Path(sys.argv[1])))
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
    watched = "trace=open,openat,creat,truncate,ftruncate,pwrite64,unlink,rename,ioctl"
    command = [program("strace"), "-f", "-o", str(log), "-e", watched, sys.executable, "-B", "-c", READS, str(sysfs)]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    calls = log.read_text().splitlines()
    assert sum(str(sysfs) in call for call in calls) > 10
    assert [c for c in calls if "/dev/kfd" in c or "/dev/dri" in c] == []
    opened = [call for call in calls if "open" in call.partition("(")[0]]
    assert [c for c in opened if any(flag in c for flag in ("O_WRONLY", "O_RDWR", "O_CREAT"))] == []
    assert [c for c in calls if "(" in c and c.split("(")[0].split()[-1] not in {"open", "openat", "ioctl"}] == []
