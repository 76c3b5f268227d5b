"""The real reader of Gaudi cards on a synthetic host: the driver's figure by hl-smi, the framework's by its record."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from budget_exporter.devices import gaudi
from budget_exporter.devices._gaudi_smi import HlSmi, parsed
from budget_exporter.errors import SourceError
from budget_exporter.facts.device import DeviceReport
from budget_exporter.roots import Roots
from budget_exporter.units import GIB, MIB
from tests.devices.gaudi_host import FIRST, NOW, PAIR, SECOND, GaudiCard, GaudiHost
from tests.real_parts import unavailable

SIZE = 98304 * MIB
HEADER = "bus_id, memory.total [MiB], memory.used [MiB], module_id, name, uuid\n"


class Watched(GaudiHost):
    """The host, and the source that reads it with time in hand."""

    def __init__(self, root: Path, cards: tuple[GaudiCard, ...] = PAIR) -> None:
        super().__init__(root, cards)
        self.now = 1000.0
        self.source = gaudi.source(
            self.roots, clock=lambda: NOW, monotonic=lambda: self.now, hl_smi=str(self.hl_smi), forget_after=60.0
        )

    def read(self, after: float = 10.0, interest: frozenset[int] = frozenset()) -> DeviceReport:
        self.now += after
        return self.source.read(interest)


@pytest.fixture
def host(tmp_path: Path) -> Watched:
    made = Watched(tmp_path)
    made.cards(*PAIR)
    return made


def pools(report: DeviceReport) -> list[int | None]:
    return [sample.memory.allocator_used for sample in report.devices]


def test_cards_by_address_with_the_module_as_order_and_both_figures(host: Watched) -> None:
    host.cards(GaudiCard(FIRST, 0, 3, used=94 * GIB), PAIR[1])
    host.record(0, 57326698496)
    report = host.read()
    assert report.faults == ()
    first, second = report.devices
    assert (first.identity.device, second.identity.device) == (FIRST, SECOND)
    assert (first.memory.size, first.memory.used, first.memory.allocator_used) == (SIZE, 94 * GIB, 57326698496)
    assert (second.memory.used, second.memory.allocator_used) == (768 * MIB, None)
    assert (first.identity.order, second.identity.order) == (3, 2)
    assert (first.identity.platform, first.identity.model, first.identity.sampler) == ("gaudi", "HL-225", "hl_smi")
    assert (first.identity.uuid, first.identity.driver) == ("uuid-3", "habanalabs")


def test_without_gaudi_nothing_is_run_and_nothing_is_wrong(tmp_path: Path) -> None:
    host = Watched(tmp_path, cards=())
    host.script(f"touch {tmp_path}/ran")
    other = host.roots.sysfs / "class/accel/accel0/device"
    other.mkdir(parents=True)
    (other / "device_type").write_text("1\n")  # another vendor's accelerator has the file and no GAUDI in it
    (host.roots.sysfs / "class/accel/accel1/device").mkdir(parents=True)
    (host.roots.sysfs / "class/accel/version").write_text("1\n")
    assert host.read() == DeviceReport()
    assert not (tmp_path / "ran").exists()


def test_an_older_driver_lists_its_cards_elsewhere(tmp_path: Path) -> None:
    host = Watched(tmp_path, cards=())
    card = host.roots.sysfs / "class/habanalabs/hl4"
    card.mkdir(parents=True)
    (card / "device_type").write_text("GAUDI SEC\n")
    (card / "pci_addr").write_text(FIRST.upper() + "\n")
    host.cards(GaudiCard(FIRST, 4, 0, size=32768 * MIB, used=512 * MIB))
    host.record(4, 7)
    assert pools(host.read()) == [7]


def test_no_sysfs_is_an_error_and_an_unreadable_entry_a_fault(host: Watched) -> None:
    (host.roots.sysfs / "class/accel/accel0/device/pci_addr").write_text("../../etc\n")
    assert host.read().faults == ("accel0: pci_addr: not a PCI address: '../../etc'",)
    with pytest.raises(SourceError, match="no such directory"):
        gaudi.source(Roots(sysfs=host.root / "none")).read(frozenset())


def test_cards_without_a_way_to_their_memory_say_so(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"libhlml\.so: no such file; and there is no hl-smi"):
        Watched(tmp_path).read()


@pytest.mark.parametrize(
    ("cells", "fault"),
    [
        ("N/A, 768", "memory.total: not a number: 'N/A'"),
        ("98304, N/A", "memory.used: not a number: 'N/A'"),
        ("98304, ", "memory.used: not a number: ''"),
        ("98304, lots", "memory.used: not a number: 'lots'"),
        ("98304, -1", "used: out of range: -1048576"),
        ("98304, 0", "used: 0, which no running card reports"),
        ("0, 768", "size: 0, which no running card reports"),
        ("98304, 9999999999999999999", "used: out of range: 10485759999999999998951424"),
        ("98304, 768 furlong", "memory.used: unknown unit: 'furlong'"),
    ],
)
def test_a_figure_that_cannot_be_right_is_no_sample_and_a_fault(host: Watched, cells: str, fault: str) -> None:
    host.table(f"{HEADER}{FIRST}, {cells}, 3, HL-225, u\n{SECOND}, 98304, 768, 2, HL-225, v\n")
    report = host.read()
    assert [sample.identity.device for sample in report.devices] == [SECOND]
    assert report.faults == (f"hl-smi: {FIRST}: {fault}",)
    host.cards(*PAIR)
    assert host.read().faults == ()


def test_use_above_size_is_told_as_it_is(host: Watched) -> None:
    host.cards(GaudiCard(FIRST, 0, 3, used=SIZE + MIB))
    assert host.read().devices[0].memory.used == SIZE + MIB


@pytest.mark.parametrize(
    "text", ["", "\n\n", "hl-smi: driver not loaded", "bus_id, memory.total [MiB]\n", "\x00\xff,,"]
)
def test_what_is_no_table_is_an_error(host: Watched, text: str) -> None:
    host.table(text)
    with pytest.raises(SourceError, match="hl-smi: no table"):
        host.read()


def test_tables_as_they_are_seen_in_public() -> None:
    with_units = f"index, bus_id, name, memory.used, memory.total\n0, {FIRST}, HL-325L, 672 MiB, 131072 MiB\n"
    assert [(r.size, r.used, r.module) for r in parsed(with_units)[0]] == [(131072 * MIB, 672 * MIB, None)]
    readings, faults = parsed(f"{HEADER}{FIRST}, 32768, 512, N/A, N/A, N/A\n\n{SECOND}, 1\nno address, 1, 1, 1, n, u\n")
    assert [(r.pci, r.module, r.name, r.uuid) for r in readings] == [(FIRST, None, "", "")]
    assert faults == [
        "hl-smi: a line of 2 cells, the header has 6",
        "hl-smi: bus_id: not a PCI address: 'no address'",
    ]
    assert parsed(f"{HEADER.replace('MiB', 'TiB')}{FIRST}, 1, 1, 1, n, u\n")[1] == [
        f"hl-smi: {FIRST}: memory.total: unknown unit: 'TiB'"
    ]


def test_a_card_that_vanishes_is_a_fault_until_it_is_forgotten(host: Watched) -> None:
    host.read()
    host.cards(PAIR[1])
    assert host.read().faults == (f"{FIRST}: no longer answers",)
    host.cards(*PAIR)
    assert host.read().faults == ()
    host.table(HEADER)
    with pytest.raises(SourceError, match=f"{FIRST}: no longer answers; {SECOND}: no longer answers"):
        host.read()
    host.cards(PAIR[1])
    assert host.read(after=60.0).faults == ()


def test_a_driver_that_is_unloaded_mid_run_is_an_error(host: Watched) -> None:
    host.read()
    for card in PAIR:
        for name in ("device_type", "pci_addr", "module_id"):
            (host.roots.sysfs / f"class/accel/accel{card.minor}/device/{name}").unlink()
    host.script("exit 3")
    with pytest.raises(SourceError, match="hl-smi: exit status 3"):
        host.read()


def test_hl_smi_is_run_every_ten_seconds_and_what_was_wrong_stays_told(host: Watched) -> None:
    assert host.source.interval == 10.0
    host.cards(GaudiCard(FIRST, 0, 3, used=0), PAIR[1])
    fault = host.read().faults
    assert fault
    host.script("exit 1")
    assert host.read(after=9.0) == DeviceReport(faults=fault)
    with pytest.raises(SourceError):
        host.read(after=1.0)
    assert host.read(after=1.0) == DeviceReport(faults=("hl-smi: exit status 1",))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("sleep 60 & echo $! > {pid}; wait", "no answer within 0.2 s"),
        ("exec >&-; echo $$ > {pid}; exec sleep 60", "no end within 0.2 s"),
        ("trap '' TERM; echo $$ > {pid}; while :; do sleep 1; done", "no answer within 0.2 s"),
    ],
)
def test_an_hl_smi_that_hangs_is_killed_with_what_it_started(host: Watched, body: str, why: str) -> None:
    host.script(body.format(pid=host.root / "pid"))
    smi = HlSmi(str(host.hl_smi), limit=0.2)
    began = time.monotonic()
    with pytest.raises(SourceError, match=f"hl-smi: {why}"):
        smi.read()
    assert time.monotonic() - began < 3
    pid = int((host.root / "pid").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.01)
    host.cards(*PAIR)
    assert len(smi.read()[0]) == 2, "the next run is a new one"


def test_an_hl_smi_without_end_or_that_cannot_be_run(host: Watched) -> None:
    host.script("exec yes 0123456789")
    with pytest.raises(SourceError, match="more than 1048576 bytes"):
        host.read()
    host.hl_smi.write_text("no program\n")
    with pytest.raises(SourceError, match="hl-smi: Exec format error"):
        host.read()


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"x" * 23, "mem_usage_accel0: 23 bytes, not a record of 24"),
        (b"\2" + b"\0" * 23, "mem_usage_accel0: version 2, not 1"),
        (b"garbage, not a record at all", "mem_usage_accel0: version 3199076778277757287, not 1"),
    ],
)
def test_a_record_that_is_none_costs_only_its_figure(host: Watched, data: bytes, fault: str) -> None:
    host.record(0, 0, data=data)
    host.record(1, 5)
    report = host.read()
    assert report.faults == (f"{FIRST}: {fault}",)
    assert pools(report) == [None, 5]


def test_a_record_that_cannot_be_true_costs_only_its_figure(host: Watched) -> None:
    for used, why in (
        (SIZE + 1, f"{SIZE + 1} bytes, and the card has {SIZE}"),
        (2**63, f"out of range: {2**63} bytes"),
    ):
        host.record(0, used)
        report = host.read()
        assert report.faults == (f"{FIRST}: mem_usage_accel0: {why}",)
        assert pools(report) == [None, None]
    host.record(0, SIZE)
    assert pools(host.read()) == [SIZE, None]


@pytest.mark.parametrize("data", [b"", b"\0" * 24])
def test_a_record_that_is_not_written_yet_is_none_and_no_fault(host: Watched, data: bytes) -> None:
    path = host.roots.rootfs / "dev/shm/mem_usage_accel0"
    path.write_bytes(data)
    report = host.read()
    assert (pools(report), report.faults) == ([None, None], ())


@pytest.mark.parametrize(("age", "pool"), [(0, 9), (10, 9), (-10, 9), (11, None), (-11, None), (NOW, None)])
def test_a_record_is_old_after_ten_seconds_and_then_no_fault(host: Watched, age: float, pool: int | None) -> None:
    host.record(0, 9, at=NOW - age)
    report = host.read()
    assert (pools(report), report.faults) == ([pool, None], ())


def test_a_record_in_the_process_s_own_shm_counts_and_of_two_the_younger(host: Watched) -> None:
    host.record(0, 1, at=NOW - 5)
    host.record(0, 2, at=NOW - 1, pid=4242)
    host.record(0, 3, at=NOW - 3, pid=4343)
    assert pools(host.read()) == [1, None], "nobody asked for those processes"
    assert pools(host.read(interest=frozenset({4242, 4343, 99}))) == [2, None]


def test_what_lies_where_a_record_should_hangs_nobody(host: Watched) -> None:
    shm = host.roots.rootfs / "dev/shm"
    os.mkfifo(shm / "mem_usage_accel0")
    (host.root / "target").write_bytes(b"\1" + b"\0" * 23)
    (shm / "mem_usage_accel1").symlink_to(host.root / "target")
    report = host.read()
    assert pools(report) == [None, None]
    assert report.faults == (f"{FIRST}: mem_usage_accel0: not a regular file",)


WITHOUT_RIGHTS = """
import os, sys
from pathlib import Path
from budget_exporter.devices import _gaudi_listing, _gaudi_record
from budget_exporter.errors import SourceDenied
os.setuid(65534)
root = Path(sys.argv[1])
host, own = root / "host", root / "own"
reads = [
    lambda: _gaudi_record.pool_use([host], 0, 100, 1.8e9),
    lambda: _gaudi_record.pool_use([own / "none", own], 0, 100, 1.8e9),
    lambda: _gaudi_listing.listed(root / "sys"),
]
for read in reads:
    try:
        print(read())
    except SourceDenied as error:
        print(error)
"""


def test_what_may_not_be_read_names_the_capability_but_a_process_s_own_is_only_absent(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        unavailable("root, to give up its rights")
    for name in ("host", "own"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mem_usage_accel0").write_bytes(b"\1" + b"\0" * 23)
        (tmp_path / name / "mem_usage_accel0").chmod(0)
    (tmp_path / "sys/class/accel").mkdir(parents=True)
    (tmp_path / "sys/class/accel").chmod(0)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o011)
    command = [sys.executable, "-c", WITHOUT_RIGHTS, str(tmp_path)]
    child = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    denied = "permission denied (CAP_DAC_READ_SEARCH grants it)"
    assert child.stdout.splitlines() == [
        f"mem_usage_accel0: {denied}",
        "None",
        f"{tmp_path}/sys/class/accel: {denied}",
    ]
