"""The real nvidia-ml-py, through our source, over a stand-in for the library: not run on a card."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from budget_exporter.devices import nvidia
from budget_exporter.devices._nvml_card import key_of
from budget_exporter.devices._pid_namespace import shows_host_pids
from budget_exporter.errors import SourceError
from budget_exporter.facts.device import DeviceReport, DeviceSample
from budget_exporter.roots import Roots
from budget_exporter.units import GIB, MIB
from tests.devices.nvml_stand_in import H100, RESERVED, SIZE, answer, build

pytestmark = pytest.mark.real_part("nvidia-ml-py")
FIRST, SECOND = "0000:03:00.0", "0000:0a:00.0"
MIG = {
    "1.mig": "1",
    "1.0.uuid": "MIG-aaaaaaaa-1111-5222-8333-444444444444",
    "1.0.name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "1.0.total": str(10 * GIB),
    "1.0.reserved": str(32 * MIB),
    "1.0.used": str(GIB),
    "1.0.compute": "4242:-",
    "1.3.uuid": "MIG-bbbbbbbb-1111-5222-8333-444444444444",
    "1.3.name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "1.3.total": str(10 * GIB),
    "1.3.used": str(2 * GIB),
}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the stand-in and load it: whoever then asks for a library of its name gets it."""
    built = build(tmp_path_factory.mktemp("nvml"))
    ctypes.CDLL(str(built))
    return built


class Host:
    """A host whose driver answers what the test says, and the source that asks it, with time in hand."""

    def __init__(self, folder: Path, answers: dict[str, str]) -> None:
        self.folder = folder
        self.now = 1000.0
        self.answers = dict(answers)
        (folder / "proc/driver/nvidia").mkdir(parents=True)
        (folder / "sys").mkdir()
        self.roots = Roots(sysfs=folder / "sys", procfs=folder / "proc", rootfs=folder)
        self.source = nvidia.source(self.roots, clock=lambda: 1.8e9, monotonic=lambda: self.now)

    def read(self, after: float = 1.0, answers: Mapping[str, str | None] | None = None) -> DeviceReport:
        """Return a report after so many seconds, with these answers from now on; None takes one away."""
        self.now += after
        changed = {**self.answers, **(answers or {})}
        self.answers = {key: text for key, text in changed.items() if text is not None}
        answer(self.folder / "answers", self.answers)
        return self.source.read(frozenset())


@pytest.fixture
def host(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "answers"))
    made = Host(tmp_path, H100)
    yield made
    made.source.close()


def of(report: DeviceReport, key: str) -> DeviceSample:
    (sample,) = [sample for sample in report.devices if sample.identity.device == key]
    return sample


def keys(report: DeviceReport) -> list[str]:
    return [sample.identity.device for sample in report.devices]


def test_two_cards(host: Host) -> None:
    report = host.read()
    assert (report.faults, keys(report)) == ((), [FIRST, SECOND])
    identity, memory = report.devices[0].identity, report.devices[0].memory
    # Of 81559 MiB a program can have 79.11 GiB, which is what vLLM prints as the size of such a card.
    assert (memory.at, memory.size, memory.used, memory.reserved) == (1.8e9, SIZE - RESERVED, 70 * GIB, RESERVED)
    assert round(memory.size / GIB, 2) == 79.11
    assert (identity.platform, identity.model, identity.driver) == ("nvidia", "NVIDIA H100 80GB HBM3", "580.65.06")
    assert (identity.uuid, identity.order, identity.integrated) == (H100["0.uuid"], 0, False)
    assert (identity.sampler, report.devices[1].identity.order) == ("nvml_v2", 1)


def test_what_processes_hold(host: Host) -> None:
    (first, second) = host.read(answers={"0.graphics": f"{os.getpid()}:{68 * GIB} 777777:{MIB}"}).holders
    assert [(each.pid, each.used) for each in first.processes] == [
        (os.getpid(), 68 * GIB),
        (777777, MIB),
        (999999, GIB),
    ]
    assert first.processes[0].name == Path("/proc/self/comm").read_text().strip()
    assert (first.device, second.device, second.processes) == (FIRST, SECOND, ())
    (first, _) = host.read(answers={"0.compute": "1:-", "0.graphics": "1:5"}).holders
    assert [(each.pid, each.used) for each in first.processes] == [(1, 5)]


def test_what_a_driver_does_not_tell_of_a_process_is_not_zero_and_not_complete(host: Host) -> None:
    (first, second) = host.read(answers={"0.compute": "17:- 18:4096"}).holders
    assert [(each.pid, each.used) for each in first.processes] == [(17, None), (18, 4096)]
    assert not first.complete
    assert second.complete == shows_host_pids(Path("/proc"))


def test_only_what_the_host_s_own_namespace_shows_is_complete(host: Host, tmp_path: Path) -> None:
    inside = tmp_path / "own"
    (inside / "1/ns").mkdir(parents=True)
    (inside / "1/ns/pid").symlink_to("pid:[4026532000]")
    for target, complete in (("pid:[4026532000]", False), ("pid:[4026531836]", True)):
        (inside / "1/ns/pid").unlink()
        (inside / "1/ns/pid").symlink_to(target)
        host.source = nvidia.source(host.roots, monotonic=lambda: host.now, own_procfs=inside)
        assert [held.complete for held in host.read().holders] == [complete, complete]
        host.source.close()


def test_instances_are_devices_and_their_card_is_none(host: Host) -> None:
    host.answers |= MIG
    report = host.read()
    assert keys(report) == [FIRST, MIG["1.0.uuid"], MIG["1.3.uuid"]]
    sample = of(report, MIG["1.0.uuid"])
    assert (sample.memory.size, sample.memory.used, sample.memory.reserved) == (10 * GIB - 32 * MIB, GIB, 32 * MIB)
    assert (sample.identity.uuid, sample.identity.order) == (MIG["1.0.uuid"], None)
    assert sample.identity.model == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    (held,) = [held for held in report.holders if held.device == MIG["1.0.uuid"]]
    assert ([(each.pid, each.used) for each in held.processes], held.complete) == ([(4242, None)], False)
    host.answers = {key: text for key, text in host.answers.items() if not key.startswith(("1.0.", "1.3."))}
    assert (keys(host.read(after=10)), host.read().faults) == ([FIRST], ())


@pytest.mark.parametrize("code", ["13", "25"])
def test_an_old_driver_counts_its_reserve_as_used(host: Host, code: str) -> None:
    memory = of(host.read(answers={"0.memory_v2": code}), FIRST)
    assert (memory.memory.size, memory.memory.used, memory.memory.reserved) == (SIZE, 70 * GIB + RESERVED, None)
    assert memory.identity.sampler == "nvml_v1"


def test_an_old_driver_s_process_lists(host: Host) -> None:
    (first, _) = host.read(answers={"0.v3": "13"}).holders
    assert [(each.pid, each.used) for each in first.processes] == [(os.getpid(), 68 * GIB), (999999, GIB)]
    (first, _) = host.read(answers={"0.v3": "13", "0.v2": "13"}).holders
    assert first.processes == ()


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ({"0.memory": "15"}, "the card is lost: it has fallen off the bus or is not accessible"),
        ({"0.memory": "16"}, "the card must be reset"),
        ({"0.memory": "6"}, "the card is not found any more"),
        ({"0.memory": "4"}, "permission denied"),
        ({"0.memory": "999"}, "unknown error"),
        ({"0.memory": "20"}, "insufficient memory"),
        ({"0.memory": "3"}, "the driver tells no memory of it"),
        ({"0.total": "0", "0.reserved": "0"}, "a size of 0 bytes of which 0 are reserved"),
        ({"0.total": "5", "0.reserved": "7"}, "a size of 5 bytes of which 7 are reserved"),
        ({"0.used": "-1"}, f"out of range: {2**64 - 1} of {SIZE} bytes used"),
        ({"0.handle": "15"}, "the card is lost: it has fallen off the bus or is not accessible"),
        ({"0.name": None}, "not supported"),
    ],
    ids=str,
)
def test_a_card_that_fails_alone_is_a_fault_and_recovers(
    host: Host, answers: dict[str, str | None], sentence: str
) -> None:
    host.read()
    before = {name: host.answers.get(name) for name in answers}
    report = host.read(10, answers)
    assert report.faults == (f"{FIRST}: {sentence}",)
    assert keys(report) == [SECOND]
    assert [held.device for held in report.holders] == [SECOND]
    report = host.read(10, before)
    assert (report.faults, keys(report)) == ((), [FIRST, SECOND])


@pytest.mark.parametrize("bus", ["", "x", "00000000:3:00.0", "-1:03:00.0"])
def test_an_address_that_is_none_is_a_fault(host: Host, bus: str) -> None:
    report = host.read(answers={"0.bus": bus})
    assert report.faults == (f"card 0: no PCI address: {bus!r}",)
    assert keys(report) == [SECOND]


def test_addresses_are_written_as_the_kernel_does() -> None:
    assert key_of("00000000:0A:1F.0") == "0000:0a:1f.0"
    assert key_of("0001:0A:00.0") == "0001:0a:00.0"
    assert key_of("00010000:E1:00.1") == "10000:e1:00.1"
    with pytest.raises(SourceError, match="no PCI address"):
        key_of("0000:0a:00.0:1")


def test_use_above_size_is_told_as_it_is(host: Host) -> None:
    assert of(host.read(answers={"0.used": str(SIZE + 1)}), FIRST).memory.used == SIZE + 1


def test_memory_that_is_the_host_s(host: Host) -> None:
    meminfo = host.folder / "proc/meminfo"
    gb10: dict[str, str | None] = {"0.name": "NVIDIA GB10", "0.memory": "3"}
    assert host.read(answers=gb10).faults == (
        f"{FIRST}: its memory is the host's, and meminfo: No such file or directory",
    )
    meminfo.write_text("MemTotal:       125440000 kB\nMemFree: 1 kB\nMemAvailable:    100000000 kB\n")
    sample = of(host.read(), FIRST)
    assert (sample.memory.size, sample.memory.used) == (125440000 << 10, 25440000 << 10)
    assert (sample.identity.integrated, sample.identity.sampler) == (True, "meminfo")
    meminfo.write_text("MemTotal: 0 kB\nMemAvailable: 0 kB\n")
    assert host.read().faults == (f"{FIRST}: its memory is the host's, and meminfo tells of none",)


def test_a_card_that_is_no_longer_listed_is_a_fault_for_a_while(host: Host) -> None:
    host.read()
    report = host.read(after=10, answers={"count": "1"})
    assert (report.faults, keys(report)) == ((f"{SECOND}: no longer listed by the driver",), [FIRST])
    assert host.read(after=580).faults == (f"{SECOND}: no longer listed by the driver",)
    assert host.read(after=20).faults == ()
    assert host.read(after=20, answers={"count": "2"}).faults == ()


def test_all_cards_lost_fail_the_source(host: Host) -> None:
    host.read()
    with pytest.raises(SourceError, match=f"{FIRST}: the card is lost.*; {SECOND}: the card is lost"):
        host.read(answers={"0.memory": "15", "1.memory": "15"})
    with pytest.raises(SourceError, match=f"{FIRST}: no longer listed by the driver; {SECOND}: no longer"):
        host.read(answers={"0.memory": None, "1.memory": None, "count": "0"})
    assert keys(host.read(after=10, answers={"count": "2"})) == [FIRST, SECOND]


def test_a_library_that_fails_is_opened_anew(host: Host) -> None:
    host.read()
    with pytest.raises(SourceError, match="NVML: the library and the loaded driver are of different versions"):
        host.read(after=10, answers={"listing": "18"})
    assert keys(host.read(after=10, answers={"listing": "0"})) == [FIRST, SECOND]


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("18", "libnvidia-ml.so.1: the library and the loaded driver are of different versions"),
        ("999", "libnvidia-ml.so.1: unknown error"),
        ("4", "libnvidia-ml.so.1: permission denied"),
    ],
)
def test_a_library_that_cannot_be_opened_beside_a_driver_is_a_failure(host: Host, code: str, sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        host.read(answers={"init": code})
    with pytest.raises(SourceError, match=sentence):
        host.read(answers={"init": "0"})
    assert keys(host.read(after=10)) == [FIRST, SECOND]


def test_no_driver_is_quiet(host: Host) -> None:
    assert host.read(answers={"init": "9"}) == DeviceReport()
    shutil.rmtree(host.folder / "proc/driver")
    assert host.read(after=10, answers={"init": "0"}) == DeviceReport()
    (host.folder / "sys/module/nvidia").mkdir(parents=True)
    assert keys(host.read(after=10)) == [FIRST, SECOND]


def test_a_driver_that_went_is_told_of_the_cards_it_had(host: Host) -> None:
    host.read()
    host.source.close()
    shutil.rmtree(host.folder / "proc/driver")
    with pytest.raises(SourceError, match=f"{FIRST}, {SECOND}: gone, and the driver is not loaded any more"):
        host.read(after=10)
    assert host.read(after=600) == DeviceReport()


def test_without_a_driver_nothing_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from budget_exporter.devices import nvidia; "
        "from budget_exporter.roots import Roots; "
        f"root = Path({str(tmp_path)!r}); source = nvidia.source(Roots(root, root, root)); "
        "print(source.read(frozenset()).devices, 'pynvml' in sys.modules, 'ctypes' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "() False False\n"
