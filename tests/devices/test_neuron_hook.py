"""The reader of the hooks' records: whose they are, which are old, and what is garbage."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from budget_exporter.devices import neuron_hook
from budget_exporter.devices._hook_folders import opened
from budget_exporter.devices._hook_record import parse
from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.facts.device import DeviceReport, RuntimeMemory
from budget_exporter.roots import Roots
from budget_exporter.sidecar.devices import Board
from budget_exporter.sidecar.reports import fold

NOW = 1.8e9
BOOT = "11111111-2222-3333-4444-555555555555"
RECORD: dict[str, Any] = {
    "schema": "budget_exporter_neuron_hook/1",
    "rank": 0,
    "replica": 0,
    "pid": 4711,
    "pid_namespace": 4026531836,
    "start_ticks": 100200,
    "boot_id": BOOT,
    "interval": 10.0,
    "used": 18993905664,
    "limit": 25769803776,
    "at": NOW - 1.0,
    "call_seconds": 0.0001,
    "samples": 3,
    "cpu_seconds": 0.003,
}


class Host:
    """A procfs and a folder of records."""

    def __init__(self, folder: Path, *, configured: bool = True) -> None:
        self.procfs, self.records = folder / "proc", folder / "records"
        self.records.mkdir(parents=True)
        boot = self.procfs / "sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text(f"{BOOT}\n")
        roots = Roots(procfs=self.procfs, neuron_hook=self.records if configured else None)
        self.source = neuron_hook.source(roots, clock=lambda: NOW)

    def process(
        self, pid: int, ticks: int = 100200, *, inner: int | None = None, state: str = "S", environ: bytes = b""
    ) -> Path:
        """Lay a process; ``inner`` is its PID in its own namespace."""
        folder = self.procfs / str(pid)
        folder.mkdir(exist_ok=True)
        # Field 22 is the start; the name may hold anything.
        fields = [state, *["0"] * 18, str(ticks), *["0"] * 10]
        (folder / "stat").write_text(f"{pid} (VLLM::W) R (x)) {' '.join(fields)}\n")
        (folder / "status").write_text(f"Name:\tx\nNSpid:\t{pid}" + (f"\t{inner}\n" if inner else "\n"))
        (folder / "environ").write_bytes(environ)
        return folder

    def write(self, name: str = "vnc-4026531836-4711.json", text: str | bytes | None = None, **fields: Any) -> Path:
        path = self.records / name
        data = json.dumps({key: value for key, value in {**RECORD, **fields}.items() if value is not ...})
        path.write_bytes(data.encode() if text is None else text.encode() if isinstance(text, str) else text)
        return path

    def read(self, *interest: int) -> DeviceReport:
        return self.source.read(frozenset(interest or (4711,)))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path)
    made.process(4711)
    return made


SAID = RuntimeMemory(4711, NOW - 1.0, 18993905664, 25769803776, rank=0, replica=0)


def test_a_record_is_what_its_runtime_says(host: Host) -> None:
    host.write()
    assert host.read() == DeviceReport(runtime=(SAID,))
    board = Board()
    board.tell("neuron_hook", fold(None, host.read()), NOW, 5.0)
    assert board.runtime(NOW) == {4711: SAID}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"at": NOW - 30.1}, "older than three periods"),
        ({"at": NOW - 91, "interval": 30.0}, "older than three periods of a slow one"),
        ({"at": NOW + 61}, "from the future"),
        ({"interval": 1e9, "at": NOW - 901}, "no period is longer than five minutes"),
        ({"start_ticks": 100201}, "another process has that PID now"),
        ({"pid": 4712}, "its writer does not live"),
        ({"boot_id": "66666666-2222-3333-4444-555555555555"}, "written before the host was started"),
    ],
)
def test_old_records_and_those_of_the_dead_tell_nothing_and_are_no_fault(
    host: Host, fields: dict[str, Any], why: str
) -> None:
    host.write(**fields)
    assert host.read() == DeviceReport(), why


def test_a_writer_that_ended_and_was_not_reaped_is_dead(host: Host) -> None:
    host.write()
    host.process(4711, state="Z")
    assert host.read() == DeviceReport()


def test_a_slow_hook_s_record_lasts_longer(host: Host) -> None:
    host.write(at=NOW - 89, interval=30.0)
    assert len(host.read().runtime) == 1


def test_a_worker_in_a_container_is_known_by_its_pid_there(host: Host) -> None:
    host.process(90001, 555, inner=7)
    host.write(pid=7, start_ticks=555, pid_namespace=4026532999)
    assert [told.pid for told in host.read(4711, 90001).runtime] == [90001]


def test_two_containers_with_such_a_process_tell_nothing(host: Host) -> None:
    """Where the namespaces may not be looked at: a figure under the wrong engine would be worse than none."""
    for pid in (90001, 90002):
        host.process(pid, 555, inner=7)
    host.write(pid=7, start_ticks=555, pid_namespace=4026532999)
    assert host.read(90001, 90002).runtime == ()


def test_a_process_that_is_no_engine_s_is_not_looked_up(host: Host) -> None:
    host.write()
    assert host.source.read(frozenset()) == DeviceReport()


GARBAGE: list[tuple[str | bytes | None, dict[str, Any], str]] = [
    ("", {}, "empty"),
    ("{", {}, "not JSON"),
    (b"\xff\xfe", {}, "not JSON"),
    ("[" * 4000, {}, "not JSON"),
    ("[1]", {}, "schema: not ours, or of another version"),
    (None, {"schema": "budget_exporter_neuron_hook/2"}, "schema: not ours, or of another version"),
    ("x" * 4097, {}, "more than 4096 bytes"),
    (None, {"used": -1}, "used: not a count"),
    (None, {"used": ...}, "used: missing"),
    (None, {"used": True}, "used: not a count"),
    (None, {"used": 1.5}, "used: not a count"),
    (None, {"used": "5"}, "used: not a count"),
    (None, {"limit": 1 << 63}, "limit: not a count"),
    (None, {"used": 25769803777}, "used: 25769803777 bytes of 25769803776"),
    (None, {"pid": "4711"}, "pid: not a count"),
    (None, {"start_ticks": None}, "start_ticks: missing"),
    (None, {"at": float("nan")}, "at: not seconds"),
    (None, {"at": float("inf")}, "at: not seconds"),
    (None, {"at": 10**400}, "at: not seconds"),
    (None, {"at": True}, "at: not seconds"),
    (None, {"interval": ...}, "interval: missing"),
    (None, {"rank": -1}, "rank: not a count"),
    (None, {"failure": "rm -rf /\n"}, "failure: not a name"),
]


@pytest.mark.parametrize(("text", "fields", "sentence"), GARBAGE)
def test_garbage_is_a_fault_and_costs_no_other_record(
    host: Host, text: str | bytes | None, fields: dict[str, Any], sentence: str
) -> None:
    host.write("vnc-1-1.json", text, **fields)
    host.write()
    assert host.read() == DeviceReport(runtime=(SAID,), faults=(f"vnc-1-1.json: {sentence}",))


@given(st.binary(max_size=200) | st.from_type(dict[str, int]).map(lambda value: json.dumps(value).encode()))
def test_no_bytes_get_anything_but_a_value_error_out_of_it(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(data)


def test_a_runtime_that_told_nothing_is_a_fault(host: Host) -> None:
    host.write(failure="RuntimeError", used=..., limit=...)
    sentence = "vnc-4026531836-4711.json: the runtime told nothing: RuntimeError"
    assert host.read() == DeviceReport(faults=(sentence,))


def test_what_is_no_record_by_its_name_is_not_opened(host: Host) -> None:
    for name in ("vnc-1-1.part", "notes.txt", ".vnc-1-1.json", "vnc-a-1.json"):
        host.write(name, "garbage")
    assert host.read() == DeviceReport()


def test_a_pipe_a_link_and_a_directory_are_never_followed_or_waited_for(host: Host, tmp_path: Path) -> None:
    os.mkfifo(host.records / "vnc-1-1.json")
    (host.records / "vnc-1-2.json").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text(json.dumps(RECORD))
    (host.records / "vnc-1-3.json").mkdir()
    report = host.read()
    assert report.runtime == ()
    assert report.faults == (
        "vnc-1-1.json: not a regular file",
        "vnc-1-2.json: Too many levels of symbolic links",
        "vnc-1-3.json: not a regular file",
    )


def test_more_records_than_there_are_cores_are_not_all_read(host: Host) -> None:
    for number in range(600):
        host.write(f"vnc-1-{number:04}.json")
    report = host.read()
    assert report.faults == (f"{host.records}: 600 records, 512 of them read",)


def test_a_configured_folder_that_is_not_there_fails_the_run(host: Host) -> None:
    host.records.rmdir()
    with pytest.raises(SourceError, match="records: no such directory"):
        host.read()
    host.records.mkdir()
    host.write()
    assert len(host.read().runtime) == 1


def test_a_configured_folder_that_may_not_be_read_fails_the_run() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        host = Host(Path(folder))
        host.records.chmod(0)
        if os.geteuid() == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(SourceDenied, match="CAP_DAC_READ_SEARCH"):
                host.read()
        finally:
            os.seteuid(os.getuid())


# Folders that engines' environments name.


@pytest.fixture
def unconfigured(tmp_path: Path) -> Host:
    return Host(tmp_path, configured=False)


def engine(host: Host, pid: int, folder: str) -> Path:
    """Lay a process whose environment names ``folder``; return its root."""
    process = host.process(pid, environ=b"PATH=/bin\0BUDGET_NEURON_HOOK_DIR=" + folder.encode() + b"\0X=1\0")
    root = process / "root"
    root.mkdir()
    return root


def test_a_host_without_hooks_is_quiet(unconfigured: Host) -> None:
    unconfigured.process(4711, environ=b"PATH=/bin\0")
    assert unconfigured.read(4711, 4712) == DeviceReport()


def test_the_folder_is_found_inside_the_engine_s_root(unconfigured: Host) -> None:
    inside = engine(unconfigured, 4711, "/run/vnc") / "run/vnc"
    assert unconfigured.read() == DeviceReport(), "it is not there yet"
    inside.mkdir(parents=True)
    unconfigured.records = inside
    unconfigured.write()
    assert unconfigured.read() == DeviceReport(runtime=(SAID,))


def test_a_folder_that_two_processes_name_is_read_once(unconfigured: Host) -> None:
    inside = engine(unconfigured, 4711, "/run/vnc") / "run/vnc"
    inside.mkdir(parents=True)
    second = unconfigured.process(4712, environ=b"BUDGET_NEURON_HOOK_DIR=/run/vnc\0")
    (second / "root").symlink_to(unconfigured.procfs / "4711/root")
    unconfigured.records = inside
    unconfigured.write("vnc-1-1.json", "garbage")
    assert unconfigured.read(4711, 4712).faults == ("vnc-1-1.json: not JSON",)


@pytest.mark.parametrize("folder", ["run/vnc", "", "/run/../../outside", "/link"])
def test_no_path_leads_out_of_the_engine_s_root(unconfigured: Host, tmp_path: Path, folder: str) -> None:
    root = engine(unconfigured, 4711, folder)
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "link").symlink_to(outside)
    (root / "run").mkdir()
    unconfigured.records = outside
    unconfigured.write()
    assert unconfigured.read() == DeviceReport()


def test_a_folder_stays_closed_after_the_read(host: Host) -> None:
    host.write()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count of names
    for _ in range(5):
        host.read()
    with opened(host.records / "nowhere") as folder:
        assert folder is None
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above
