"""The real reader on a synthetic tree: banks, peaks, and counters that somebody cleared."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from budget_exporter.devices import neuron
from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.facts.device import DeviceReport, DeviceSample
from budget_exporter.roots import Roots
from budget_exporter.sidecar.devices import Board
from budget_exporter.sidecar.reports import Windows, fold
from budget_exporter.units import GIB, MIB
from tests.hosts import neuron_tree as tree

REST = sum(tree.PARTS.values())
"""What a core holds besides tensors: 880 MiB."""
BANK0 = "nd0/hbm0"


class Host:
    """A tree and the source that reads it, with time in hand."""

    def __init__(self, sysfs: Path, name: str = "Trainium2", devices: int = 1) -> None:
        self.sysfs = sysfs
        self.now = 1000.0
        tree.build(sysfs, name, devices)
        self.source = neuron.source(Roots(sysfs=sysfs), clock=lambda: 1.8e9 + self.now, monotonic=lambda: self.now)

    def read(self, after: float = 0.2) -> DeviceReport:
        self.now += after
        return self.source.read(frozenset())

    def file(self, name: str, core: int = 0, device: int = 0) -> Path:
        return tree.core_file(self.sysfs, device, core, name)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path / "sys")
    yield made
    made.source.close()


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Host]:
    """A trn1: one core a bank."""
    made = Host(tmp_path / "sys", "Trainium1")
    yield made
    made.source.close()


def of(report: DeviceReport, device: str = BANK0) -> DeviceSample | None:
    return next((sample for sample in report.devices if sample.identity.device == device), None)


def used(report: DeviceReport, device: str = BANK0) -> int | None:
    sample = of(report, device)
    return None if sample is None else sample.memory.used


@pytest.mark.parametrize(
    ("name", "banks", "size", "tensors", "cores"),
    [
        ("Inferentia2", 2, 17179869184, 9 * GIB, 1),
        ("Trainium1", 2, 17179869184, 9 * GIB, 1),
        ("Trainium2", 4, 25769803776, 14 * GIB, 2),
        ("Trainium3", 4, 38654705664, 14 * GIB, 2),
    ],
)
def test_banks_of_each_platform(tmp_path: Path, name: str, banks: int, size: int, tensors: int, cores: int) -> None:
    report = Host(tmp_path / "sys", name, devices=2).read()
    assert report.faults == ()
    assert [s.identity.device for s in report.devices] == [f"nd{d}/hbm{b}" for d in range(2) for b in range(banks)]
    for sample in report.devices:
        assert (sample.memory.size, sample.memory.used) == (size, tensors + cores * REST)
        assert (sample.identity.platform, sample.identity.model) == ("neuron", name)
        assert (sample.identity.driver, sample.identity.sampler) == ("2.24.7.0", "neuron_device_mem")
        assert sample.identity.high_water_source == ("driver" if cores == 1 else "sampled")
        assert dict(sample.memory.cores[0].parts) == {**tree.PARTS, "tensors": tensors}
    # Where cores can be joined the runtime numbers them by a table of its own.
    orders = [sample.identity.order for sample in report.devices]
    assert orders == ([0, 1, 2, 3] if cores == 1 else [None] * 8)
    assert len({sample.identity.uuid for sample in report.devices}) == 2 * banks


def test_the_even_core_alone_is_above_its_share_of_the_bank_and_the_bank_is_not_full(host: Host) -> None:
    sample = of(host.read())
    assert sample is not None
    assert sample.memory.cores[0].used > sample.memory.size // 2
    assert sample.memory.used < sample.memory.size
    assert sample.memory.driver_peak is None, "two cores peak at two times"
    assert [core.peak for core in sample.memory.cores] == [14 * GIB + REST + 32 * MIB, REST + 32 * MIB]


def test_a_change_is_seen_and_the_size_of_the_last_operation_is_not(host: Host) -> None:
    host.read()
    for figure in (GIB, 0, 15 * GIB + 1):
        tree.hold(host.sysfs, 0, 0, {**tree.PARTS, "tensors": figure})
        assert used(host.read()) == figure + 2 * REST
    host.file("present").write_text("17179869184\n")
    assert used(host.read()) == 15 * GIB + 1 + 2 * REST


def test_a_host_without_neuron_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "sys/class").mkdir(parents=True)
    assert neuron.source(Roots(sysfs=tmp_path / "sys")).read(frozenset()) == DeviceReport()
    (tmp_path / "sys/devices/virtual/neuron_device").mkdir(parents=True)
    assert neuron.source(Roots(sysfs=tmp_path / "sys")).read(frozenset()) == DeviceReport()
    with pytest.raises(SourceError, match="nowhere: no such directory"):
        neuron.source(Roots(sysfs=tmp_path / "nowhere")).read(frozenset())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "total: empty"),
        ("\n", "total: empty"),
        ("garbage\n", "total: not a number: 'garbage\\n'"),
        ("-1\n", "total: negative: '-1\\n'"),
        ("12345", "total: cut short: '12345'"),
        (f"{24 * GIB + 1}\n", "total: 25769803777 bytes, more than the 25769803776 of its bank"),
        (f"{2**64 - 4096}\n", "total: out of range: '18446744073709547520\\n' (went below zero"),
    ],
)
def test_a_use_that_cannot_be_right_costs_its_bank_and_no_other(host: Host, text: str, sentence: str) -> None:
    host.read()
    host.file("total", core=1).write_text(text)
    report = host.read()
    assert [fault.startswith(f"nd0/hbm0: neuron_core1: {sentence}") for fault in report.faults] == [True]
    assert [s.identity.device for s in report.devices] == ["nd0/hbm1", "nd0/hbm2", "nd0/hbm3"]


@pytest.mark.parametrize("text", ["", "garbage\n", "-1\n", "12345", f"{24 * GIB + 1}\n"])
def test_it_recovers_where_the_counter_was_never_below_zero(host: Host, text: str) -> None:
    right = used(host.read())
    before = host.file("total").read_text()
    host.file("total").write_text(text)
    assert used(host.read()) is None
    host.file("total").write_text(before)
    report = host.read()
    assert (used(report), report.faults) == (right, ())


def test_a_counter_that_went_below_zero_is_not_believed_until_the_driver_is_loaded_anew(host: Host) -> None:
    host.read()
    total = host.file("total")
    total.write_text(f"{2**64 - MIB}\n")
    assert used(host.read()) is None
    # What is allocated now takes it above zero again: 2 MiB less than the truth.
    total.write_text(f"{GIB - MIB}\n")
    report = host.read(after=5.0)
    assert used(report) is None
    assert len(report.faults) == 1
    tree.remove_device(host.sysfs, 0)
    with pytest.raises(SourceError, match="nd0: no longer listed in neuron_device"):
        host.read(after=1.0)
    tree.add_device(host.sysfs, 0)
    report = host.read(after=1.0)
    assert (used(report), report.faults) == (14 * GIB + 2 * REST, ())


def test_a_total_that_was_cleared_is_found_out_by_its_parts(host: Host) -> None:
    """Before anything is released it is a small number like any other: only the parts, not cleared, tell."""
    assert used(host.read()) == 14 * GIB + 2 * REST
    tree.clear(host.sysfs, 0, 0)
    host.read(after=11.0)
    # Once is not enough: between two reads something may have been released.
    report = host.read(after=11.0)
    assert used(report) is None
    (fault,) = report.faults
    assert fault.startswith("nd0/hbm0: neuron_core0: total: somebody cleared it")
    host.file("total").write_text(f"{GIB}\n")
    assert used(host.read(after=60.0)) is None


def test_parts_that_move_between_two_reads_condemn_nothing(host: Host) -> None:
    host.read()
    for step in range(1, 6):
        host.file("tensors").write_text(f"{14 * GIB + step * MIB}\n")
        assert used(host.read(after=11.0)) == 14 * GIB + 2 * REST


def test_a_part_the_driver_lacks_is_absent_and_a_broken_one_is_a_fault(host: Host) -> None:
    for name in ("total", "present", "peak"):
        host.file("collectives").with_name(name).unlink()
    host.file("collectives").parent.rmdir()
    host.file("dma_rings").write_text("?\n")
    report = host.read()
    sample = of(report)
    assert sample is not None
    assert {"collectives", "dma_rings"}.isdisjoint(dict(sample.memory.cores[0].parts))
    assert len(sample.memory.cores[0].parts) == len(tree.PARTS) - 2
    assert sample.memory.used == 14 * GIB + 2 * REST
    assert report.faults == ("nd0: neuron_core0: dma_rings/total: not a number: '?\\n'",)
    assert host.read().faults == report.faults, "the fault must last as long as what it is about"


def test_cores_are_counted_without_the_file_that_only_root_may_read(host: Host) -> None:
    count = tree.device_directory(host.sysfs, 0) / "core_count"
    assert count.stat().st_mode & 0o777 == 0o400
    count.unlink()
    assert len(host.read().devices) == 4


def test_a_missing_core_costs_its_bank(host: Host) -> None:
    core = tree.device_directory(host.sysfs, 0) / "neuron_core5"
    core.rename(core.with_name("elsewhere"))
    report = host.read()
    assert report.faults == ("nd0/hbm2: neuron_core5: not there",)
    assert [s.identity.device for s in report.devices] == ["nd0/hbm0", "nd0/hbm1", "nd0/hbm3"]


def test_more_cores_than_the_platform_has_are_no_figures(host: Host) -> None:
    (tree.device_directory(host.sysfs, 0) / "neuron_core8").mkdir()
    report = host.read()
    assert (report.devices, report.faults) == ((), ("nd0: neuron_core8: a Trainium2 has 8 cores",))


@pytest.mark.parametrize("name", ["Trainium9", "", "Inferentia"])
def test_a_device_of_unknown_size_has_no_figures(tmp_path: Path, name: str) -> None:
    host = Host(tmp_path / "sys", name)
    report = host.read()
    assert (report.devices, report.faults) == ((), (f"nd0: the size of a {name!r} is not known",))
    (tree.device_directory(host.sysfs, 0) / "info/architecture/device_name").write_text("Trainium1\n")
    assert len(host.read(after=1.0).devices) == 2


def test_cores_that_together_hold_more_than_their_bank_are_no_use_of_it(host: Host) -> None:
    for core in (0, 1):
        tree.hold(host.sysfs, 0, core, {"tensors": 13 * GIB})
    report = host.read()
    assert used(report) is None
    assert report.faults == ("nd0/hbm0: its cores hold 27917287424 bytes, more than its 25769803776",)


def test_an_idle_bank_says_zero(host: Host) -> None:
    """No runtime was ever initialised: the driver counts, and has counted nothing."""
    for core in range(8):
        tree.hold(host.sysfs, 0, core, dict.fromkeys(tree.PARTS, 0), peak=0)
    report = host.read()
    assert ([s.memory.used for s in report.devices], report.faults) == ([0] * 4, ())


def test_a_device_that_vanishes_while_others_answer(tmp_path: Path) -> None:
    host = Host(tmp_path / "sys", devices=2)
    host.read()
    tree.remove_device(host.sysfs, 0)
    report = host.read(after=1.0)
    assert report.faults == ("nd0: no longer listed in neuron_device",)
    assert [s.identity.device for s in report.devices] == [f"nd1/hbm{bank}" for bank in range(4)]
    assert len(host.read(after=598.0).faults) == 1
    assert host.read(after=2.0).faults == ()
    host.source.close()


def test_files_that_vanish_while_descriptors_are_open(host: Host) -> None:
    host.read()
    for core in (0, 1):
        host.file("total", core).unlink()
    report = host.read(after=1.0)
    assert report.faults[0] == "nd0/hbm0: neuron_core0: total: no such file"
    assert used(report) is None


@pytest.fixture
def ordinary_user() -> Iterator[Path]:
    """A folder an ordinary user may enter; every test ends as the user it began as."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        try:
            yield Path(name)
        finally:
            os.seteuid(os.getuid())


@pytest.mark.parametrize(
    ("deny", "sentence"),
    [
        (lambda sysfs: tree.core_file(sysfs, 0, 1, "total"), "nd0/hbm0: neuron_core1: total: permission denied"),
        (lambda sysfs: tree.device_directory(sysfs, 0), "nd0: .*[Pp]ermission denied"),
        (lambda sysfs: tree.core_file(sysfs, 0, 0, "tensors"), "neuron_core0: tensors/total: Permission denied"),
    ],
)
def test_a_refusal_is_a_fault_that_names_the_file(
    ordinary_user: Path, deny: Callable[[Path], Path], sentence: str
) -> None:
    host = Host(ordinary_user / "sys")
    deny(host.sysfs).chmod(0)
    drop_privilege()
    report = host.read()
    assert re.search(sentence, "; ".join(report.faults)), report.faults
    assert (used(report) is None) == ("tensors" not in sentence)
    host.source.close()


def test_a_list_of_devices_that_may_not_be_read_fails_the_run(ordinary_user: Path) -> None:
    host = Host(ordinary_user / "sys")
    (host.sysfs / "devices/virtual/neuron_device").chmod(0)
    drop_privilege()
    with pytest.raises(SourceDenied, match="CAP_DAC_READ_SEARCH"):
        host.read()


def drop_privilege() -> None:
    """Become an ordinary user, where the tests run as root."""
    if os.geteuid() == 0:
        os.seteuid(65534)


# The driver's own peak.


def windows(*reports: DeviceReport) -> Windows:
    folded = None
    for report in reports:
        folded = fold(folded, report)
    assert folded is not None
    return folded.windows


def test_a_peak_from_before_the_first_read_is_told_by_its_name_and_counts_for_nobody(old: Host) -> None:
    tree.hold(old.sysfs, 0, 0, {"tensors": GIB}, peak=15 * GIB)
    first, second = old.read(), old.read()
    sample = of(second)
    assert sample is not None
    assert (sample.memory.driver_peak, sample.memory.reached) == (15 * GIB, None)
    assert windows(first, second)[BANK0].used_max == GIB


def test_a_spike_between_two_reads_is_in_the_high_water(old: Host) -> None:
    first = old.read()
    at = old.now
    tree.hold(old.sysfs, 0, 0, {"tensors": 15 * GIB})
    tree.hold(old.sysfs, 0, 0, {"tensors": GIB})
    second, third = old.read(), old.read()
    window = windows(first, second, third)[BANK0]
    assert (window.newest.used, window.used_max) == (GIB, 15 * GIB)
    assert window.used_max_at == pytest.approx(1.8e9 + at)
    sample = of(third)
    assert sample is not None
    assert (sample.memory.driver_peak, sample.memory.reached) == (15 * GIB, None)


def test_a_spike_before_an_engine_started_is_not_its_own(old: Host) -> None:
    """The last engine's peak was set before, and even what changed in between may have been its doing."""
    board = Board()
    began = 1.8e9 + old.now

    def update(report: DeviceReport, epoch: str, started: float) -> int:
        board.update(windows(report), {BANK0: (epoch, started)})
        return next(mark.used for mark in board.marks if mark.device == BANK0)

    tree.hold(old.sysfs, 0, 0, {"tensors": 5 * GIB}, peak=5 * GIB)
    assert update(old.read(), "first@1", began - 60) == 5 * GIB
    tree.hold(old.sysfs, 0, 0, {"tensors": 15 * GIB})
    tree.hold(old.sysfs, 0, 0, {"tensors": GIB})
    report = old.read()
    # Started since the read before: whose spike it was nobody can tell.
    assert update(report, "second@2", 1.8e9 + old.now - 0.1) == GIB
    tree.hold(old.sysfs, 0, 0, {"tensors": 16 * GIB - MIB})
    tree.hold(old.sysfs, 0, 0, {"tensors": GIB})
    assert update(old.read(), "second@2", began) == 16 * GIB - MIB
    old.source.close()


def test_a_peak_that_was_cleared_begins_anew(old: Host) -> None:
    old.read()
    old.file("peak").write_text("0\n")
    sample = of(old.read())
    assert sample is not None
    assert sample.memory.driver_peak == 0
    # Zero was reached in no sense that matters: the use is larger.
    assert windows(DeviceReport((sample,)))[BANK0].used_max == sample.memory.used
    tree.hold(old.sysfs, 0, 0, {"tensors": 11 * GIB})
    tree.hold(old.sysfs, 0, 0, {"tensors": GIB})
    again = of(old.read())
    assert again is not None
    assert (again.memory.driver_peak, again.memory.reached) == (11 * GIB, 11 * GIB)


def test_of_two_cores_the_larger_peak_is_certain_and_their_sum_is_not(host: Host) -> None:
    tree.hold(host.sysfs, 0, 0, {"tensors": GIB}, peak=GIB)
    tree.hold(host.sysfs, 0, 1, {"tensors": GIB}, peak=GIB)
    host.read()
    for core, spike in ((0, 20 * GIB), (1, 9 * GIB)):
        tree.hold(host.sysfs, 0, core, {"tensors": spike})
        tree.hold(host.sysfs, 0, core, {"tensors": GIB})
    sample = of(host.read())
    assert sample is not None
    assert (sample.memory.used, sample.memory.reached) == (2 * GIB, 20 * GIB)
    assert sample.memory.driver_peak is None


def test_a_peak_that_cannot_be_read_leaves_the_use_and_dates_the_next_from_the_last_good_one(old: Host) -> None:
    old.read()
    known = 1.8e9 + old.now
    old.file("peak").write_text("?\n")
    report = old.read()
    assert report.faults == ("nd0/hbm0: neuron_core0: peak: not a number: '?\\n'",)
    sample = of(report)
    assert sample is not None
    assert (sample.memory.driver_peak, sample.identity.high_water_source) == (None, "driver")
    old.file("peak").write_text(f"{15 * GIB}\n")
    sample = of(old.read())
    assert sample is not None
    assert (sample.memory.reached, sample.memory.reached_at) == (15 * GIB, known)


def test_without_peaks_the_mark_is_sampled(old: Host) -> None:
    for core in (0, 1):
        old.file("peak", core).unlink()
    report = old.read()
    assert report.faults == ()
    assert [s.identity.high_water_source for s in report.devices] == ["sampled"] * 2


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 16 * GIB), st.integers(0, 16 * GIB)), min_size=1, max_size=6))
def test_the_mark_is_never_above_what_was_held(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]
) -> None:
    """A core spikes and rests between two reads: a bank of one core misses no spike, and makes none up."""
    host = Host(tmp_path_factory.mktemp("spikes") / "sys", "Trainium1")
    start = 3 * GIB
    tree.hold(host.sysfs, 0, 0, {"tensors": start}, peak=start)
    reports, most = [host.read()], start
    for spike, rest in steps:
        for figure in (spike, rest):
            tree.hold(host.sysfs, 0, 0, {"tensors": figure})
            most = max(most, figure)
        reports.append(host.read())
    host.source.close()
    assert windows(*reports)[BANK0].used_max == most
