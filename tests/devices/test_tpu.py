"""The real reader of TPU chips: over gRPC to a service on loopback, over HTTP to a device plugin on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import pytest
from aiohttp import web

from budget_exporter.devices import tpu
from budget_exporter.devices._tpu_listing import TpuHost, found
from budget_exporter.devices._tpu_messages import SIZE, USED
from budget_exporter.devices._tpu_plugin import parsed
from budget_exporter.errors import SourceError
from budget_exporter.facts.device import DeviceReport
from budget_exporter.roots import Roots
from budget_exporter.sidecar.task_runner import TaskRunner
from budget_exporter.units import GIB
from tests.devices.tpu_host import V6E_SIZE, Service, lay_function, listening, tpu_roots

NONE: frozenset[int] = frozenset()
NOBODY = {"TPU_RUNTIME_METRICS_PORTS": "1"}


def source(roots: Roots, *services: Service, plugin: str = "", limit: float = 2.0) -> tpu.TpuSource:
    environ = {"TPU_RUNTIME_METRICS_PORTS": ",".join(str(service.port) for service in services) or "1"}
    if plugin:
        environ["TPU_DEVICE_PLUGIN_ADDR"] = plugin
    return tpu.source(roots, clock=lambda: 1.8e9, environ=environ, limit=limit)


def figures(report: DeviceReport) -> dict[str, tuple[int, int]]:
    return {sample.identity.device: (sample.memory.size, sample.memory.used) for sample in report.devices}


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return tpu_roots(tmp_path)


async def test_devices_by_number_whatever_the_order_of_the_answer(roots: Roots) -> None:
    async with listening(Service(30590904565, 0, 7)) as service:
        report = await source(roots, service).read(NONE)
    assert report.faults == ()
    assert figures(report) == {"accel0": (V6E_SIZE, 30590904565), "accel1": (V6E_SIZE, 0), "accel2": (V6E_SIZE, 7)}
    identity = report.devices[1].identity
    assert (identity.platform, identity.model, identity.driver, identity.sampler, identity.order) == (
        "tpu",
        "TPU v6e",
        "vfio-pci",
        "libtpu",
        1,
    )
    assert report.devices[0].memory.at == 1.8e9


async def test_a_process_that_comes_ends_and_comes_again_is_seen_at_once_and_its_absence_is_no_fault(
    roots: Roots,
) -> None:
    async with listening(Service(1)) as service:
        port, reader = service.port, source(roots, service)
        assert figures(await reader.read(NONE)) == {"accel0": (V6E_SIZE, 1)}
    for _ in range(3):
        assert await reader.read(NONE) == DeviceReport()
    async with listening(Service(2), port):
        assert figures(await reader.read(NONE)) == {"accel0": (V6E_SIZE, 2)}
    reader.close()


@pytest.mark.parametrize(
    ("gauge", "fault"),
    [
        ({}, "used: not a number of bytes: nothing"),
        ({"as_int": -1}, "used: not a number of bytes: -1"),
        ({"as_int": -(2**63)}, "used: not a number of bytes: -9223372036854775808"),
        ({"as_double": 0.5}, "used: not a number of bytes: 0.5"),
        ({"as_double": float("nan")}, "used: not a number of bytes: nan"),
        ({"as_double": 1e30}, "used: not a number of bytes: 1e+30"),
        ({"as_string": "12"}, "used: not a number of bytes: '12'"),
        ({"as_bool": True}, "used: not a number of bytes: True"),
    ],
)
async def test_a_figure_that_cannot_be_right_is_no_sample_and_a_fault(
    roots: Roots, gauge: dict[str, object], fault: str
) -> None:
    async with listening(Service(5, 6)) as service:
        healthy = service.points[USED]
        service.points[USED] = [({"int_attr": 0}, gauge), healthy[0]]
        reader = source(roots, service)
        report = await reader.read(NONE)
        assert report.faults == (f"localhost:{service.port}: device 0: {fault}",)
        assert figures(report) == {"accel1": (V6E_SIZE, 6)}
        service.points[USED] = healthy
        assert (await reader.read(NONE)).faults == ()


async def test_figures_of_the_other_kind_and_above_the_size_are_told_as_they_are(roots: Roots) -> None:
    async with listening(Service(V6E_SIZE + 1)) as service:
        reader = source(roots, service)
        assert figures(await reader.read(NONE)) == {"accel0": (V6E_SIZE, V6E_SIZE + 1)}
        service.points[SIZE] = [({"int_attr": 0}, {"as_double": 2.03465670656e11})]
        assert figures(await reader.read(NONE)) == {"accel0": (203465670656, V6E_SIZE + 1)}


@pytest.mark.parametrize(
    ("metric", "points", "fault"),
    [
        (SIZE, [], "device 0: use without a size"),
        (SIZE, [({"int_attr": 0}, {"as_int": 0})], "device 0: size: 0, and no chip has no memory"),
        (SIZE, [({"int_attr": 0}, {"as_int": -5})], "device 0: size: not a number of bytes: -5"),
        (USED, [({"int_attr": 0}, {"as_int": 1})] * 2, "device 0: used: told twice"),
        (USED, [({"int_attr": -1}, {"as_int": 1})], "used: no number of a device: -1"),
        (USED, [({"string_attr": "0"}, {"as_int": 1})], "used: a figure of no device"),
        (USED, [({}, {"as_int": 1})], "used: a figure of no device"),
    ],
)
async def test_points_that_do_not_make_a_device_are_faults(
    roots: Roots, metric: str, points: list[tuple[dict[str, object], dict[str, object]]], fault: str
) -> None:
    async with listening(Service(5)) as service:
        service.points[metric] = points
        report = await source(roots, service).read(NONE)
    assert (report.faults, report.devices) == ((f"localhost:{service.port}: {fault}",), ())


async def test_an_answer_to_another_question_or_about_no_device_is_a_fault(roots: Roots) -> None:
    async with listening(Service(5)) as service:
        reader = source(roots, service)
        service.name = "tpu.runtime.else"
        assert (await reader.read(NONE)).faults == (
            f"localhost:{service.port}: asked for {USED}, told of 'tpu.runtime.else'",
        )
        service.name, service.key = None, "core-id"
        assert len((await reader.read(NONE)).faults) == 2


async def test_an_empty_answer_is_no_device_and_no_fault(roots: Roots) -> None:
    async with listening(Service()) as service:
        assert await source(roots, service).read(NONE) == DeviceReport()


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INTERNAL]
)
async def test_a_service_that_refuses_is_a_fault_and_is_asked_again(roots: Roots, code: grpc.StatusCode) -> None:
    async with listening(Service(5)) as service:
        reader = source(roots, service)
        service.code = code
        fault = f"localhost:{service.port}: {USED}: {code.name.lower()}"
        assert (await reader.read(NONE)) == DeviceReport(faults=(fault,))
        service.code = None
        assert figures(await reader.read(NONE)) == {"accel0": (V6E_SIZE, 5)}


async def test_a_service_that_hangs_costs_its_time_limit_and_no_other_port(roots: Roots) -> None:
    async with listening(Service(1)) as first, listening(Service(2)) as second:
        second.points = {name: [({"int_attr": 4}, points[0][1])] for name, points in second.points.items()}
        reader = source(roots, first, second, limit=0.3)
        await reader.read(NONE)
        first.hang = True
        began = time.monotonic()
        report = await reader.read(NONE)
        assert 0.2 < time.monotonic() - began < 2
        assert report.faults == (f"localhost:{first.port}: {USED}: deadline_exceeded",)
        assert figures(report) == {"accel4": (V6E_SIZE, 2)}
        first.hang = False
        assert len((await reader.read(NONE)).devices) == 2


async def test_two_services_that_tell_of_one_device_tell_of_none(roots: Roots) -> None:
    async with listening(Service(1, 8)) as first, listening(Service(2)) as second:
        report = await source(roots, first, second).read(NONE)
    assert report.faults == ("device 0: told by two services",)
    assert figures(report) == {"accel1": (V6E_SIZE, 8)}


async def test_a_listener_that_is_no_grpc_or_says_nothing_is_a_fault(roots: Roots) -> None:
    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 no such service here\r\n")
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server:
        service = Service()
        service.port = server.sockets[0].getsockname()[1]
        report = await source(roots, service, limit=0.5).read(NONE)
        assert len(report.faults) == 1
        assert report.faults[0].startswith(f"localhost:{service.port}: {USED}: ")


async def test_a_run_that_is_cancelled_leaves_the_source_usable(roots: Roots) -> None:
    async with listening(Service(3)) as service:
        service.hang = True
        reader = source(roots, service, limit=30.0)
        runner: TaskRunner[DeviceReport, DeviceReport] = TaskRunner(
            "tpu", 0.01, lambda: with_faults(reader), lambda _, report: report, timeout=0.2
        )
        runner.start()
        await until(lambda: runner.health().failures >= 1)
        assert runner.health().error == "no answer within 0.2 s"
        service.hang = False
        await until(lambda: runner.health().success)
        taken = runner.take()
        assert taken is not None
        assert figures(taken) == {"accel0": (V6E_SIZE, 3)}
        runner.stop()
        reader.close()


async def with_faults(reader: tpu.TpuSource) -> tuple[DeviceReport, list[str]]:
    report = await reader.read(NONE)
    return report, list(report.faults)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - the runner tells of its runs, it has no event
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("", [8431, 8432, 8433, 8434]), ("8431", [8431]), ("9000, 8431,8431", [8431, 9000])],
)
def test_ports_are_libtpu_s_own_list_else_one_for_each_chip(given: str, expected: list[int]) -> None:
    assert tpu.ports({"TPU_RUNTIME_METRICS_PORTS": given} if given else {}, chips=4) == expected


@pytest.mark.parametrize("given", ["x", "8431,", "0", "65536", "-1", "8431;8432"])
async def test_ports_that_are_none_name_the_variable(roots: Roots, given: str) -> None:
    reader = tpu.source(roots, environ={"TPU_RUNTIME_METRICS_PORTS": given})
    with pytest.raises(SourceError, match=f"TPU_RUNTIME_METRICS_PORTS: not a list of ports: {given!r}"):
        await reader.read(NONE)


def test_which_hosts_have_a_tpu(tmp_path: Path) -> None:
    sysfs, rootfs = tmp_path / "sys", tmp_path / "host"
    (rootfs / "dev/accel").mkdir(parents=True)
    (rootfs / "dev/accel/accel0").touch()
    with pytest.raises(SourceError, match="no such directory"):
        found(sysfs, rootfs)
    sysfs.mkdir()
    assert found(sysfs, rootfs) is None
    lay_function(sysfs, "0000:00:03.0", "0x0042", kind="0x020000")
    lay_function(sysfs, "0000:00:04.0", "0x0027", kind="0x0c0300", subsystem="0x1100")
    lay_function(sysfs, "0000:00:05.0", "0x0063", vendor="0x1002")
    (sysfs / "bus/pci/devices/0000:00:06.0").mkdir()
    assert found(sysfs, rootfs) is None, "a card of Google, one of another maker and one that tells nothing"
    (rootfs / "dev/accel0").touch()
    assert found(sysfs, rootfs) is None, "no device node"
    (rootfs / "dev/accel1").symlink_to("/dev/null")
    assert found(sysfs, rootfs) == TpuHost(1, "TPU", "accel")
    lay_function(sysfs, "0000:00:07.0", "0x0027", subsystem="0x004f", kind="0x000000")
    lay_function(sysfs, "0000:00:07.1", "0x0027", subsystem="0x004f", kind="0x000000")
    assert found(sysfs, rootfs) == TpuHost(1, "TPU v3", "vfio-pci")
    lay_function(sysfs, "0000:00:01.0", "0x0099")
    assert found(sysfs, rootfs) == TpuHost(2, "TPU 0x0099", "vfio-pci")


async def test_chips_that_vanish_are_noticed_and_a_list_that_is_none_is_an_error(tmp_path: Path) -> None:
    now = 0.0
    roots = tpu_roots(tmp_path)
    reader = tpu.source(roots, monotonic=lambda: now, environ=NOBODY, limit=0.3)
    assert await reader.read(NONE) == DeviceReport()
    vendor = roots.sysfs / "bus/pci/devices/0000:00:04.0/vendor"
    vendor.unlink()
    vendor.mkdir()
    now += 31
    assert await reader.read(NONE) == DeviceReport()
    (roots.sysfs / "bus/pci/devices").rename(tmp_path / "away")
    (roots.sysfs / "bus/pci/devices").write_text("")
    now += 31
    with pytest.raises(SourceError, match="Not a directory"):
        await reader.read(NONE)


QUIET = """
import asyncio, sys
from pathlib import Path
from budget_exporter.devices import tpu, gaudi
from budget_exporter.roots import Roots
roots = Roots(Path(sys.argv[1]), rootfs=Path(sys.argv[1]))
print(asyncio.run(tpu.source(roots, environ={"TPU_RUNTIME_METRICS_PORTS": "1"}).read(frozenset())))
print(gaudi.source(roots).read(frozenset()))
print(sorted({name.partition(".")[0] for name in sys.modules} & {"grpc", "google", "aiohttp", "pyhlml"}))
"""


@pytest.mark.parametrize("chips", [0, 1])
def test_nothing_is_imported_where_there_is_no_tpu_or_nobody_uses_it(tmp_path: Path, chips: int) -> None:
    if chips:
        sysfs = tpu_roots(tmp_path, chips).sysfs
    else:
        (sysfs := tmp_path / "sys").mkdir()
    out = subprocess.run(
        [sys.executable, "-c", QUIET, str(sysfs)], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    assert out == [repr(DeviceReport())] * 2 + [str(["aiohttp"] if chips else [])]


@contextmanager
def free_port() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@asynccontextmanager
async def plugin(answer: Callable[[], web.Response]) -> AsyncIterator[str]:
    async def handle(_: web.Request) -> web.Response:
        return answer()

    app = web.Application()
    app.router.add_get("/metrics", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def of_chip(name: str, number: int, value: object, pod: str = "") -> str:
    labels = f'accelerator_id="7512489059512378528-{number}",make="cloud-tpu",model="tpu7x"'
    return f"{name}{{{labels}{pod and f',pod={chr(34)}{pod}{chr(34)}'}}} {value}\n"


PUBLISHED = (
    "# TYPE memory_total gauge\n"
    + of_chip("memory_total", 0, "2.03465670656e+11", "vllm-0")
    + "# TYPE memory_used gauge\n"
    + of_chip("memory_used", 0, "1.76938736128e+11", "vllm-0")
    + "# TYPE duty_cycle gauge\n"
    + of_chip("duty_cycle", 0, 99, "vllm-0")
    + of_chip("memory_total_node", 0, "2.03465670656e+11")
    + of_chip("memory_used_node", 0, "1.7e+11")
    + of_chip("memory_total_node", 1, "2.03465670656e+11")
    + of_chip("memory_used_node", 1, 0)
)


@pytest.mark.parametrize(("device", "prefix"), [("0x0076", "chip"), ("0x006f", "accel")])
async def test_the_device_plugin_counts_by_chip_and_never_under_a_core_s_key(
    tmp_path: Path, device: str, prefix: str
) -> None:
    async with plugin(lambda: web.Response(text=PUBLISHED)) as address:
        report = await source(tpu_roots(tmp_path, 2, device), plugin=address).read(NONE)
    assert report.faults == ()
    assert figures(report) == {f"{prefix}0": (203465670656, 176938736128), f"{prefix}1": (203465670656, 0)}
    assert {sample.identity.sampler for sample in report.devices} == {"tpu_device_plugin"}


async def test_libtpu_s_own_words_go_before_the_plugin_s(roots: Roots) -> None:
    async with plugin(lambda: web.Response(text=PUBLISHED)) as address, listening(Service(9)) as service:
        report = await source(roots, service, plugin=address).read(NONE)
    assert figures(report) == {"accel0": (V6E_SIZE, 9)}


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (lambda: web.Response(status=503), "HTTP status 503"),
        (lambda: web.Response(status=302, headers={"Location": "/metrics"}), "HTTP status 302"),
        (lambda: web.Response(text="<html>not { an exposition"), "not an exposition: ValueError"),
    ],
)
async def test_a_plugin_that_fails_is_a_fault_where_it_was_named(
    roots: Roots, answer: Callable[[], web.Response], fault: str
) -> None:
    async with plugin(answer) as address:
        assert (await source(roots, plugin=address).read(NONE)) == DeviceReport(faults=(f"{address}: {fault}",))


async def test_a_plugin_that_was_named_and_is_not_there_or_hangs_is_a_fault(roots: Roots) -> None:
    with free_port() as port:
        address = f"127.0.0.1:{port}"
        assert (await source(roots, plugin=address).read(NONE)).faults == (f"{address}: nobody listens",)
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the client gives up
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert (await source(roots, plugin=address, limit=0.2).read(NONE)).faults == (
            f"{address}: no answer within 0.2 s",
        )
        await asyncio.wait_for(ended.wait(), 10)


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", []),
        ("go_goroutines 7\n", []),
        ('memory_used{job="x"} 1\n', []),
        (of_chip("memory_used", 0, 5), ["a: chip 0: no size"]),
        (of_chip("memory_used", 0, 5) + of_chip("memory_total", 0, 0), ["a: chip 0: no size"]),
        (of_chip("memory_used", 0, -5), ["a: chip 0: used: not a number of bytes: -5"]),
        (of_chip("memory_used", 0, "NaN"), ["a: chip 0: used: not a number of bytes: nan"]),
        (of_chip("memory_used", 0, "+Inf"), ["a: chip 0: used: not a number of bytes: inf"]),
        (of_chip("memory_used", 0, 1.5), ["a: chip 0: used: not a number of bytes: 1.5"]),
        (of_chip("memory_used", 0, 1, "a") + of_chip("memory_used", 0, 2, "b"), ["a: chip 0: used: told twice"]),
        ('memory_used{accelerator_id="x"} 1\n', ["a: accelerator_id without a number: 'x'"]),
    ],
)
def test_an_exposition_without_a_chip_s_figures(text: str, faults: list[str]) -> None:
    assert parsed("a", text) == ([], faults)


def test_a_chip_s_use_above_its_size_is_told_as_it_is() -> None:
    chips, faults = parsed("a", of_chip("memory_used", 3, 17 * GIB) + of_chip("memory_total", 3, 16 * GIB))
    assert ([(chip.number, chip.used) for chip in chips], faults) == ([(3, 17 * GIB)], [])


NO_GRPC = """
import asyncio, os, sys
from pathlib import Path
sys.path[:] = [path for path in sys.path if "site-packages" not in path] + [sys.argv[3]]
from budget_exporter.devices import tpu
from budget_exporter.roots import Roots
environ = {"TPU_RUNTIME_METRICS_PORTS": sys.argv[2], "TPU_DEVICE_PLUGIN_ADDR": sys.argv[4]}
report = asyncio.run(tpu.source(Roots(Path(sys.argv[1]), rootfs=Path(sys.argv[1])), environ=environ).read(frozenset()))
print([sample.identity.device for sample in report.devices], *report.faults, sep="\\n")
"""


async def test_without_grpc_the_extra_is_named_unless_the_plugin_tells(roots: Roots, tmp_path: Path) -> None:
    """The rest of what is installed is linked into a folder of its own, so that only gRPC and protobuf are missing."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for entry in Path(grpc.__file__).parents[1].iterdir():
        if not entry.name.startswith(("grpc", "google", "_upb", "protobuf", "_distutils")) and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    async with listening(Service(1)) as service, plugin(lambda: web.Response(text=PUBLISHED)) as address:
        for named, devices, faults in (
            (address, "['accel0', 'accel1']", []),
            (
                "127.0.0.1:1",
                "[]",
                [
                    f"localhost:{service.port}: grpcio or protobuf is not installed (extra tpu)",
                    "127.0.0.1:1: nobody listens",
                ],
            ),
        ):
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                NO_GRPC,
                str(roots.sysfs),
                str(service.port),
                str(packages),
                named,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )
            out, _ = await asyncio.wait_for(child.communicate(), 60)
            assert out.decode().splitlines() == [devices, *faults]
