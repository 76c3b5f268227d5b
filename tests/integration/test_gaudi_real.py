"""The real habana-pyhlml over a fake libhlml: its own answers and those of our reader, which loads it, are the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from budget_exporter.units import GIB, MIB
from tests.devices.gaudi_host import FIRST, PAIR, SECOND, GaudiCard, GaudiHost
from tests.integration.processes import exporter, until
from tests.real_parts import program, unavailable

HERE = Path(__file__).parent
PYHLML = HERE.parents[1] / ".cache/habana-pyhlml-1.24.2.481"
SIZE = 98304 * MIB
pytestmark = pytest.mark.real_part("pyhlml")

THEIRS = """
import json, sys
import pyhlml
pyhlml.hlmlInit()
for _ in sys.stdin:
    cards = []
    for index in range(pyhlml.hlmlDeviceGetCount()):
        card = pyhlml.hlmlDeviceGetHandleByIndex(index)
        memory = pyhlml.hlmlDeviceGetMemoryInfo(card)
        cards.append([pyhlml.hlmlDeviceGetPCIInfo(card).bus_id.decode(), memory.total, memory.used,
                      pyhlml.hlmlDeviceGetModuleID(card), pyhlml.hlmlDeviceGetUUID(card).decode(), "hlml"])
    print(json.dumps(cards), flush=True)
"""
OURS = """
import json, sys, time
from pathlib import Path
from budget_exporter.devices import gaudi
from budget_exporter.errors import SourceError
from budget_exporter.roots import Roots
root = Path(sys.argv[1])
source = gaudi.source(Roots(root / "sys", root / "proc", root / "host"), hl_smi=str(root / "bin/hl-smi"))
for _ in sys.stdin:
    try:
        report = source.read(frozenset())
        cards = [[s.identity.device, s.memory.size, s.memory.used, s.identity.order, s.identity.uuid,
                  s.identity.sampler] for s in report.devices]
        pools, faults = [s.memory.allocator_used for s in report.devices], list(report.faults)
    except SourceError as error:
        cards, pools, faults = [], [], ["error: " + str(error)]
    print(json.dumps({"cards": cards, "pools": pools, "faults": faults, "interval": source.interval}), flush=True)
source.close()
"""


IN_ITS_THREAD = """
import json, sys, time
from pathlib import Path
from budget_exporter.devices import gaudi
from budget_exporter.roots import Roots
from budget_exporter.sidecar.runner import Runner
source = gaudi.source(Roots(Path(sys.argv[1]) / "sys"), interval=0.02)
runner = Runner("gaudi", source.interval, lambda: (source.read(frozenset()), []), lambda _, report: report, timeout=0.2)
runner.start()
for _, wanted in zip(sys.stdin, (True, False, True)):
    deadline = time.monotonic() + 20
    while runner.health().success is not wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    print(json.dumps([runner.health().success, runner.health().error]), flush=True)
"""


class Asked:
    """A child in a namespace with the fake library; it answers a line for a line."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child = child

    def __call__(self) -> Any:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write("read\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            _, told = self.child.communicate(timeout=30)
            pytest.fail(told)
        return json.loads(line)


class Rig:
    """The synthetic host, and a library that says what its file says."""

    def __init__(self, root: Path) -> None:
        if not (PYHLML / "pyhlml/main.py").exists():
            unavailable("habana-pyhlml 1.24.2.481 (make test installs it)")
        self.host = GaudiHost(root)
        self.library = root / "habanalabs/libhlml.so"
        self.library.parent.mkdir()
        source = str(HERE / "fake_libhlml.c")
        command = [program("gcc"), "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(self.library), source]
        subprocess.run(command, check=True, timeout=60)
        self.says(*PAIR)

    def says(self, *cards: GaudiCard, init: int = 0, codes: tuple[int, ...] = (0, 0)) -> None:
        lines = [
            f"{card.pci} {card.minor} {card.module} {card.size} {card.used} {code}"
            for card, code in zip(cards, codes, strict=False)
        ]
        new = self.host.root / "cards.new"
        new.write_text("\n".join([str(init), *lines, ""]))
        new.rename(self.host.root / "cards")  # the library meets the old or the new file, never half of one

    @contextmanager
    def child(self, code: str, binding: Path | None = PYHLML) -> Iterator[Asked]:
        environment = {"PATH": os.environ["PATH"], "FAKE_HLML": str(self.host.root / "cards")}
        if binding is not None:
            environment["PYTHONPATH"] = str(binding)
        folder, root = str(self.library.parent), str(self.host.root)
        command = [str(HERE / "fake_habanalabs.sh"), folder, sys.executable, "-c", code, root]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
            try:
                yield Asked(child)
                assert child.stdin is not None
                child.stdin.close()
                assert child.wait(timeout=30) == 0
            finally:
                child.kill()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_the_binding_and_our_reader_say_the_same_of_every_card_and_see_the_same_changes(rig: Rig) -> None:
    first, second = PAIR
    with rig.child(THEIRS) as theirs, rig.child(OURS) as ours:
        for used, size in (
            (768 * MIB, SIZE),
            (57326698496, SIZE),
            (SIZE - 1, SIZE),
            (SIZE + 5, SIZE),
            (5, 131072 * MIB),
        ):
            rig.says(replace(first, used=used, size=size), second)
            told = ours()
            assert told["faults"] == []
            assert told["cards"] == theirs()
            assert told["cards"][0] == [FIRST, size, used, 3, "01P0-HL2080A0-15-TNPS34-20-03", "hlml"]
            assert told["interval"] == 1.0


def test_the_driver_s_figure_and_the_framework_s_are_two(rig: Rig) -> None:
    rig.says(replace(PAIR[0], used=97 * GIB), PAIR[1])
    rig.host.record(0, 57326698496, at=time.time())
    with rig.child(OURS) as ours:
        told = ours()
        assert [card[2] for card in told["cards"]] == [97 * GIB, 768 * MIB]
        assert told["pools"] == [57326698496, None]


@pytest.mark.parametrize(
    ("card", "code", "fault"),
    [
        (replace(PAIR[0], used=0), 0, "used: 0, which no running card reports"),
        (replace(PAIR[0], size=0), 0, "size: 0, which no running card reports"),
        (replace(PAIR[0], used=2**64 - 4096), 0, f"used: out of range: {2**64 - 4096}"),
        (PAIR[0], 15, "hlmlDeviceGetMemoryInfo: HLML error 15 (the card is lost)"),
        (PAIR[0], 3, "hlmlDeviceGetMemoryInfo: HLML error 3 (not supported)"),
        (PAIR[0], 99, "hlmlDeviceGetMemoryInfo: HLML error 99 (unknown code)"),
    ],
)
def test_a_card_that_fails_alone_costs_only_its_figures(rig: Rig, card: GaudiCard, code: int, fault: str) -> None:
    with rig.child(OURS) as ours:
        assert ours()["faults"] == []
        rig.says(card, PAIR[1], codes=(code, 0))
        told = ours()
        assert told["faults"] == [f"{FIRST}: {fault}"]
        assert [card[0] for card in told["cards"]] == [SECOND]
        rig.says(*PAIR)
        assert ours()["faults"] == []


def test_cards_that_vanish_and_a_driver_that_is_reloaded(rig: Rig) -> None:
    with rig.child(OURS) as ours:
        ours()
        rig.says(PAIR[1])
        assert ours()["faults"] == [f"{FIRST}: no longer answers"]
        rig.says()
        assert ours()["faults"] == [f"error: {FIRST}: no longer answers; {SECOND}: no longer answers"]
        rig.says(*PAIR, init=9)
        gone = "HLML error 9 (the driver is not loaded); and there is no hl-smi"
        assert ours()["faults"] == [f"error: hlmlDeviceGetCount: {gone}"]
        assert ours()["faults"] == [f"error: hlmlInit: {gone}"]
        rig.says(*PAIR)
        told = ours()
        assert (told["faults"], len(told["cards"])) == ([], 2)


def test_garbage_for_an_address_is_no_device(rig: Rig) -> None:
    with rig.child(OURS) as ours:
        rig.says(replace(PAIR[0], pci="garbage"), PAIR[1])
        told = ours()
        assert told["faults"] == ["hlmlDeviceGetPCIInfo: not a PCI address: 'garbage'"]
        assert [card[0] for card in told["cards"]] == [SECOND]


def test_where_the_library_does_not_answer_hl_smi_does_and_back(rig: Rig) -> None:
    rig.host.cards(*PAIR)
    rig.says(*PAIR, init=9)
    with rig.child(OURS) as ours:
        told = ours()
        assert (told["faults"], told["interval"]) == ([], 10.0)
        assert [[card[0], card[5]] for card in told["cards"]] == [[FIRST, "hl_smi"], [SECOND, "hl_smi"]]


@pytest.mark.parametrize("there", [True, False])
def test_without_the_binding_hl_smi_is_asked_or_the_extra_is_named(rig: Rig, there: bool) -> None:
    if there:
        rig.host.cards(*PAIR)
    with rig.child(OURS, binding=None) as ours:
        told = ours()
        assert len(told["cards"]) == (2 if there else 0)
        why = "error: habana-pyhlml is not installed (extra gaudi); and there is no hl-smi"
        assert told["faults"] == ([] if there else [why])


def test_a_library_that_is_none_is_an_error_and_prints_nothing(rig: Rig) -> None:
    rig.library.write_bytes(b"no library")
    with rig.child(OURS) as ours:
        (fault,) = ours()["faults"]
        assert fault.startswith("error: /usr/lib/habanalabs/libhlml.so: ")


def test_a_call_of_the_library_that_hangs_is_left_alone_and_recovers(rig: Rig) -> None:
    with rig.child(IN_ITS_THREAD) as ours:
        assert ours() == [True, ""]
        rig.says(*PAIR, codes=(0, -1))
        assert ours() == [False, "no answer for 0 s"]
        rig.says(*PAIR)
        assert ours() == [True, ""]


def test_the_exporter_shows_both_figures(rig: Rig, tmp_path: Path) -> None:
    rig.says(replace(PAIR[0], used=97 * GIB), PAIR[1])
    root = rig.host.root
    words = [
        "serve",
        f"--path.sysfs={root / 'sys'}",
        f"--path.procfs={root / 'proc'}",
        f"--path.rootfs={root / 'host'}",
    ]
    inside = [str(HERE / "fake_habanalabs.sh"), str(rig.library.parent)]
    environment = ["env", f"PYTHONPATH={PYHLML}", f"FAKE_HLML={root / 'cards'}"]
    prefix = [*inside, *environment]
    with exporter(tmp_path / "log", *words, "--state.file=", "--no-source.systemd", prefix=prefix) as running:
        running.ready()
        rig.host.record(0, 57326698496, at=time.time())
        name = "budget_device_memory_allocator_used_bytes"
        until(lambda: running.value(name, device=FIRST) == 57326698496, "the framework's figure is shown")
        assert running.value("budget_device_memory_used_bytes", device=FIRST) == 97 * GIB
        assert running.value(name, device=SECOND) is None
        assert running.value("budget_device_info", device=FIRST, platform="gaudi", model="HL-225", sampler="hlml") == 1
        rig.says()
        until(lambda: running.value("budget_source_success", source="gaudi") == 0, "the cards are missed")
        until(lambda: not running.value("budget_device_info", device=FIRST), "the series has ended")
