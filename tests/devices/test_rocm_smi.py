"""What AMD's tools say, of every release's shape; and what a source makes of tools that hang, crash and say nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings, strategies as st

from budget_exporter.demo import amdgpu_tree as tree
from budget_exporter.devices import rocm_smi
from budget_exporter.devices._child import ask
from budget_exporter.devices._pyrsmi_child import _address
from budget_exporter.devices._smi_answers import of_amd_smi, of_pyrsmi, of_rocm_smi
from budget_exporter.errors import SourceError
from budget_exporter.facts.device import DeviceReport
from budget_exporter.roots import Roots
from budget_exporter.units import MIB

FIRST, SECOND = "0000:03:00.0", "0000:06:00.0"
USED = (31675383808, 30333206528)


def card(pci: str, used: object) -> dict[str, object]:
    return {"PCI Bus": pci, "VRAM Total Memory (B)": "34208743424", "VRAM Total Used Memory (B)": used}


ROCM = {"card0": card(FIRST, "31675383808"), "card1": card("0000:06:00.0", "30333206528")}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ROCM),
        "WARNING: AMD GPU device(s) is/are in a low-power state. [W]\n" + json.dumps(ROCM) + "\n",
        json.dumps(ROCM, indent=2) + "\nWARNING: done {\n",
        json.dumps({**ROCM, "system": {"PID4243": "unknown, 1, 30333206528, 0, 0"}}),
    ],
    ids=["as it is", "a warning before", "indented, one after", "processes beside"],
)
def test_rocm_smi_is_read_by_pci_address_whatever_is_around_it(text: str) -> None:
    figures = of_rocm_smi(text)
    assert figures.used == {(FIRST, "VRAM"): USED[0], (SECOND, "VRAM"): USED[1]}
    assert (figures.cards, figures.faults) == (2, ())


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ("0", f"{FIRST}: VRAM 0, which no running card holds"),
        ("-5", f"{FIRST}: VRAM is no size: '-5'"),
        ("", f"{FIRST}: VRAM is no size: ''"),
        ("many", f"{FIRST}: VRAM is no size: 'many'"),
        ("9" * 30, f"{FIRST}: VRAM is no size: '{'9' * 24}'"),
        (True, f"{FIRST}: VRAM is no size: 'True'"),
        (None, ""),
    ],
)
def test_a_figure_that_cannot_be_is_none_and_a_fault(told: object, fault: str) -> None:
    figures = of_rocm_smi(json.dumps({"card0": card(FIRST, told), "card1": card(SECOND, "7")}))
    assert figures.used == {(SECOND, "VRAM"): 7}
    assert figures.faults == ((fault,) if fault else ())


def test_a_card_without_an_address_is_never_joined_by_its_number() -> None:
    figures = of_rocm_smi(json.dumps({"card0": {"VRAM Total Used Memory (B)": "7"}, "card1": card("n/a", "7")}))
    assert (figures.used, figures.cards) == ({}, 2)
    assert figures.faults == ("card0: no PCI address: 'None'", "card1: no PCI address: 'n/a'")


@pytest.mark.parametrize("text", ["", "\n", "ERROR: no driver\n", "{", "[1, 2]", "{]", "null"])
def test_where_nothing_is_said_there_are_no_figures(text: str) -> None:
    for read in (of_rocm_smi, of_pyrsmi, lambda told: of_amd_smi(told, told)):
        with pytest.raises(ValueError, match=r"says nothing|no cards"):
            read(text)


def test_rocm_smi_tells_gtt_in_upper_case_addresses() -> None:
    told = {"card0": {"PCI Bus": "0000:7B:00.0", "GTT Total Used Memory (B)": "3221225472"}}
    assert of_rocm_smi(json.dumps(told)).used == {("0000:7b:00.0", "GTT"): 3221225472}


AMD_LIST = [{"gpu": 0, "bdf": FIRST, "uuid": "6b00", "hip_id": 1}, {"gpu": 1, "bdf": SECOND, "hip_id": 0}]


def amd_memory(*used: object) -> list[dict[str, object]]:
    return [
        {"gpu": n, "mem_usage": {"total_vram": {"value": 32624, "unit": "MB"}, "used_vram": told}}
        for n, told in enumerate(used)
    ]


MB = {"value": 30208, "unit": "MB"}


@pytest.mark.parametrize("wrap", [lambda cards: cards, lambda cards: {"gpu_data": cards}], ids=["6.1.2", "10.1"])
@pytest.mark.parametrize("before", ["", "[WARN] low power {state}\n"])
def test_amd_smi_is_read_in_both_shapes_and_counts_in_mib(wrap: Callable[[object], object], before: str) -> None:
    memory = before + json.dumps(wrap(amd_memory(MB, {"value": 28928, "unit": "MB"})))
    for cards in (json.dumps(AMD_LIST), before + json.dumps({"gpu_data": AMD_LIST})):
        figures = of_amd_smi(cards, memory)
        assert figures.used == {(FIRST, "VRAM"): 30208 * MIB, (SECOND, "VRAM"): 28928 * MIB}
        assert figures.faults == ()


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ({"value": 0, "unit": "MB"}, "VRAM 0, which no running card holds"),
        ({"value": -1, "unit": "MB"}, "VRAM is no size: '-1' M"),
        ({"value": 5, "unit": "parsecs"}, "VRAM is no size: '5' parsecs"),
        ({"value": 5}, "VRAM is no size: '5' None"),
        ({"value": "N/A", "unit": "MB"}, ""),
        ("N/A", ""),
        ([], "VRAM is no size: '[]'"),
    ],
)
def test_a_figure_of_amd_smi_that_cannot_be_is_none(told: object, fault: str) -> None:
    figures = of_amd_smi(json.dumps(AMD_LIST), json.dumps(amd_memory(told, MB)))
    assert figures.used == {(SECOND, "VRAM"): 30208 * MIB}
    assert figures.faults == ((f"{FIRST}: {fault}",) if fault else ())


def test_a_number_that_the_list_of_amd_smi_does_not_have_is_no_card() -> None:
    figures = of_amd_smi(json.dumps(AMD_LIST[:1]), json.dumps(amd_memory(MB, MB)))
    assert figures.used == {(FIRST, "VRAM"): 30208 * MIB}


def test_pyrsmi_is_read_and_its_silent_zeros_are_no_data() -> None:
    told = {"cards": [[FIRST, USED[0], 14 * MIB], [SECOND, 0, 0], ["", 5, 5], ["0000:09:00.0", -1, -1]]}
    figures = of_pyrsmi(json.dumps(told))
    assert figures.used == {(FIRST, "VRAM"): USED[0], (FIRST, "GTT"): 14 * MIB}
    assert figures.faults == (
        f"{SECOND}: VRAM 0, which no running card holds",
        "card 2: no PCI address: ''",
        "0000:09:00.0: VRAM is no size: '-1'",
        "0000:09:00.0: GTT is no size: '-1'",
    )
    assert of_pyrsmi('{"cards": []}').cards == 0


@pytest.mark.parametrize(
    ("library", "package", "packed", "address"),
    [
        ("librocm_smi64.so", False, 0x0300, "0000:03:00.0"),
        ("librocm_smi64.so", False, 0x1_0000_C139, "0001:c1:07.1"),
        ("librocm_smi64.so", False, 0x1_7000_C100, "0001:c1:00.0"),
        ("libamd_smi.so", True, 0x1_0000_C100, "0001:c1:00.0"),
        ("libamd_smi.so", False, 0x1_C100, "0001:c1:00.0"),
        ("libamd_smi.so", False, 0x1_0000_C100, "10000:c1:00.0"),
        ("libamd_smi.so", False, -1, ""),
    ],
)
def test_generations_of_pyrsmi_pack_an_address_differently(
    library: str, package: bool, packed: int, address: str
) -> None:
    assert _address(SimpleNamespace(LIBROCM_NAME=library, _using_amdsmi_package=package), packed) == address


JSON = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@settings(deadline=2000)
@given(st.text() | JSON.map(json.dumps))
@example('{"cards": [[]]}')
@example('{"cards": [5]}')
@example('{"cards": [["0000:03:00.0", [1]]]}')
@example('{"card0": {"PCI Bus": [1]}}')
@example('{"gpu_data": [{"gpu": 0, "bdf": 7, "mem_usage": 3}]}')
@example("[" * 100_000)
@example("[\n" * 100_000)
def test_no_text_is_more_than_a_value_error(text: str) -> None:
    for read in (of_rocm_smi, of_pyrsmi, lambda told: of_amd_smi(told, told)):
        try:
            read(text)
        except ValueError as error:
            assert len(str(error)) < 200  # noqa: PT017 - it may be raised or not


class Tools:
    """A folder of programs that stand for AMD's, and a source that finds no others."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir()
        self.sysfs = folder / "sys"
        monkeypatch.setenv("PATH", str(self.folder))
        monkeypatch.setenv("ROCM_PATH", str(folder / "rocm"))

    def put(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        path.chmod(0o755)

    def read(self, limit: float = 20.0) -> DeviceReport:
        return rocm_smi.source(Roots(self.sysfs), limit=limit, clock=lambda: 1.8e9).read(frozenset())


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    made = Tools(tmp_path, monkeypatch)
    tree.build(made.sysfs)
    return made


def says(told: object) -> str:
    return f"cat <<'END'\n{told if isinstance(told, str) else json.dumps(told)}\nEND"


def checks(report: DeviceReport) -> dict[str, int]:
    return {check.device: check.used for check in report.cross_checks}


def test_the_figures_of_rocm_smi_are_checks(tools: Tools) -> None:
    tools.put("rocm-smi", says(ROCM))
    report = tools.read()
    assert checks(report) == {FIRST: USED[0], SECOND: USED[1]}
    assert {check.at for check in report.cross_checks} == {1.8e9}
    assert (report.faults, report.devices, report.holders) == ((), (), ())


def test_it_is_told_to_take_no_locks_and_never_asked_without_a_card(tools: Tools, tmp_path: Path) -> None:
    tools.put("rocm-smi", f'echo "$RSMI_MUTEX_THREAD_ONLY $*" >> {tmp_path}/asked\n{says(ROCM)}')
    tools.read()
    asked = (tmp_path / "asked").read_text()
    assert asked == "1 --showbus --showmeminfo vram gtt --json\n"
    for pci in (FIRST, SECOND):
        tree.remove_card(tools.sysfs, pci)
    assert tools.read() == DeviceReport()
    assert (tmp_path / "asked").read_text() == asked


def test_without_any_tool_that_is_said(tools: Tools) -> None:
    with pytest.raises(SourceError, match="none of pyrsmi, rocm-smi and amd-smi is installed"):
        tools.read()


def test_an_apu_is_compared_where_its_memory_is(tools: Tools, tmp_path: Path) -> None:
    tools.sysfs = tmp_path / "apu"
    tree.build(tools.sysfs, tree.TOPOLOGIES["iGPU first"])
    both = {"VRAM Total Used Memory (B)": "600", "GTT Total Used Memory (B)": "900"}
    tools.put("rocm-smi", says({"card0": {"PCI Bus": "0000:7B:00.0", **both}, "card1": {"PCI Bus": FIRST, **both}}))
    assert checks(tools.read()) == {"0000:7b:00.0": 900, FIRST: 600}


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo 'ERROR:root:Driver not initialized' >&2", "rocm-smi: ERROR:root:Driver not initialized"),
        ("exit 0", "rocm-smi: says nothing"),
        ("exit 8", "rocm-smi: exit code 8"),
        ("kill -SEGV $$", "rocm-smi: ended by signal 11"),
        ("echo {}", "rocm-smi: lists no card"),
        (says({"card0": card(FIRST, "0")}), f"rocm-smi: {FIRST}: VRAM 0, which no running card holds"),
        ("head -c 3000000 /dev/zero; sleep 60", "rocm-smi: says more than 1048576 bytes"),
        ("sleep 60 & sleep 60", "rocm-smi: no answer within 0.3 s"),
        ("exec >&- 2>&-; sleep 60", "rocm-smi: no end within 0.3 s"),
        ("trap '' TERM; while :; do sleep 1; done", "rocm-smi: no answer within 0.3 s"),
    ],
)
def test_a_tool_that_fails_hangs_or_says_nothing_is_a_failed_run(tools: Tools, script: str, sentence: str) -> None:
    tools.put("rocm-smi", script)
    began = time.monotonic()
    with pytest.raises(SourceError) as caught:
        tools.read(limit=0.3 if "sleep" in script else 20.0)
    assert str(caught.value) == sentence
    assert time.monotonic() - began < 15.0


@pytest.mark.parametrize("code", [2, 8, 255])
def test_good_figures_count_whatever_the_exit_code(tools: Tools, code: int) -> None:
    tools.put("rocm-smi", f"{says(ROCM)}\nexit {code}")
    assert checks(tools.read()) == {FIRST: USED[0], SECOND: USED[1]}


def test_one_card_without_a_figure_is_a_fault_beside_the_others_check(tools: Tools) -> None:
    tools.put("rocm-smi", says({**ROCM, "card0": card(FIRST, "0")}))
    report = tools.read()
    assert checks(report) == {SECOND: USED[1]}
    assert report.faults == (f"rocm-smi: {FIRST}: VRAM 0, which no running card holds",)


AMD_SMI = f"""case "$1" in
list) {says(AMD_LIST)}
;;
metric) {says({"gpu_data": amd_memory(MB, MB)})}
;;
esac"""


def test_where_rocm_smi_fails_amd_smi_is_asked(tools: Tools) -> None:
    tools.put("rocm-smi", "exit 0")
    tools.put("amd-smi", AMD_SMI)
    assert checks(tools.read()) == {FIRST: 30208 * MIB, SECOND: 30208 * MIB}
    tools.put("amd-smi", "exit 1")
    with pytest.raises(SourceError, match=r"^rocm-smi: says nothing; amd-smi: exit code 1$"):
        tools.read()


def test_a_list_of_amd_smi_that_changes_meanwhile_names_no_card(tools: Tools, tmp_path: Path) -> None:
    vanished = says(AMD_LIST[1:])
    again = f'[ "$1" = list ] && [ -e {tmp_path}/asked ]'
    tools.put("amd-smi", f"if {again}; then {vanished}\nelse touch {tmp_path}/asked\n{AMD_SMI}\nfi")
    with pytest.raises(SourceError, match=r"^amd-smi: its list of cards changed$"):
        tools.read()


def test_a_program_below_rocm_path_is_found(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "rocm").mkdir()
    tools.put("rocm-smi", says(ROCM))
    tools.folder.rename(tmp_path / "rocm/bin")
    assert checks(tools.read()) == {FIRST: USED[0], SECOND: USED[1]}


def test_all_that_a_child_has_started_ends_with_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    held = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count of names
    with pytest.raises(SourceError, match="no answer within"):
        ask(("/bin/sh", "-c", f"sleep 300 & echo $! > {pid}; wait"), {}, 1.0)
    grandchild = Path("/proc") / pid.read_text().strip()
    deadline = time.monotonic() + 10.0
    while grandchild.exists() and (grandchild / "stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) == held, "no pipe stays open"  # noqa: PTH208 - a count of names


def test_what_cannot_be_started_is_said(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"^no-such-tool: No such file or directory$"):
        ask((str(tmp_path / "no-such-tool"),), {}, 1.0)
