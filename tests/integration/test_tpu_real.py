"""The official client and our reader over a service made of the official messages: the same figures."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from budget_exporter.devices import tpu
from budget_exporter.devices._tpu_messages import SCHEMA
from budget_exporter.facts.device import DeviceReport
from budget_exporter.roots import Roots
from budget_exporter.units import MIB
from tests.devices.tpu_host import V6E_SIZE, tpu_roots
from tests.integration.processes import exporter, until
from tests.real_parts import unavailable

HERE = Path(__file__).parent
TPU_INFO = HERE.parents[1] / ".cache/tpu-info-0.14.2"
PATHS = (("sys", "sys"), ("proc", "proc"), ("root", "host"))
NONE: frozenset[int] = frozenset()
pytestmark = pytest.mark.real_part("tpu-info")

OFFICIAL = """
import json, sys
from tpu_info import device, metrics
for _ in sys.stdin:
    usage = metrics.get_chip_usage(device.TpuChip[sys.argv[1]], sys.argv[2])
    print(json.dumps([[u.device_id, u.total_memory, u.memory_usage] for u in usage]), flush=True)
"""
FIELDS = """
import json
from tpu_info.proto import tpu_metric_service_pb2 as wire
kinds = {1: "double", 3: "int64", 8: "bool", 9: "string"}
def kind(field):
    bare = field.message_type.name if field.type == 11 else kinds.get(field.type, str(field.type))
    return "*" * field.is_repeated + bare
print(json.dumps({
    name: [[f.name, f.number, kind(f), f.containing_oneof.name if f.containing_oneof else ""] for f in message.fields]
    for name, message in wire.DESCRIPTOR.message_types_by_name.items()}))
print([method.full_name for method in wire.DESCRIPTOR.services_by_name["RuntimeMetricService"].methods][0])
"""


@pytest.fixture(autouse=True)
def official_client() -> None:
    if not (TPU_INFO / "tpu_info/metrics.py").exists():
        unavailable("tpu-info 0.14.2 (make test installs it)")


class Child:
    """A program with the official client's modules, asked line by line."""

    def __init__(self, *arguments: str) -> None:
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(TPU_INFO)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, *arguments], env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        told = self.process.stdout.readline()
        if not told:
            pytest.fail(self.process.communicate(timeout=30)[1])
        return told

    def ask(self) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write("read\n")
        self.process.stdin.flush()
        return json.loads(self.line())

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)


class Libtpu:
    """The service in its own process; ``says`` changes what it answers from the next call on."""

    def __init__(self, folder: Path) -> None:
        self._state = folder / "state.json"
        self.says([0], [V6E_SIZE])
        self.child = Child(str(HERE / "fake_libtpu.py"), str(self._state))
        self.port = int(self.child.line())

    def says(self, used: list[int], size: list[int], *, cores: int = 1, delay: float = 0.0) -> None:
        new = self._state.with_suffix(".new")
        duty = [97.5] * (len(used) // cores)
        new.write_text(json.dumps({"used": used, "size": size, "duty": duty, "delay": delay}), encoding="utf-8")
        new.rename(self._state)

    def source(self, roots: Roots, limit: float = 5.0) -> tpu.TpuSource:
        return tpu.source(roots, environ={"TPU_RUNTIME_METRICS_PORTS": str(self.port)}, limit=limit)


@pytest.fixture
def libtpu(tmp_path: Path) -> Iterator[Libtpu]:
    made = Libtpu(tmp_path)
    yield made
    made.child.end()


@contextmanager
def official(libtpu: Libtpu, chip: str) -> Iterator[Child]:
    client = Child("-c", OFFICIAL, chip, f"localhost:{libtpu.port}")
    try:
        yield client
    finally:
        client.end()


def ours(report: DeviceReport) -> list[list[int | None]]:
    assert report.faults == ()
    assert [sample.identity.device for sample in report.devices] == [f"accel{at}" for at in range(len(report.devices))]
    return [[sample.identity.order, sample.memory.size, sample.memory.used] for sample in report.devices]


@pytest.mark.parametrize(
    ("chip", "cores", "size"), [("V6E", 1, V6E_SIZE), ("V7X", 2, 101732835328), ("V5P", 1, 102803439616)]
)
async def test_the_same_figures_of_every_device_and_the_same_changes(
    tmp_path: Path, libtpu: Libtpu, chip: str, cores: int, size: int
) -> None:
    source = libtpu.source(tpu_roots(tmp_path / "root"))
    with official(libtpu, chip) as client:
        for used in ([30590904565, 0, 7, 2**40], [1, 2, 3, size], [size + 1, 0, 0, 0]):
            libtpu.says(used, [size] * 4, cores=cores)
            theirs = await asyncio.to_thread(client.ask)
            assert ours(await source.read(NONE)) == theirs
            assert theirs == [[at, size, figure] for at, figure in enumerate(used)]
    source.close()


async def test_a_process_that_ends_is_no_fault_and_one_that_hangs_is_one(tmp_path: Path, libtpu: Libtpu) -> None:
    source = libtpu.source(tpu_roots(tmp_path / "root"), limit=1.0)
    assert len(ours(await source.read(NONE))) == 1
    libtpu.says([1], [V6E_SIZE], delay=3.0)
    began = time.monotonic()
    (fault,) = (await source.read(NONE)).faults
    assert fault.endswith("tpu.runtime.hbm.memory.usage.bytes: deadline_exceeded")
    assert time.monotonic() - began < 2.5
    libtpu.says([1], [V6E_SIZE])
    assert ours(await source.read(NONE)) == [[0, V6E_SIZE, 1]]
    libtpu.child.end()
    assert await source.read(NONE) == DeviceReport()
    source.close()


def test_our_table_of_messages_has_the_official_names_numbers_and_types() -> None:
    child = Child("-c", FIELDS)
    official_fields, method = json.loads(child.line()), child.line().strip()
    child.end()
    for name, fields in SCHEMA.items():
        for field in fields:
            assert list(field) in official_fields[name], f"{name}.{field[0]}"
    assert method == "tpu.monitoring.runtime.RuntimeMetricService.GetRuntimeMetric"


MEMORY = """
import asyncio, json, sys
from pathlib import Path
from budget_exporter import config, sources
from budget_exporter.commands import serve
from budget_exporter.devices import tpu
from budget_exporter.roots import Roots
from budget_exporter.sidecar import wiring
import aiohttp.web

def resident():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1]) * 1024

async def main():
    root = Path(sys.argv[1])
    roots = Roots(root / "sys", root / "proc", root / "host")
    source = tpu.source(roots, environ={"TPU_RUNTIME_METRICS_PORTS": "1"})
    await source.read(frozenset())
    figures = [resident()]
    source = tpu.source(roots, environ={"TPU_RUNTIME_METRICS_PORTS": sys.argv[2]})
    for runs in (1, 199):
        for _ in range(runs):
            report = await source.read(frozenset())
        figures.append(resident())
    assert len(report.devices) == 1
    print(json.dumps(figures))

asyncio.run(main())
"""


def test_what_grpc_costs_in_memory_while_a_process_uses_the_chips(
    tmp_path: Path, libtpu: Libtpu, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    tpu_roots(root)
    child = Child("-c", MEMORY, str(root), str(libtpu.port))
    idle, first, later = json.loads(child.line())
    child.end()
    one, many = (first - idle) / MIB, (later - idle) / MIB
    with capsys.disabled():
        sys.stdout.write(f"\ntpu: {idle / MIB:.1f} MiB unasked, +{one:.1f} after one answer, +{many:.1f} after 200\n")
    assert later - first < 4 * MIB, "no growth from run to run"


def test_the_exporter_shows_what_the_service_says_while_it_is_there(tmp_path: Path, libtpu: Libtpu) -> None:
    root = tmp_path / "root"
    tpu_roots(root)
    (root / "proc").mkdir()
    words = ["serve", *(f"--path.{name}fs={root / folder}" for name, folder in PATHS), "--state.file="]
    environment = ["env", f"TPU_RUNTIME_METRICS_PORTS={libtpu.port}"]
    libtpu.says([5, V6E_SIZE + 1], [V6E_SIZE] * 2)
    with exporter(tmp_path / "log", *words, "--no-source.systemd", prefix=environment) as running:
        running.ready()
        until(lambda: running.value("budget_device_memory_used_bytes", device="accel1"), "the device is shown")
        assert running.value("budget_device_memory_used_bytes", device="accel1") == V6E_SIZE + 1
        assert running.value("budget_device_margin_bytes", device="accel1") == -1
        assert running.value("budget_device_info", device="accel0", platform="tpu", sampler="libtpu") == 1
        libtpu.child.end()
        until(lambda: not running.value("budget_device_info", device="accel0"), "the series has ended")
        assert running.value("budget_source_success", source="tpu") == 1
        assert "source.tpu" not in running.log
