"""The real reader on a synthetic tree: figures, faults, identity, and what it must never do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from budget_exporter.demo import amdgpu_tree as tree
from budget_exporter.demo._kfd_tree import lay_gpu_node
from budget_exporter.demo.amdgpu_tree import Card
from budget_exporter.devices import amdgpu
from budget_exporter.devices._sysfs import KeptCounter, parse_count
from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.facts.device import DeviceReport, DeviceSample
from budget_exporter.roots import Roots
from budget_exporter.units import GIB, MIB
from tests.real_parts import unavailable

FIRST, SECOND = "0000:03:00.0", "0000:06:00.0"


class Time:
    """A monotonic clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Host:
    """A tree and the source that reads it, with time in hand."""

    def __init__(self, sysfs: Path, cards: tuple[Card, ...] = tree.R9700_PAIR, module: str | None = None) -> None:
        self.sysfs = sysfs
        self.time = Time()
        tree.build(sysfs, cards, module)
        self.source = amdgpu.source(Roots(sysfs=sysfs), clock=lambda: 1.8e9, monotonic=self.time)

    def read(self, after: float = 0.0) -> DeviceReport:
        self.time.now += after
        return self.source.read(frozenset())

    def file(self, pci: str, name: str) -> Path:
        return tree.card_directory(self.sysfs, pci) / name


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path / "sys")
    yield made
    made.source.close()


def of(report: DeviceReport, pci: str) -> DeviceSample | None:
    return next((sample for sample in report.devices if sample.identity.device == pci), None)


def used(report: DeviceReport, pci: str) -> int | None:
    sample = of(report, pci)
    return None if sample is None else sample.memory.used


def open_files(below: Path) -> list[Path]:
    """Return the files under ``below`` that this process holds open."""
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - names, to build links that are not followed
    targets = [link.readlink() for link in links if link.is_symlink()]
    return [target for target in targets if target.is_relative_to(below.resolve())]


def test_two_idle_cards(host: Host) -> None:
    report = host.read()
    assert report.faults == ()
    assert [sample.identity.device for sample in report.devices] == [FIRST, SECOND]
    memory, identity = report.devices[0].memory, report.devices[0].identity
    assert (memory.at, memory.size, memory.used) == (1.8e9, 34208743424, 57 * MIB)
    assert (memory.gtt_size, memory.gtt_used) == (62 * GIB, 14 * MIB)
    assert (identity.platform, identity.model, identity.driver) == ("amd", "AMD Radeon AI PRO R9700", "amdgpu")
    assert (identity.uuid, identity.order, identity.integrated) == ("GPU-6b1c001234abcd00", 0, False)
    assert identity.sampler == "amdgpu_vram"


def test_a_change_is_seen_through_the_descriptors_that_stay_open(host: Host) -> None:
    host.read()
    held = sorted(open_files(host.sysfs))
    assert len(held) == 8
    for figure in (31675383808, 5, 34208743424, 31675383807):
        tree.set_used(host.sysfs, FIRST, figure, gtt_used=figure // 2)
        report = host.read(after=0.1)
        assert used(report, FIRST) == figure
        assert report.devices[0].memory.gtt_used == figure // 2
        assert used(report, SECOND) == 57 * MIB
    assert sorted(open_files(host.sysfs)) == held


def test_use_above_size_is_told_as_it_is(host: Host) -> None:
    tree.set_used(host.sysfs, FIRST, tree.R9700_SIZE + 1)
    assert used(host.read(), FIRST) == 34208743425


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "mem_info_vram_used: empty"),
        ("\n", "mem_info_vram_used: empty"),
        ("garbage\n", "mem_info_vram_used: not a number: 'garbage\\n'"),
        ("12 34\n", "mem_info_vram_used: not a number: '12 34\\n'"),
        ("0x10\n", "mem_info_vram_used: not a number: '0x10\\n'"),
        ("1_000\n", "mem_info_vram_used: not a number: '1_000\\n'"),
        ("-1\n", "mem_info_vram_used: negative: '-1\\n'"),
        ("18446744073709551615\n", "mem_info_vram_used: out of range: '18446744073709551615\\n'"),
        ("9" * 5000 + "\n", "mem_info_vram_used: cut short: '999999999999999999999999'"),
        ("31675", "mem_info_vram_used: cut short: '31675'"),
        ("0\n", "mem_info_vram_used: 0, which no running card reports"),
    ],
)
def test_a_figure_that_cannot_be_right_is_no_sample_and_a_fault(host: Host, text: str, sentence: str) -> None:
    host.read()
    host.file(FIRST, "mem_info_vram_used").write_text(text)
    report = host.read()
    assert report.faults == (f"{FIRST}: {sentence}",)
    assert [sample.identity.device for sample in report.devices] == [SECOND]
    tree.set_used(host.sysfs, FIRST, 7 * GIB)
    report = host.read()
    assert (used(report, FIRST), report.faults) == (7 * GIB, ())


@pytest.mark.parametrize("text", ["", "x\n", "-5\n", "0\n"])
def test_a_size_that_cannot_be_right_is_no_sample_and_recovers(host: Host, text: str) -> None:
    total = host.file(FIRST, "mem_info_vram_total")
    total.write_text(text)
    report = host.read()
    assert [sample.identity.device for sample in report.devices] == [SECOND]
    assert len(report.faults) == 1
    assert report.faults[0].startswith(f"{FIRST}: mem_info_vram_total: ")
    total.write_text("34208743424\n")
    assert used(host.read(), FIRST) == 57 * MIB


def test_a_size_that_changes_is_seen_within_a_second(host: Host) -> None:
    host.read()
    host.file(FIRST, "mem_info_vram_total").write_text("32061259776\n")
    sample = host.read(after=1.0).devices[0]
    assert sample.memory.size == 32061259776
    assert sample.identity.sampler == "amdgpu_vram"


def test_a_card_does_not_change_sides_when_its_size_looks_small_for_a_while(host: Host) -> None:
    host.read()
    total = host.file(FIRST, "mem_info_vram_total")
    for text in ("4096\n", "0\n", "34208743424\n"):
        total.write_text(text)
        sample = of(host.read(after=1.0), FIRST)
        if text.startswith("0"):
            assert sample is None
            continue
        assert sample is not None
        assert (sample.identity.integrated, sample.identity.sampler) == (False, "amdgpu_vram")
        assert (sample.memory.size, sample.memory.used) == (int(text), 57 * MIB)


def test_without_gtt_files_there_is_no_gtt_figure_and_no_fault(tmp_path: Path) -> None:
    report = Host(tmp_path / "sys", (Card(gtt_used=None),)).read()
    assert report.faults == ()
    assert (report.devices[0].memory.gtt_size, report.devices[0].memory.gtt_used) == (None, None)


def test_a_broken_gtt_figure_is_a_fault_and_costs_only_that_figure(host: Host) -> None:
    host.file(FIRST, "mem_info_gtt_used").write_text("?\n")
    host.file(SECOND, "mem_info_gtt_total").write_text("")
    report = host.read()
    assert report.faults == (
        f"{FIRST}: mem_info_gtt_used: not a number: '?\\n'",
        f"{SECOND}: mem_info_gtt_total: empty",
    )
    assert (used(report, FIRST), report.devices[0].memory.gtt_used) == (57 * MIB, None)
    assert (used(report, SECOND), report.devices[1].memory.gtt_size) == (57 * MIB, None)
    assert host.read().faults == report.faults, "the fault must last as long as what it is about"


def test_a_vanished_card_is_a_fault_and_comes_back_as_itself(host: Host) -> None:
    host.read()
    tree.remove_card(host.sysfs, FIRST)
    report = host.read(after=1.0)
    assert report.faults == (f"{FIRST}: no longer listed in class/drm",)
    assert [sample.identity.device for sample in report.devices] == [SECOND]
    assert report.devices[0].identity.order == 0, "the runtime renumbers what is left"
    assert len(open_files(host.sysfs)) == 4, "the files of the vanished card are let go"
    tree.add_card(host.sysfs, replace(tree.R9700_PAIR[0], used=3 * GIB))
    report = host.read(after=1.0)
    sample = of(report, FIRST)
    assert sample is not None
    assert (sample.memory.used, sample.identity.uuid) == (3 * GIB, "GPU-6b1c001234abcd00")
    assert report.faults == ()


def test_another_card_in_the_same_slot_has_another_uuid(host: Host) -> None:
    host.read()
    tree.remove_card(host.sysfs, FIRST)
    tree.add_card(host.sysfs, Card(unique_id=0x99, device_id=0x744C, revision=0xC8, used=9 * GIB, size=24 * GIB))
    sample = of(host.read(after=1.0), FIRST)
    assert sample is not None
    assert (sample.identity.uuid, sample.identity.model) == ("GPU-0000000000000099", "AMD Radeon RX 7900 XTX")
    assert (sample.memory.size, sample.memory.used) == (24 * GIB, 9 * GIB)


def test_a_card_taken_out_for_good_is_forgotten_after_ten_minutes(host: Host) -> None:
    host.read()
    tree.remove_card(host.sysfs, FIRST)
    assert len(host.read(after=1.0).faults) == 1
    assert len(host.read(after=599.0).faults) == 1
    assert host.read(after=1.0).faults == ()
    assert used(host.read(), SECOND) == 57 * MIB


def test_when_every_card_is_gone_the_run_fails_until_they_are_forgotten(host: Host) -> None:
    host.read()
    for pci in (FIRST, SECOND):
        tree.remove_card(host.sysfs, pci)
    with pytest.raises(SourceError, match=rf"{FIRST}: no longer listed in class/drm; {SECOND}: no longer"):
        host.read(after=1.0)
    with pytest.raises(SourceError):
        host.read(after=300.0)
    assert host.read(after=300.0) == DeviceReport()


def test_a_file_that_was_replaced_under_a_kept_descriptor_is_noticed_within_a_second(host: Host) -> None:
    host.read()
    path = host.file(FIRST, "mem_info_vram_used")
    other = path.with_name("other")
    other.write_text("4294967296\n")
    other.rename(path)
    assert used(host.read(after=1.0), FIRST) == 4294967296


def test_a_card_whose_number_changed_is_the_same_card(host: Host) -> None:
    before = host.read()
    tree.remove_card(host.sysfs, FIRST)
    tree.add_card(host.sysfs, replace(tree.R9700_PAIR[0], number=7))
    assert host.read(after=1.0).devices == before.devices


def test_one_missing_counter_costs_one_card(host: Host) -> None:
    host.read()
    host.file(FIRST, "mem_info_vram_used").unlink()
    report = host.read(after=1.0)
    assert report.faults == (f"{FIRST}: mem_info_vram_used: no such file",)
    assert used(report, SECOND) == 57 * MIB


@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_what_is_no_file_is_a_fault_and_never_waited_for(host: Host, kind: str) -> None:
    path = host.file(FIRST, "mem_info_vram_used")
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    report = host.read()
    assert report.faults == (f"{FIRST}: mem_info_vram_used: not a regular file",)
    assert used(report, SECOND) == 57 * MIB


@pytest.fixture
def ordinary_user() -> Iterator[Path]:
    """A folder anyone may enter, and this process without root's right to read everything."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        root = os.geteuid() == 0
        yield Path(folder)
        if root:
            os.seteuid(0)


def drop_privilege() -> None:
    if os.geteuid() == 0:
        os.seteuid(65534)


def test_a_forbidden_counter_names_the_capability(ordinary_user: Path) -> None:
    host = Host(ordinary_user / "sys")
    host.file(FIRST, "mem_info_vram_used").chmod(0)
    drop_privilege()
    report = host.read()
    assert report.faults == (f"{FIRST}: mem_info_vram_used: permission denied (CAP_DAC_READ_SEARCH grants it)",)
    assert used(report, SECOND) == 57 * MIB


def test_a_list_of_cards_that_may_not_be_read_fails_the_run(ordinary_user: Path) -> None:
    host = Host(ordinary_user / "sys")
    (host.sysfs / "class/drm").chmod(0)
    drop_privilege()
    with pytest.raises(SourceDenied, match="CAP_DAC_READ_SEARCH"):
        host.read()


def test_a_uuid_that_is_refused_for_a_while_is_kept_and_one_never_told_is_asked_again(ordinary_user: Path) -> None:
    host = Host(ordinary_user / "sys")
    host.file(SECOND, "unique_id").chmod(0)
    drop_privilege()
    report = host.read()
    assert [sample.identity.uuid for sample in report.devices] == ["GPU-6b1c001234abcd00", None]
    os.seteuid(os.getuid())
    host.file(FIRST, "unique_id").chmod(0)
    host.file(SECOND, "unique_id").chmod(0o444)
    drop_privilege()
    report = host.read(after=1.0)
    assert [sample.identity.uuid for sample in report.devices] == ["GPU-6b1c001234abcd00", "GPU-6b1c001234abcd01"]


def test_a_node_that_may_not_be_read_is_left_out_of_the_order(ordinary_user: Path) -> None:
    host = Host(ordinary_user / "sys")
    for name in ("gpu_id", "name", "properties"):
        (host.sysfs / "class/kfd/kfd/topology/nodes/1" / name).chmod(0)
    drop_privilege()
    report = host.read()
    assert [sample.identity.order for sample in report.devices] == [None, 0]
    assert report.faults == ()


def test_a_host_without_cards_is_an_empty_report(tmp_path: Path) -> None:
    assert Host(tmp_path / "no-cards", ()).read() == DeviceReport()
    bare = tmp_path / "no-drm"
    bare.mkdir()
    assert amdgpu.source(Roots(sysfs=bare)).read(frozenset()) == DeviceReport()


def test_a_wrong_sysfs_path_is_said(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nowhere: no such directory"):
        amdgpu.source(Roots(sysfs=tmp_path / "nowhere")).read(frozenset())


def test_a_list_of_cards_that_is_no_list_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    (tmp_path / "class/drm").write_text("")
    with pytest.raises(SourceError, match="class/drm: Not a directory"):
        amdgpu.source(Roots(sysfs=tmp_path)).read(frozenset())


def test_a_card_that_appears_later_is_found_within_a_second(tmp_path: Path) -> None:
    host = Host(tmp_path / "sys", ())
    assert host.read().devices == ()
    tree.add_card(host.sysfs, Card())
    assert used(host.read(after=1.0), FIRST) == 57 * MIB


def test_cards_of_other_drivers_are_not_ours(host: Host) -> None:
    uevent = host.file(FIRST, "uevent")
    uevent.write_text(uevent.read_text().replace("DRIVER=amdgpu", "DRIVER=i915"))
    report = host.read()
    assert [sample.identity.device for sample in report.devices] == [SECOND]
    assert report.faults == ()


def test_a_card_that_will_not_say_what_it_is_is_a_fault(host: Host) -> None:
    uevent = host.file(FIRST, "uevent")
    uevent.unlink()
    uevent.mkdir()
    report = host.read()
    assert report.faults == ("card1: uevent: not a regular file",)
    assert [sample.identity.device for sample in report.devices] == [SECOND]


@pytest.mark.parametrize(
    ("topology", "orders"),
    [
        ("two cards", {FIRST: 0, SECOND: 1}),
        ("iGPU first", {"0000:7b:00.0": 0, FIRST: 1, SECOND: 2}),
        ("KFD reversed", {FIRST: 1, SECOND: 0}),
        ("first card hidden", {FIRST: None, SECOND: 0}),
        ("numbered from 5", {FIRST: 0, SECOND: 1}),
    ],
)
def test_the_runtime_order_follows_kfd_and_nothing_else(
    tmp_path: Path, topology: str, orders: dict[str, int | None]
) -> None:
    report = Host(tmp_path / "sys", tree.TOPOLOGIES[topology]).read()
    assert {sample.identity.device: sample.identity.order for sample in report.devices} == orders
    assert report.faults == ()


def test_a_card_that_is_cut_into_partitions_says_into_how_many(host: Host) -> None:
    nodes = host.sysfs / "class/kfd/kfd/topology/nodes"
    first = next(n for n in nodes.iterdir() if (n / "gpu_id").read_text().strip() != "0")
    address = next(
        line.split()[1] for line in (first / "properties").read_text().splitlines() if line.startswith("location_id ")
    )
    shutil.copytree(first, nodes / "90")
    text = (nodes / "90/properties").read_text()
    (nodes / "90/properties").write_text(text.replace(address, str(int(address) | 1 << 28)))
    (nodes / "90/gpu_id").write_text("61234\n")
    by_order = sorted((s.identity for s in host.read().devices), key=lambda identity: identity.partitions)
    assert [identity.partitions for identity in by_order] == [1, 2]


def test_without_kfd_there_is_no_order_and_no_fault(tmp_path: Path) -> None:
    report = Host(tmp_path / "sys", (Card(kfd_node=None),)).read()
    assert (report.devices[0].identity.order, report.faults) == (None, ())


@pytest.mark.parametrize("text", ["simd_count many\n", "simd_count 128\n", "one two three\n"])
def test_a_topology_that_makes_no_sense_gives_no_order_at_all(host: Host, text: str) -> None:
    (host.sysfs / "class/kfd/kfd/topology/nodes/1/properties").write_text(text)
    report = host.read()
    assert [sample.identity.order for sample in report.devices] == [None, None]
    assert [sample.memory.used for sample in report.devices] == [57 * MIB, 57 * MIB]
    assert len(report.faults) == 1
    assert report.faults[0].startswith("kfd topology: node 1: ")


def test_a_topology_that_cannot_be_read_is_a_fault_and_costs_only_the_order(host: Host) -> None:
    generation = host.sysfs / "class/kfd/kfd/topology/generation_id"
    generation.unlink()
    generation.mkdir()
    report = host.read()
    assert [sample.identity.order for sample in report.devices] == [None, None]
    assert [fault.partition(": /")[0] for fault in report.faults] == ["kfd topology: not a regular file"]


def test_a_node_without_memory_banks_still_has_its_place(host: Host) -> None:
    shutil.rmtree(host.sysfs / "class/kfd/kfd/topology/nodes/1/mem_banks")
    report = host.read()
    assert [sample.identity.order for sample in report.devices] == [0, 1]
    assert (used(report, FIRST), report.faults) == (57 * MIB, ())


def test_an_igpu_is_told_apart_and_its_memory_is_the_hosts(tmp_path: Path) -> None:
    sample = of(Host(tmp_path / "sys", tree.TOPOLOGIES["iGPU first"]).read(), "0000:7b:00.0")
    assert sample is not None
    assert sample.identity.integrated
    assert (sample.identity.sampler, sample.identity.model, sample.identity.uuid) == ("amdgpu_gtt", "1002:13c0", None)
    assert (sample.memory.size, sample.memory.used) == (62 * GIB, 900 * MIB)


UMA = Card(device_id=0x1586, revision=0xC1, size=8 * GIB, used=5 * GIB, gtt_size=100 * GIB, gtt_used=60 * GIB)


@pytest.mark.parametrize(
    ("card", "sampler", "figures"),
    [
        (replace(UMA, kfd_memory=100 * GIB), "amdgpu_gtt", (100 * GIB, 60 * GIB)),
        (replace(UMA, cpu_cores=16), "amdgpu_gtt", (100 * GIB, 60 * GIB)),
        (replace(UMA, cpu_cores=16, size=96 * GIB, gtt_size=16 * GIB), "amdgpu_vram", (96 * GIB, 5 * GIB)),
        (replace(UMA, size=512 * MIB, used=512 * MIB, kfd_node=None), "amdgpu_gtt", (100 * GIB, 60 * GIB)),
    ],
    ids=["KFD promises more than VRAM", "CPU in the node", "large carve-out", "small carve-out"],
)
def test_an_apu_is_measured_where_its_allocations_go(
    tmp_path: Path, card: Card, sampler: str, figures: tuple[int, int]
) -> None:
    sample = Host(tmp_path / "sys", (card,)).read().devices[0]
    assert sample.identity.integrated
    assert (sample.identity.sampler, (sample.memory.size, sample.memory.used)) == (sampler, figures)


@pytest.mark.parametrize("name", ["mem_info_gtt_used", "mem_info_gtt_total"])
def test_an_apu_whose_gtt_counter_fails_has_no_figure_rather_than_the_other_one(tmp_path: Path, name: str) -> None:
    host = Host(tmp_path / "sys", (replace(UMA, cpu_cores=16),))
    host.read()
    host.file(FIRST, name).write_text("")
    report = host.read(after=1.0)
    assert (report.devices, report.faults) == ((), (f"{FIRST}: {name}: empty",))
    host.file(FIRST, name).unlink()
    report = host.read(after=1.0)
    assert (report.devices, report.faults) == ((), (f"{FIRST}: {name}: no such file",))


def test_an_apu_that_kfd_learns_of_later_is_measured_right_from_then_on(tmp_path: Path) -> None:
    host = Host(tmp_path / "sys", (replace(UMA, kfd_node=None),))
    assert host.read().devices[0].identity.sampler == "amdgpu_vram"
    lay_gpu_node(host.sysfs, replace(UMA, kfd_memory=100 * GIB))
    sample = host.read(after=1.0).devices[0]
    assert (sample.identity.sampler, sample.memory.used) == ("amdgpu_gtt", 60 * GIB)


def test_hiding_its_node_does_not_turn_an_apu_into_a_card(tmp_path: Path) -> None:
    host = Host(tmp_path / "sys", (replace(UMA, cpu_cores=16),))
    host.read()
    for name in ("gpu_id", "properties"):
        (host.sysfs / "class/kfd/kfd/topology/nodes/1" / name).write_text("")
    identity = host.read(after=1.0).devices[0].identity
    assert (identity.integrated, identity.sampler, identity.order) == (True, "amdgpu_gtt", None)


@pytest.mark.parametrize(
    ("card", "model"),
    [
        (Card(revision=0xC8), "AMD Radeon AI PRO R9600D"),
        (Card(revision=0x01), "1002:7551"),
        (Card(device_id=0xABCD), "1002:abcd"),
        (Card(product_name="AMD Instinct  MI300X\x07 OAM"), "AMD Instinct MI300X OAM"),
    ],
)
def test_the_model_is_the_cards_own_word_or_a_known_name_or_its_id(tmp_path: Path, card: Card, model: str) -> None:
    assert Host(tmp_path / "sys", (card,)).read().devices[0].identity.model == model


def test_the_version_of_an_out_of_tree_module_is_the_driver(tmp_path: Path) -> None:
    assert Host(tmp_path / "sys", module="6.14.14").read().devices[0].identity.driver == "6.14.14"


def test_close_releases_every_descriptor(host: Host) -> None:
    host.read()
    assert open_files(host.sysfs)
    host.source.close()
    assert open_files(host.sysfs) == []


OBSERVED = """
import json, os, sys
from pathlib import Path
from budget_exporter.devices import amdgpu
from budget_exporter.roots import Roots
opened = []
sys.addaudithook(lambda event, args: opened.append((str(args[0]), args[2])) if event == "open" else None)
source = amdgpu.source(Roots(sysfs=Path(sys.argv[1])))
devices = len(source.read(frozenset()).devices)
held = {}
for entry in os.listdir("/proc/self/fd"):
    try:
        held[os.readlink(f"/proc/self/fd/{entry}")] = Path(f"/proc/self/fdinfo/{entry}").read_text()
    except OSError:
        pass
print(json.dumps({"devices": devices, "opened": [o for o in opened if "/proc/self" not in o[0]], "held": held}))
"""


def test_everything_is_opened_read_only_and_nothing_outside_the_tree(host: Host) -> None:
    command = [sys.executable, "-c", OBSERVED, str(host.sysfs)]
    seen = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
    assert seen["devices"] == 2
    assert len(seen["opened"]) > 10
    assert [path for path, _ in seen["opened"] if not Path(path).is_relative_to(host.sysfs)] == []
    assert [path for path, flags in seen["opened"] if flags & os.O_ACCMODE != os.O_RDONLY] == []
    held = {path: info for path, info in seen["held"].items() if Path(path).is_relative_to(host.sysfs)}
    assert len(held) == 8
    for info in held.values():
        flags = int(next(line.split()[1] for line in info.splitlines() if line.startswith("flags:")), 8)
        assert flags & os.O_ACCMODE == os.O_RDONLY


def test_figures_that_change_while_they_are_read_are_old_or_new_and_never_a_mixture(host: Host) -> None:
    figures = (31675383808, 59768832, 34208743424, 7)
    done = threading.Event()

    def write() -> None:
        for turn in range(4000):
            tree.set_used(host.sysfs, FIRST, figures[turn % len(figures)])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = {used(host.read(after=0.1), FIRST)}
    while not done.is_set():
        seen.add(used(host.read(after=0.1), FIRST))
    writer.join()
    # None: both tries met a line that was being written. It is not a wrong figure.
    assert seen - {57 * MIB, None} <= set(figures)
    assert used(host.read(), FIRST) == 7


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_every_count_is_read_as_printed_and_none_of_its_beginnings_is_taken_for_it(count: int) -> None:
    line = b"%d\n" % count
    assert parse_count(line) == count
    for length in range(len(line)):
        with pytest.raises(ValueError, match=r"cut short|empty"):
            parse_count(line[:length])


@given(st.binary(max_size=64))
@example(b"+5\n")
@example("\u0665\n".encode())
@example(b"5\r\n")
def test_nothing_but_digits_and_a_newline_is_a_count(data: bytes) -> None:
    digits = data.rstrip(b"\n")
    well_formed = digits not in {data, b""} and set(digits) <= set(b"0123456789") and int(digits) < 2**63
    if well_formed:
        assert parse_count(data) == int(digits)
    else:
        with pytest.raises(ValueError, match=r"empty|cut short|negative|not a number|out of range"):
            parse_count(data)


@pytest.mark.real_part("cgroup")
def test_a_kept_counter_outlives_its_kernel_object() -> None:
    """Real kernfs: a cgroup's file answers ENODEV once the cgroup is gone, and is found again when it is back."""
    group = cgroup_of_our_own()
    try:
        counter = KeptCounter(group / "pids.current")
        assert counter.read() == 0
        group.rmdir()
        with pytest.raises(SourceError, match=r"pids\.current: no such file"):
            counter.read()
        group.mkdir()
        assert counter.read() == 0
        counter.close()
    finally:
        group.rmdir()


def cgroup_of_our_own() -> Path:
    for root in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        group = root / f"budget-exporter-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / "pids.current").exists():
            return group
        group.rmdir()
    return unavailable("no cgroup with a pids controller can be made here")
