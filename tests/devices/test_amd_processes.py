"""The real reader of processes on synthetic trees: whose figure goes first, what is complete, and what breaks it."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from budget_exporter.demo import amdgpu_tree as tree, procfs_tree
from budget_exporter.demo.amdgpu_tree import Card
from budget_exporter.demo.procfs_tree import INITIAL_NAMESPACE, Process
from budget_exporter.devices import amd_processes
from budget_exporter.devices._amd_fdinfo import parse_fdinfo
from budget_exporter.facts.device import DeviceReport, Holders, ProcessMemory
from budget_exporter.roots import Roots
from budget_exporter.units import GIB, MIB

FIRST, SECOND = "0000:03:00.0", "0000:06:00.0"
INTEGRATED = "0000:7b:00.0"
WORKER, OTHER, DESKTOP = 4242, 5151, 777


class Host:
    """Two trees and the source that reads them, with time in hand."""

    def __init__(self, folder: Path, cards: tuple[Card, ...] = tree.R9700_PAIR, namespace: int = 4026531836) -> None:
        self.sysfs, self.procfs = folder / "sys", folder / "proc"
        self.now = 1000.0
        tree.build(self.sysfs, cards)
        names = {1: "systemd", WORKER: "VLLM::Worker_TP0", OTHER: "python3", DESKTOP: "Xorg"}
        processes = [Process(pid, 0, comm=name, namespace=namespace) for pid, name in names.items()]
        procfs_tree.build(self.procfs, processes, 1_800_000_000, "boot")
        self.source = amd_processes.source(
            Roots(self.sysfs, self.procfs), clock=lambda: 1.8e9, monotonic=lambda: self.now
        )

    def read(self, *interest: int, after: float = 0.0) -> DeviceReport:
        self.now += after
        return self.source.read(frozenset(interest))

    def kfd(self, pid: int, name: str, pci: str = FIRST) -> Path:
        return self.sysfs / "class/kfd/kfd/proc" / str(pid) / name.format(tree.gpu_id_of(pci))

    def open(self, pid: int, vram: int, gtt: int = 0, *, pci: str = FIRST, client: int = 7, descriptor: int = 20,
             evicted: int = 0) -> None:  # fmt: skip
        procfs_tree.open_card(
            self.procfs, pid, pci=pci, render_minor=128, client=client, vram=vram, gtt=gtt, evicted=evicted,
            descriptor=descriptor,
        )  # fmt: skip


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def on(report: DeviceReport, device: str = FIRST) -> Holders:
    return next(holders for holders in report.holders if holders.device == device)


def by_pid(report: DeviceReport, device: str = FIRST) -> dict[int, ProcessMemory]:
    return {process.pid: process for process in on(report, device).processes}


def test_kfd_lists_every_process_of_the_host_and_its_list_is_complete(host: Host) -> None:
    tree.add_kfd_process(host.sysfs, WORKER, {FIRST: 29 * GIB})
    tree.add_kfd_process(host.sysfs, OTHER, {SECOND: 3 * GIB})
    tree.set_evicted(host.sysfs, WORKER, FIRST, 1500)
    report = host.read(WORKER)
    assert report.faults == ()
    assert [(h.device, h.at, h.complete) for h in report.holders] == [(FIRST, 1.8e9, True), (SECOND, 1.8e9, True)]
    assert by_pid(report)[WORKER] == ProcessMemory(
        WORKER, 29 * GIB, evicted_seconds=1.5, name="VLLM::Worker_TP", state="S"
    )
    assert by_pid(report, SECOND)[OTHER].used == 3 * GIB
    assert (by_pid(report, SECOND)[WORKER].used, by_pid(report)[OTHER].used) == (0, 0)


def test_a_card_that_nobody_holds_has_a_complete_list_of_nobody(host: Host) -> None:
    assert host.read().holders == tuple(Holders(device, 1.8e9, (), complete=True) for device in (FIRST, SECOND))


def test_a_figure_of_kfd_goes_before_what_is_resident_and_is_never_added_to_it(host: Host) -> None:
    """Fdinfo counts a buffer of another rank that is mapped here (30 GiB); KFD counts what was allocated (29)."""
    tree.add_kfd_process(host.sysfs, WORKER, {FIRST: 29 * GIB})
    host.open(WORKER, 30 * GIB, 2 * MIB, evicted=256 * MIB)
    (process,) = on(host.read(WORKER)).processes
    assert (process.used, process.gtt_used, process.evicted) == (29 * GIB, 2 * MIB, 256 * MIB)


def test_without_kfd_what_is_resident_counts_and_nothing_is_complete(tmp_path: Path) -> None:
    host = Host(tmp_path, (Card(kfd_node=None),))
    shutil.rmtree(host.sysfs / "devices/virtual/kfd")
    assert host.read(WORKER) == DeviceReport()
    host.open(WORKER, 30 * GIB, 2 * MIB)
    report = host.read(WORKER)
    assert (report.faults, on(report).complete) == ((), False)
    (process,) = on(report).processes
    assert (process.used, process.gtt_used, process.evicted, process.evicted_seconds) == (30 * GIB, 2 * MIB, 0, None)


def test_clients_are_counted_once_however_many_descriptors_and_processes_share_them(host: Host) -> None:
    host.open(OTHER, 5 * GIB, client=7)
    host.open(WORKER, 5 * GIB, client=7, descriptor=20)
    host.open(WORKER, 5 * GIB, client=7, descriptor=21)
    host.open(WORKER, 1 * GIB, client=8, descriptor=22)
    host.open(WORKER, 2 * GIB, client=7, descriptor=23, pci=SECOND)
    report = host.read(WORKER, OTHER)
    assert {pid: p.used for pid, p in by_pid(report).items()} == {WORKER: 6 * GIB}, "the first PID has the shared one"
    assert {pid: p.used for pid, p in by_pid(report, SECOND).items()} == {WORKER: 2 * GIB}


def test_others_that_have_a_card_open_are_found_at_a_low_rate_and_read_at_each_run(host: Host) -> None:
    host.read()
    host.open(DESKTOP, 126 * MIB)
    assert on(host.read(after=10.0)).processes == ()
    report = host.read(after=5.0)
    assert by_pid(report)[DESKTOP] == ProcessMemory(DESKTOP, 126 * MIB, 0, 0, name="Xorg", state="S")
    host.open(DESKTOP, 130 * MIB)
    assert by_pid(host.read(after=1.0))[DESKTOP].used == 130 * MIB
    procfs_tree.remove(host.procfs, DESKTOP)
    assert on(host.read(after=1.0)).processes == ()


def test_contexts_beside_the_first_are_added(host: Host) -> None:
    tree.add_kfd_process(host.sysfs, WORKER, {FIRST: 4 * GIB})
    tree.set_evicted(host.sysfs, WORKER, FIRST, 200)
    for number, used in ((1, GIB), (12, 2 * GIB)):
        context = host.kfd(WORKER, f"context_{number}/vram_{{}}")
        context.parent.mkdir()
        context.write_text(f"{used}\n")
    stats = host.kfd(WORKER, "context_1/stats_{}/evicted_ms")
    stats.parent.mkdir()
    stats.write_text("300\n")
    process = by_pid(host.read())[WORKER]
    assert (process.used, process.evicted_seconds) == (7 * GIB, 0.5)


def test_partitions_of_one_card_are_one_device(host: Host) -> None:
    """Bits 28 to 31 of location_id number a partition (MI300): two ids, one address."""
    nodes = host.sysfs / "class/kfd/kfd/topology/nodes"
    shutil.copytree(nodes / "1", nodes / "3")
    (nodes / "3/gpu_id").write_text("4711\n")
    properties = (nodes / "3/properties").read_text()
    (nodes / "3/properties").write_text(properties.replace(f"location_id {3 << 8}", f"location_id {1 << 28 | 3 << 8}"))
    tree.add_kfd_process(host.sysfs, WORKER, {FIRST: 4 * GIB})
    (host.kfd(WORKER, "vram_4711")).write_text(f"{GIB}\n")
    assert by_pid(host.read())[WORKER].used == 5 * GIB


def test_a_hidden_card_has_no_list_of_kfds_and_the_other_is_complete(tmp_path: Path) -> None:
    host = Host(tmp_path, tree.TOPOLOGIES["first card hidden"])
    tree.add_kfd_process(host.sysfs, WORKER, {SECOND: GIB})
    report = host.read()
    assert [(h.device, h.complete) for h in report.holders] == [(SECOND, True)]
    host.open(WORKER, 2 * GIB)
    report = host.read(WORKER)
    assert [(h.device, h.complete) for h in report.holders] == [(FIRST, False), (SECOND, True)]
    assert (by_pid(report)[WORKER].used, report.faults) == (2 * GIB, ())


def test_cards_that_come_and_go(host: Host) -> None:
    tree.add_kfd_process(host.sysfs, WORKER, {FIRST: GIB, SECOND: 2 * GIB})
    tree.remove_card(host.sysfs, FIRST)
    report = host.read()
    assert [(h.device, h.complete) for h in report.holders] == [(SECOND, True)]
    tree.add_card(host.sysfs, tree.R9700_PAIR[0])
    assert by_pid(host.read())[WORKER].used == GIB
    for pci in (FIRST, SECOND):
        tree.remove_card(host.sysfs, pci)
    assert host.read() == DeviceReport()


def test_a_host_without_cards_or_without_anything_is_an_empty_report(tmp_path: Path) -> None:
    host = Host(tmp_path / "none", ())
    assert host.read(WORKER) == DeviceReport()
    assert amd_processes.source(Roots(tmp_path / "no", tmp_path / "no")).read(frozenset({1})) == DeviceReport()


def test_on_an_apu_what_is_in_system_memory_is_what_it_holds(tmp_path: Path) -> None:
    host = Host(tmp_path, tree.TOPOLOGIES["iGPU first"])
    host.open(WORKER, 300 * MIB, 800 * MIB, pci=INTEGRATED)
    host.open(WORKER, 3 * GIB, 20 * MIB, pci=FIRST, descriptor=21)
    report = host.read(WORKER)
    assert by_pid(report, INTEGRATED)[WORKER].used == 800 * MIB
    assert by_pid(report)[WORKER].used == 3 * GIB


def test_a_zombie_that_still_holds_memory_is_told_as_one(host: Host) -> None:
    procfs_tree.remove(host.procfs, WORKER)
    procfs_tree.add(host.procfs, Process(WORKER, comm="VLLM::Worker", state="Z"))
    tree.add_kfd_process(host.sysfs, WORKER, {FIRST: GIB})
    assert (by_pid(host.read())[WORKER].state, by_pid(host.read())[WORKER].name) == ("Z", "VLLM::Worker")


def test_in_a_pid_namespace_of_its_own_kfd_cannot_be_joined(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    host = Host(tmp_path, namespace=4026532999)
    tree.add_kfd_process(host.sysfs, WORKER, {FIRST: 29 * GIB})
    host.open(WORKER, GIB)
    with caplog.at_level(logging.WARNING):
        reports = [host.read(WORKER) for _ in range(3)]
    assert reports[0].faults == ()
    assert [(h.device, h.complete) for h in reports[-1].holders] == [(FIRST, False)]
    assert by_pid(reports[-1])[WORKER].used == GIB, "PID 4242 of the host is another process"
    assert [record.getMessage().partition(" shows ")[2][:30] for record in caplog.records] == [
        "a PID namespace of its own, KF"
    ]


@pytest.mark.parametrize(
    ("namespace", "hidden", "ours", "joined"),
    [
        (INITIAL_NAMESPACE, False, False, True),
        (4026532999, False, False, False),
        (4026532999, False, True, False),
        (INITIAL_NAMESPACE, True, True, True),
        (4026532999, True, True, False),
        (INITIAL_NAMESPACE, True, False, False),
    ],
    ids=[
        "init's is the host's",
        "init's is not",
        "init's goes before ours",
        "ours is, init's is hidden",
        "ours is not",
        "neither may be seen",
    ],
)
def test_whose_pids_a_procfs_shows(tmp_path: Path, *, namespace: int, hidden: bool, ours: bool, joined: bool) -> None:
    host = Host(tmp_path, namespace=namespace)
    if hidden:
        shutil.rmtree(host.procfs / "1/ns")
    if ours:
        (host.procfs / "self").symlink_to(str(WORKER))
    if not hidden and ours:
        shutil.rmtree(host.procfs / str(WORKER) / "ns")
        (host.procfs / str(WORKER) / "ns").mkdir()
        (host.procfs / str(WORKER) / "ns/pid").symlink_to(f"pid:[{INITIAL_NAMESPACE}]")
    assert {holders.complete for holders in host.read().holders} == ({True} if joined else set())


def test_a_kernel_thread_is_seen_in_the_hosts_namespace_only(tmp_path: Path) -> None:
    """Where neither namespace may be looked at; a process called kthreadd that is none proves nothing."""
    host = Host(tmp_path, namespace=INITIAL_NAMESPACE)
    shutil.rmtree(host.procfs / "1/ns")
    for kernel in (False, True):
        procfs_tree.add(host.procfs, Process(2, 0, comm="kthreadd", kernel=kernel))
        assert {holders.complete for holders in host.read().holders} == ({True} if kernel else set())
        procfs_tree.remove(host.procfs, 2)


GARBAGE = [
    ("", "empty"),
    ("\n", "empty"),
    ("garbage\n", "not a number: 'garbage\\n'"),
    ("-1\n", "negative: '-1\\n'"),
    ("18446744073709551615\n", "out of range: '18446744073709551615\\n'"),
    ("123", "cut short: '123'"),
]


@pytest.mark.parametrize(("text", "sentence"), GARBAGE)
def test_a_figure_of_kfd_that_makes_no_sense_costs_completeness_of_that_card(
    host: Host, text: str, sentence: str
) -> None:
    tree.add_kfd_process(host.sysfs, WORKER, {FIRST: GIB, SECOND: GIB})
    tree.add_kfd_process(host.sysfs, OTHER, {FIRST: 2 * GIB})
    host.kfd(WORKER, "vram_{}").write_text(text)
    report = host.read()
    assert report.faults == (f"kfd/proc/{WORKER}/vram_{tree.gpu_id_of(FIRST)}: {sentence}",)
    assert {h.device: h.complete for h in report.holders} == {FIRST: False, SECOND: True}
    assert {pid: p.used for pid, p in by_pid(report).items()} == {OTHER: 2 * GIB}
    tree.add_kfd_process(host.sysfs, WORKER, {FIRST: GIB, SECOND: GIB})
    assert (host.read().faults, on(host.read()).complete) == ((), True)


@pytest.mark.parametrize(("text", "sentence"), GARBAGE)
def test_an_evicted_time_that_makes_no_sense_costs_only_that_time(host: Host, text: str, sentence: str) -> None:
    tree.add_kfd_process(host.sysfs, WORKER, {FIRST: GIB})
    host.kfd(WORKER, "stats_{}/evicted_ms").write_text(text)
    report = host.read()
    assert report.faults == (f"kfd/proc/{WORKER}/stats_{tree.gpu_id_of(FIRST)}/evicted_ms: {sentence}",)
    assert (by_pid(report)[WORKER].used, by_pid(report)[WORKER].evicted_seconds) == (GIB, None)
    assert on(report).complete


def test_more_than_the_card_has_is_told_as_it_is(host: Host) -> None:
    tree.add_kfd_process(host.sysfs, WORKER, {FIRST: tree.R9700_SIZE + 1})
    host.open(OTHER, 2 * tree.R9700_SIZE)
    assert {pid: p.used for pid, p in by_pid(host.read(OTHER)).items()} == {
        WORKER: tree.R9700_SIZE + 1,
        OTHER: 2 * tree.R9700_SIZE,
    }


@pytest.mark.parametrize(
    "lose",
    [
        lambda host: tree.remove_kfd_process(host.sysfs, WORKER),
        lambda host: host.kfd(WORKER, "vram_{}").unlink(),
        lambda host: [path.unlink() for path in host.kfd(WORKER, ".").glob("vram_*")],
        lambda host: shutil.rmtree(host.kfd(WORKER, "stats_{}")),
        lambda host: procfs_tree.remove(host.procfs, WORKER),
    ],
    ids=["its entry", "one figure", "all figures", "its times", "the process itself"],
)
def test_what_vanishes_while_it_is_watched_is_gone_and_no_fault(host: Host, lose: Callable[[Host], object]) -> None:
    tree.add_kfd_process(host.sysfs, WORKER, {FIRST: GIB})
    host.open(WORKER, GIB, client=7)
    host.read(WORKER)
    lose(host)
    report = host.read(WORKER)
    assert report.faults == ()
    assert on(report).complete
    # Of the process that ended, KFD still says what it holds: nobody may call that free.
    assert [p.used for p in on(report).processes] in ([GIB], [])


@pytest.mark.parametrize(
    ("what", "complete", "faults"),
    [
        ("class/kfd/kfd/proc", None, 0),
        (f"class/kfd/kfd/proc/{WORKER}", True, 0),
        (f"class/kfd/kfd/proc/{WORKER}/vram_{tree.gpu_id_of(FIRST)}", False, 1),
        ("class/kfd/kfd/topology/nodes/1/gpu_id", None, 1),
    ],
)
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_of_another_kind_is_never_waited_for(
    host: Host, what: str, complete: bool | None, faults: int, kind: str
) -> None:
    tree.add_kfd_process(host.sysfs, WORKER, {FIRST: GIB})
    path = host.sysfs / what
    is_folder = path.is_dir()
    shutil.rmtree(path) if is_folder else path.unlink()
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    report = host.read()
    found = {h.device: h.complete for h in report.holders}.get(FIRST)
    assert found is (True if is_folder and kind == "folder" else complete)
    assert len(report.faults) == faults


@pytest.mark.parametrize("text", ["-1", "x", "99999999999", "1 2"])
def test_an_id_that_is_none_is_a_fault_of_the_topology(host: Host, text: str) -> None:
    (host.sysfs / "class/kfd/kfd/topology/nodes/1/gpu_id").write_text(f"{text}\n")
    report = host.read()
    assert report.holders == ()
    assert report.faults == (f"kfd topology: node 1: gpu_id is no number: {text!r}",)


@pytest.fixture
def refused() -> Iterator[Callable[[], None]]:
    """Take root's right to read everything from this process until the test is over."""

    def drop() -> None:
        if os.geteuid() == 0:
            os.seteuid(65534)

    root = os.geteuid() == 0
    yield drop
    if root:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("what", ["vram_{}", ".", "..", "stats_{}"])
def test_what_of_kfd_may_not_be_read_is_a_fault_and_never_complete(
    open_folder: Path, refused: Callable[[], None], what: str
) -> None:
    host = Host(open_folder)
    tree.add_kfd_process(host.sysfs, WORKER, {FIRST: GIB})
    host.kfd(WORKER, what).chmod(0)
    refused()
    report = host.read()
    where = {"vram_{}": f"/{WORKER}/vram_{tree.gpu_id_of(FIRST)}", ".": f"/{WORKER}", "..": "",
             "stats_{}": f"/{WORKER}/stats_{tree.gpu_id_of(FIRST)}/evicted_ms"}[what]  # fmt: skip
    assert report.faults == (f"kfd/proc{where}: Permission denied (CAP_DAC_READ_SEARCH grants it)",)
    assert on(report).complete is (what == "stats_{}")
    assert on(report, SECOND).complete is (what in {"vram_{}", "stats_{}"})


def test_an_engine_that_may_not_be_looked_at_names_the_capability(
    open_folder: Path, refused: Callable[[], None]
) -> None:
    host = Host(open_folder)
    tree.add_kfd_process(host.sysfs, WORKER, {FIRST: GIB})
    host.open(WORKER, GIB)
    host.open(DESKTOP, GIB, client=9)
    for pid in (WORKER, DESKTOP):
        (host.procfs / str(pid) / "fd").chmod(0)
    refused()
    report = host.read(WORKER)
    assert report.faults == ("fdinfo of 1 of the engines' processes: permission denied (CAP_SYS_PTRACE grants it)",)
    assert by_pid(report)[WORKER] == ProcessMemory(WORKER, GIB, evicted_seconds=0.0, name="VLLM::Worker_TP", state="S")
    assert on(report).complete


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("drm-resident-vram:\t1048576 KiB", "drm-resident-vram:\tmuch", "drm-resident-vram: 'much'"),
        ("drm-resident-vram:\t1048576 KiB", "drm-resident-vram:\t-1 KiB", "drm-resident-vram: '-1 KiB'"),
        ("drm-resident-vram:\t1048576 KiB", "drm-resident-vram:", "drm-resident-vram: ''"),
        ("drm-resident-vram:\t1048576 KiB", "drm-resident-vram:\t1 parsec", "drm-resident-vram: '1 parsec'"),
        ("drm-pdev:\t0000:03:00.0", "drm-pdev:\tcard0", "drm-pdev: 'card0'"),
        ("drm-pdev:\t0000:03:00.0\n", "", "drm-pdev: ''"),
        ("drm-client-id:\t7", "drm-client-id:\tseven", "drm-client-id: 'seven'"),
        ("amd-evicted-vram:\t0 KiB", "amd-evicted-vram:\t?", "amd-evicted-vram: '?'"),
    ],
)
def test_fdinfo_that_makes_no_sense_is_a_fault_and_no_figure(host: Host, old: str, new: str, sentence: str) -> None:
    host.open(WORKER, GIB)
    path = host.procfs / str(WORKER) / "fdinfo/20"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    report = host.read(WORKER)
    assert report.faults == (f"fdinfo of process {WORKER}: {sentence}",)
    assert on(report).processes == ()


@pytest.mark.parametrize(
    "text", ["", "pos:\t0\nflags:\t02\n", "drm-driver:\ti915\ndrm-pdev:\t0000:00:02.0\n", "\0\xff"]
)
def test_fdinfo_of_other_drivers_is_none_of_ours(host: Host, text: str) -> None:
    host.open(WORKER, GIB)
    (host.procfs / str(WORKER) / "fdinfo/20").write_text(text)
    report = host.read(WORKER)
    assert (report.faults, on(report).processes) == ((), ())


def test_a_descriptor_that_vanishes_before_it_is_read_is_gone(host: Host) -> None:
    host.open(WORKER, GIB)
    (host.procfs / str(WORKER) / "fdinfo/20").unlink()
    report = host.read(WORKER)
    assert (report.faults, on(report).processes) == ((), ())


HEAD = "drm-driver:\tamdgpu\ndrm-pdev:\t0000:03:00.0\ndrm-client-id:\t1\n"


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("drm-memory-vram:\t100 KiB\ndrm-memory-gtt: \t4 KiB\n", (102400, 4096, None)),
        ("drm-resident-vram:\t3 MiB\ndrm-memory-vram:\t3072 KiB\n", (3 * MIB, None, None)),
        ("drm-resident-vram:\t0\ndrm-memory-vram:\t77 KiB\n", (0, None, None)),
        ("drm-total-vram:\t9 KiB\ndrm-shared-vram:\t9 KiB\n", (None, None, None)),
        ("drm-resident-gtt:\t12345\namd-evicted-vram:\t8 KiB\n", (None, 12345, 8192)),
    ],
    ids=["6.12", "7.2, one figure twice", "resident goes first, also where it is 0", "no such figure", "plain bytes"],
)
def test_keys_and_units_of_kernels(text: str, figures: tuple[int | None, int | None, int | None]) -> None:
    client = parse_fdinfo(HEAD + text)
    assert client is not None
    assert (client.vram, client.gtt, client.evicted) == figures


@given(st.text())
@example(HEAD + "drm-resident-vram:\t9999999999999999999 MiB")
@example(HEAD.replace("1\n", "\u0661\n"))
def test_no_text_is_more_than_a_value_error(text: str) -> None:
    for each in (text, HEAD + text, f"{HEAD}drm-resident-vram:{text}"):
        try:
            parse_fdinfo(each)
        except ValueError as error:
            assert len(str(error)) < 200  # noqa: PT017 - it may be raised or not


def test_the_figures_follow_the_process(host: Host) -> None:
    for used in (GIB, 3 * GIB, 0, 2 * GIB):
        tree.add_kfd_process(host.sysfs, WORKER, {FIRST: used})
        host.open(WORKER, used)
        assert by_pid(host.read(WORKER, after=1.0))[WORKER].used == used


def test_what_the_tree_calls_evicted_is_told(tmp_path: Path) -> None:
    host = Host(tmp_path, (replace(tree.R9700_PAIR[0], size=32061259776),))
    host.open(WORKER, 20 * GIB, 3 * GIB, evicted=2 * GIB)
    assert by_pid(host.read(WORKER))[WORKER].evicted == 2 * GIB
