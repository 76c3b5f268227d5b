"""What neuron-monitor says, by its page from a real server and by lines of a real child; and all it may do wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, strategies as st

from budget_exporter import config, sources
from budget_exporter.devices import neuron_monitor
from budget_exporter.devices._monitor_child import MonitorChild
from budget_exporter.devices._monitor_reading import Reading, from_json, from_page, report
from budget_exporter.errors import ConfigError, SourceError
from budget_exporter.facts.device import CrossCheck, DeviceReport, Holders, ProcessMemory
from budget_exporter.roots import Roots
from budget_exporter.units import GIB, MIB

PARTS = {"constants": 2 * MIB, "model_code": 192 * MIB, "runtime_memory": 384 * MIB, "tensors": 9 * GIB}
USED = sum(PARTS.values())
NONE = dict.fromkeys(PARTS, 0)


def document(runtimes: dict[int, dict[str, dict[str, int]]], *, cores: int = 2, size: int = 32 * GIB) -> dict[str, Any]:
    """Return what neuron-monitor says of ``runtimes``: by PID the parts of each logical core."""
    data = [
        {
            "pid": pid,
            "neuron_runtime_tag": f"tag-{pid}",
            "error": "",
            "report": {
                "memory_used": {
                    "period": 5.0,
                    "error": "",
                    "neuron_runtime_used_bytes": {
                        "host": GIB,
                        "neuron_device": sum(sum(parts.values()) for parts in by_core.values()),
                        "usage_breakdown": {"host": {"tensors": 0}, "neuroncore_memory_usage": by_core},
                    },
                    "loaded_models": [],
                }
            },
        }
        for pid, by_core in runtimes.items()
    ]
    hardware = {"neuroncore_per_device_count": cores, "neuron_device_memory_size": size, "error": ""}
    return {"neuron_runtime_data": data, "system_data": {}, "neuron_hardware_info": hardware}


def read(told: Any, *, host_pids: bool = True) -> DeviceReport:
    return report(from_json(json.dumps(told).encode(), 1.8e9), host_pids=host_pids)


def test_two_cores_a_device_have_a_bank_each() -> None:
    told = document({11: {"0": PARTS}, 12: {"1": PARTS, "2": PARTS}})
    assert read(told) == DeviceReport(
        holders=(
            Holders("nd0/hbm0", 1.8e9, (ProcessMemory(11, USED),)),
            Holders("nd0/hbm1", 1.8e9, (ProcessMemory(12, USED),)),
            Holders("nd1/hbm0", 1.8e9, (ProcessMemory(12, USED),)),
        ),
        cross_checks=tuple(CrossCheck(device, 1.8e9, USED) for device in ("nd0/hbm0", "nd0/hbm1", "nd1/hbm0")),
    )


def test_joined_cores_are_known_by_their_device_only() -> None:
    """Which bank a logical core of a trn2 has is in a table that is not known for every machine."""
    told = document({40010: {"0": PARTS}, 40011: {"3": PARTS}, 40014: {"4": PARTS}}, cores=4, size=96 * GIB)
    found = read(told)
    assert found.cross_checks == ()
    assert found.holders == (
        Holders("nd0", 1.8e9, (ProcessMemory(40010, USED), ProcessMemory(40011, USED))),
        Holders("nd1", 1.8e9, (ProcessMemory(40014, USED),)),
    )


def test_runtimes_that_name_a_core_they_do_not_own_with_zeros_overwrite_nothing() -> None:
    for order in ((11, 12), (12, 11)):
        told = document({pid: {"0": PARTS if pid == 11 else NONE} for pid in order})
        found = read(told)
        assert found.holders == (Holders("nd0/hbm0", 1.8e9, (ProcessMemory(11, USED),)),)
        assert found.cross_checks == (CrossCheck("nd0/hbm0", 1.8e9, USED),)


def test_no_runtime_is_no_figure() -> None:
    assert read(document({})) == DeviceReport()


def test_nobody_is_named_where_our_pids_are_not_the_host_s() -> None:
    found = read(document({11: {"0": PARTS}}), host_pids=False)
    assert (found.holders, len(found.cross_checks)) == ((), 1)


def broken(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    told = document({11: {"0": dict(PARTS)}, 12: {"1": PARTS}})
    change(told)
    return told


def memory(told: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = told["neuron_runtime_data"][0]["report"]["memory_used"]
    return found


def core(told: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = memory(told)["neuron_runtime_used_bytes"]["usage_breakdown"]["neuroncore_memory_usage"]
    return found


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        (lambda told: core(told)["0"].update(tensors=-1), ("runtime 11: core 0: not counts",)),
        (lambda told: core(told)["0"].update(tensors="5"), ("runtime 11: core 0: not counts",)),
        (lambda told: core(told)["0"].update(tensors=2**64 - 4096), ("runtime 11: core 0: not counts",)),
        (lambda told: core(told)["0"].clear(), ("runtime 11: core 0: not counts",)),
        (lambda told: core(told).update({"x": core(told).pop("0")}), ("runtime 11: core x: not counts",)),
        (lambda told: core(told).pop("0"), ()),
        (lambda told: memory(told).update(neuron_runtime_used_bytes=None), ()),
        (lambda told: told["neuron_runtime_data"].__setitem__(0, {"pid": 11, "error": "lost\x1b[31m"}),
         ("runtime 11: lost[31m",)),
        (lambda told: told["neuron_runtime_data"].__setitem__(0, 5), ()),
    ],
)  # fmt: skip
def test_a_broken_runtime_costs_no_other(change: Callable[[dict[str, Any]], object], faults: tuple[str, ...]) -> None:
    found = read(broken(change))
    assert found.faults == faults
    assert found.holders == (Holders("nd0/hbm1", 1.8e9, (ProcessMemory(12, USED),)),)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"", "not JSON"),
        (b"driver not found", "not JSON"),
        (b"[" * 100000, "not JSON"),
        (b"[]", "no neuron_runtime_data"),
        (b"{}", "no neuron_runtime_data"),
        (json.dumps({"neuron_runtime_data": [], "neuron_hardware_info": {"error": "driver not running"}}).encode(),
         "driver not running"),
    ],
)  # fmt: skip
def test_what_is_no_document(line: bytes, sentence: str) -> None:
    with pytest.raises(SourceError, match=f"^neuron-monitor: {sentence}"):
        from_json(line, 0.0)


def test_without_the_number_of_cores_no_device_can_be_told() -> None:
    told = document({11: {"0": PARTS}}, cores=0)
    assert read(told) == DeviceReport(faults=("neuron-monitor: does not say how many cores a device has",))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
                        ["neuron_runtime_data", "pid", "report", "memory_used", "neuron_runtime_used_bytes", "0",
                         "usage_breakdown", "neuroncore_memory_usage", "tensors", "neuron_hardware_info",
                         "neuroncore_per_device_count"]), inner, max_size=4), max_leaves=12))  # fmt: skip
def test_no_document_gets_anything_but_a_source_error_out_of_it(told: Any) -> None:
    with contextlib.suppress(SourceError):
        read(told)


# The page.


def page(*rows: tuple[str, int, str, float], hardware: str = "2") -> str:
    """Return a page with rows of part, core, tag and value."""
    lines = [f'neuron_hardware_info{{neuron_device_count="1",neuroncore_per_device_count="{hardware}"}} 1.0']
    lines += [
        f'neuroncore_memory_usage_{part}{{instance_id="i-0",memory_location="None",neuroncore="{number}",'
        f'runtime_tag="{tag}"}} {value}'
        for part, number, tag, value in rows
    ]
    return "\n".join(["# TYPE neuron_hardware_info gauge", *lines, ""])


def test_a_page_says_what_the_document_says() -> None:
    text = page(("tensors", 0, "11", 9.0 * GIB), ("model_code", 0, "11", 5.0), ("tensors", 1, "vllm-tp1", 7.0))
    found = report(from_page(text, 1.8e9), host_pids=True)
    assert found.holders == (
        Holders("nd0/hbm0", 1.8e9, (ProcessMemory(11, 9 * GIB + 5),)),
        Holders("nd0/hbm1", 1.8e9, ()),
    )
    assert found.cross_checks == (CrossCheck("nd0/hbm0", 1.8e9, 9 * GIB + 5), CrossCheck("nd0/hbm1", 1.8e9, 7))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1.8e19])
def test_a_value_on_the_page_that_cannot_be_right_is_a_fault(value: float) -> None:
    found = report(from_page(page(("tensors", 0, "11", value)), 1.8e9), host_pids=True)
    assert (found.holders, found.faults) == ((), ("neuroncore_memory_usage_tensors: core 0: not a count",))


@contextlib.asynccontextmanager
async def served(answer: Callable[[web.Request], web.StreamResponse]) -> AsyncIterator[str]:
    """Serve one page on a free port of loopback; give its address."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return answer(request)

    application = web.Application()
    application.router.add_get("/metrics", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    finally:
        await runner.cleanup()


async def test_the_page_of_a_real_server() -> None:
    seen: list[dict[str, str]] = []

    def answer(request: web.Request) -> web.Response:
        seen.append(dict(request.headers))
        return web.Response(text=page(("tensors", 0, "11", 5.0)))

    async with served(answer) as url:
        source = neuron_monitor.source(Roots(), url=url, clock=lambda: 1.8e9)
        for _ in range(2):
            assert (await source.read(frozenset())).cross_checks == (CrossCheck("nd0/hbm0", 1.8e9, 5),)
    assert {"Cookie", "Authorization"}.isdisjoint(seen[-1])
    with pytest.raises(SourceError, match=r"^neuron-monitor: (Connection refused|Connect call failed)"):
        await source.read(frozenset())


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (web.Response, "its page has no metric of neuron-monitor"),
        (lambda: web.Response(text="<html>vLLM</html>"), "no page of metrics"),
        (lambda: web.Response(text='vllm:num_requests_running{engine="0"} 1.0\n'), "its page has no metric"),
        (lambda: web.Response(text="x" * (neuron_monitor.LARGEST + 1)), "a page of more than 1048576 bytes"),
        (lambda: web.Response(status=503), "its page answers 503"),
        (lambda: web.Response(status=302, headers={"Location": "http://example.org/"}), "its page answers 302"),
    ],
)
async def test_what_is_no_page_of_it(answer: Callable[[], web.Response], sentence: str) -> None:
    async with served(lambda _: answer()) as url:
        with pytest.raises(SourceError, match=f"^neuron-monitor: {sentence}"):
            await neuron_monitor.source(Roots(), url=url).read(frozenset())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("http://10.0.0.1:8000/metrics", "must be http://127.0.0.1:PORT/PATH"),
        ("https://127.0.0.1:8000/metrics", "must be http"),
        ("http://user:secret@127.0.0.1:8000/metrics", "must be http"),
        ("http://127.0.0.1/metrics", "must be http"),
        ("http://example.org:8000/metrics", "must be http"),
        ("http://127.0.0.1:99999/", "must be http"),
        ("nonsense", "must be http"),
    ],
)
def test_only_this_host_is_asked(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"sources:\n  neuron_monitor: {{url: '{text}'}}\n")
    with pytest.raises(ConfigError, match=rf"config.yaml:2: sources.neuron_monitor.url: {sentence}") as caught:
        config.load(path, frozenset(sources.SOURCES))
    assert "secret" not in str(caught.value)


def test_an_address_goes_from_the_configuration_to_the_source(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("sources:\n  neuron_monitor: {enabled: true, url: 'http://[::1]:8010/metrics'}\n")
    loaded = config.load(path, frozenset(sources.SOURCES))
    assert loaded.url("neuron_monitor") == "http://[::1]:8010/metrics"
    made = sources.load("neuron_monitor", Roots(), None, None, loaded.url("neuron_monitor"))
    assert made._url == "http://[::1]:8010/metrics"
    path.write_text("sources:\n  amdgpu: {url: 'http://127.0.0.1:1/'}\n")
    with pytest.raises(ConfigError, match=r"sources.amdgpu.url: amdgpu asks nobody"):
        config.load(path, frozenset(sources.SOURCES))


# The child.


class Program:
    """A program that stands in for neuron-monitor; ``body`` is shell, ``$DOC`` a document in a file."""

    def __init__(self, folder: Path, body: str, told: Any = None) -> None:
        self.folder, self.path = folder, folder / "neuron-monitor"
        (folder / "doc").write_text(json.dumps(document({11: {"0": PARTS}}) if told is None else told) + "\n")
        self.path.write_text(f"#!/bin/sh\nDOC={folder}/doc\necho $$ >> {folder}/pids\n{body}\n")
        self.path.chmod(0o755)

    @property
    def pids(self) -> list[int]:
        path = self.folder / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def source(self, interval: float = 5.0) -> neuron_monitor.NeuronMonitorSource:
        return neuron_monitor.source(Roots(), interval, path=str(self.path))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def until(look: Callable[[], object], limit: float = 20.0) -> None:
    end = time.monotonic() + limit
    while not look():
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(0.01)


async def ended(holder: neuron_monitor.NeuronMonitorSource | MonitorChild) -> None:
    """Close, and wait until all of it has ended."""
    holder.close()
    child = holder if isinstance(holder, MonitorChild) else holder._child
    if child is not None and child._task is not None:
        await asyncio.wait({child._task}, timeout=20)
        assert child._task.cancelled()


async def test_a_child_s_lines_are_read_as_they_come(tmp_path: Path) -> None:
    program = Program(tmp_path, f'cp "$2" {tmp_path}/conf; cat $DOC; while :; do sleep 0.05; cat $DOC; done')
    source = program.source()
    first = await source.read(frozenset())
    assert first.holders[0].processes == (ProcessMemory(11, USED),)
    (tmp_path / "new").write_text(json.dumps(document({11: {"0": {"tensors": 7}}})) + "\n")
    (tmp_path / "new").rename(tmp_path / "doc")

    async def seven() -> bool:
        return (await source.read(frozenset())).cross_checks[0].used == 7

    end = time.monotonic() + 20
    while not await seven():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)
    asked = json.loads((tmp_path / "conf").read_text())
    assert (asked["period"], asked["system_metrics"]) == ("5s", [])
    assert asked["neuron_runtimes"] == [{"tag_filter": ".*", "metrics": [{"type": "memory_used"}]}]
    (pid,) = program.pids
    await ended(source)
    await until(lambda: not alive(pid))


async def test_a_line_larger_than_a_stream_s_usual_limit_is_read(tmp_path: Path) -> None:
    told = document({11: {"0": PARTS}})
    told["neuron_runtime_data"][0]["report"]["memory_used"]["loaded_models"] = ["x" * 1000] * 3000
    source = Program(tmp_path, "cat $DOC; exec sleep 60", told).source()
    assert len((await source.read(frozenset())).holders) == 1
    await ended(source)


async def test_a_line_without_end_is_not_kept(tmp_path: Path) -> None:
    program = Program(tmp_path, "exec tr '\\0' x < /dev/zero")
    child = MonitorChild(str(program.path), 5.0, largest_line=1 << 16)
    assert await child.newest(10.0) is None
    assert child.trouble == "neuron-monitor: a line of more than 65536 bytes"
    await ended(child)
    await until(lambda: not any(alive(pid) for pid in program.pids))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("echo 'no Neuron devices found' >&2; exit 1", "ended with 1: no Neuron devices found"),
        ("exit 0", "ended with 0$"),
        ("echo garbage; exec sleep 60", "not JSON"),
        ("yes complaint | head -100000 >&2; exit 3", "ended with 3: complaint"),
        ("kill -9 $$", "ended with -9"),
    ],
)
async def test_how_a_child_ends_or_fails_is_told(tmp_path: Path, body: str, sentence: str) -> None:
    source = Program(tmp_path, body).source()
    with pytest.raises(SourceError, match=f"^neuron-monitor: {sentence}"):
        await source.read(frozenset())
    await ended(source)


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    source = neuron_monitor.source(Roots(), path=str(tmp_path / "nowhere"))
    with pytest.raises(SourceError, match=r"^neuron-monitor: No such file or directory"):
        await source.read(frozenset())
    await ended(source)


async def test_none_installed_is_said_with_what_else_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="not installed, and no url is configured"):
        await neuron_monitor.source(Roots()).read(frozenset())


async def test_a_child_that_dies_is_started_again_each_time_later(tmp_path: Path) -> None:
    program = Program(tmp_path, "exit 1")
    child = MonitorChild(str(program.path), 5.0, first_wait=0.02)
    await child.newest(5.0)
    began = time.monotonic()
    await until(lambda: child.starts >= 6)
    # 0.02, 0.04, ... 0.32: with no patience at all a hundred would fit in here.
    assert time.monotonic() - began >= 0.5
    assert len(program.pids) <= child.starts + 1
    await ended(child)


async def test_what_it_said_last_is_not_shown_once_it_is_old(tmp_path: Path) -> None:
    now = [1000.0]
    program = Program(tmp_path, "cat $DOC; exec sleep 60")
    source = neuron_monitor.source(Roots(), 5.0, lambda: now[0], path=str(program.path))
    assert len((await source.read(frozenset())).holders) == 1
    now[0] += 15.1
    with pytest.raises(SourceError, match="has said nothing for a while"):
        await source.read(frozenset())
    await ended(source)


async def test_with_the_child_end_those_it_started(tmp_path: Path) -> None:
    program = Program(tmp_path, f"sleep 60 & echo $! >> {tmp_path}/pids; cat $DOC; wait")
    source = program.source()
    await source.read(frozenset())
    await until(lambda: len(program.pids) == 2)
    await ended(source)
    await until(lambda: not any(alive(pid) for pid in program.pids))


async def test_a_child_gets_none_of_our_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "x")
    program = Program(tmp_path, f"env > {tmp_path}/env; cat $DOC; exec sleep 60")
    source = program.source()
    await source.read(frozenset())
    await ended(source)
    names = {line.split("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names <= {"PATH", "GOMEMLIMIT", "PWD", "SHLVL", "_", "OLDPWD"}


def test_a_reading_starts_empty() -> None:
    assert report(Reading(0.0, cores_per_device=2), host_pids=True) == DeviceReport()
