"""Whose endpoint is asked: the engine's that runs, where it may be, and what that makes of its phase and its pool."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web

from budget_exporter import config
from budget_exporter.demo import boot_log
from budget_exporter.demo.host import UNIT, Host
from budget_exporter.demo.player import HEALTHY, HEALTHY_FREE, Engine
from budget_exporter.errors import ConfigError
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.endpoint import EndpointFacts, EndpointState, HealthState
from budget_exporter.facts.engine import EngineSighting, ProcessKey, Shape
from budget_exporter.facts.snapshot import EngineState, Snapshot
from budget_exporter.sidecar import fleet
from budget_exporter.sidecar.names import Running
from budget_exporter.sidecar.phases import Phases
from budget_exporter.sidecar.wiring import Options, Sidecar
from budget_exporter.sources import SOURCES

OFF = frozenset({"systemd", "journal", "containers"})


@contextlib.asynccontextmanager
async def serving(tokens: int) -> AsyncIterator[str]:
    async def metrics(_: web.Request) -> web.StreamResponse:
        return web.Response(text=f'vllm:cache_config_info{{kv_cache_size_tokens="{tokens}",num_gpu_blocks="7"}} 1\n')

    async def health(_: web.Request) -> web.StreamResponse:
        return web.Response()

    application = web.Application()
    application.add_routes([web.get("/metrics", metrics), web.get("/health", health)])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path / "host")
    host.build()
    return host


def boot(host: Host) -> Engine:
    engine = Engine(host, 0, HEALTHY, boot_log.SHAPE_G)
    for _, act in engine.boot(HEALTHY_FREE):
        act()
    return engine


def configure(host: Host, entry: str, log: str = "{none: true}") -> None:
    host.config.write_text(
        f"engines:\n  - name: qwen\n    match: {{unit: {UNIT}}}\n    log: {log}\n{entry}"
        "sources:\n  endpoint: {interval: 1s}\n"
    )


@contextlib.asynccontextmanager
async def watching(host: Host, off: frozenset[str] = OFF) -> AsyncIterator[Callable[..., object]]:
    """Run a sidecar; give a function that waits until ``look`` holds for its engine and returns that."""
    made: list[Snapshot] = []
    sidecar = Sidecar(config.load(host.config, frozenset(SOURCES)), Options(roots=host.roots, off=off))
    sidecar.publish = made.append
    task = asyncio.create_task(sidecar.run())

    async def until(look: Callable[[EngineState], object]) -> EngineState:
        deadline = time.monotonic() + 15
        while not (made and made[-1].engines and look(made[-1].engines[0])):
            assert time.monotonic() < deadline, made[-1:]
            await asyncio.sleep(0.02)
        return made[-1].engines[0]

    try:
        yield until
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_a_peer_s_address_is_asked_and_tells_phase_and_pool_where_no_log_does(host: Host) -> None:
    engine = boot(host)
    async with serving(401_000) as url:
        configure(host, f"    endpoint: {url}\n")
        async with watching(host) as until:
            state = await until(lambda e: e.endpoint and e.endpoint.facts)  # type: ignore[misc]
            assert (state.phase, state.endpoint.health) == ("serving", "ok")
            assert (state.report.kv_tokens, state.disagreements) == (401_000, ())
            await asyncio.to_thread(engine.end)
            # Whatever listens there then is another's.
            state = await until(lambda e: e.up is False)  # type: ignore[misc]
            assert (state.endpoint, state.phase) == (None, "stopped")


async def test_log_and_endpoint_that_part_are_told_and_the_log_has_the_phase(host: Host) -> None:
    boot(host)
    async with serving(401_000) as url:
        configure(host, f"    endpoint: {url}\n", "{file: /var/log/vllm-qwen.log}")
        async with watching(host) as until:
            state = await until(lambda e: e.disagreements)  # type: ignore[misc]
            assert state.disagreements == (
                "tokens in the KV pool: 401,000 by the engine's endpoint, 401,408 by its log",
            )
            assert (state.phase, state.report.kv_tokens) == ("serving", 401_000)


async def test_without_a_word_where_it_is_nothing_is_asked_and_the_reason_said(host: Host) -> None:
    boot(host)
    configure(host, "")
    async with watching(host) as until:
        state = await until(lambda e: e.up)  # type: ignore[misc]
        assert state.endpoint == EndpointState(why="whether it shares our network cannot be told")
        assert state.phase == "unknown"


@pytest.mark.parametrize("off", [frozenset(), frozenset({"endpoint"})])
async def test_it_can_be_switched_off_for_one_or_for_all(host: Host, off: frozenset[str]) -> None:
    boot(host)
    configure(host, "" if off else "    endpoint: false\n")
    async with watching(host, OFF | off) as until:
        state = await until(lambda e: e.up)  # type: ignore[misc]
        assert state.endpoint is None


def engine(health: HealthState, since: float | None = 130.0, *, asleep: bool | None = None) -> fleet.Engine:
    key = ProcessKey(1, 1, "b")
    running = Running(EngineSighting("procfs", key, 100.0, (), {}), Shape())
    facts = None if asleep is None else EndpointFacts(asleep=asleep)
    return fleet.Engine(
        "m",
        None,
        running=running,
        last=running,
        looked=True,
        main=key,
        started_at=100.0,
        endpoint=EndpointState(health, since=since, facts=facts),
    )


@pytest.mark.parametrize(
    ("present", "phase"),
    [
        (engine("ok"), ("serving", 130.0)),
        # It was well before anybody asked.
        (engine("ok", None), ("serving", None)),
        (engine("ok", asleep=False), ("serving", 130.0)),
        (engine("ok", asleep=True), ("sleeping", None)),
        (engine("unavailable"), ("failing", 130.0)),
        (engine("refused"), ("unknown", 100.0)),
        (engine("timeout"), ("unknown", 100.0)),
        (engine("unknown"), ("unknown", 100.0)),
    ],
)
def test_the_phase_by_health(present: fleet.Engine, phase: tuple[str, float | None]) -> None:
    assert Phases().of(present, 150.0) == phase


def test_a_log_that_is_heard_has_the_last_word_on_the_phase() -> None:
    phases, present = Phases(), engine("ok")
    assert phases.of(present, 140.0) == ("serving", 130.0)
    present.report, present.heard = BootReport(phase="capturing"), True
    assert phases.of(present, 150.0) == ("capturing", 150.0)
    present.heard = False
    assert phases.of(present, 160.0) == ("serving", 130.0)
    present.running = None
    assert phases.of(present, 170.0)[0] == "stopped"


@pytest.mark.parametrize(
    ("entry", "key", "what"),
    [
        ("endpoint: peer:8000", "engines[0].endpoint", "not http://HOST"),
        ("endpoint: http://user:word@peer:8000", "engines[0].endpoint", "nothing secret is ever sent"),
        ("endpoint: 8000", "engines[0].endpoint", "expected `bool | str`"),
        ("endpoint_ca: /etc/ca.pem", "engines[0].endpoint_ca", "needs an https address"),
        ("endpoint: http://peer\n    endpoint_ca: /etc/ca.pem", "engines[0].endpoint", "an https address only"),
    ],
)
def test_a_configured_endpoint_that_is_none(host: Host, entry: str, key: str, what: str) -> None:
    configure(host, f"    {entry}\n")
    with pytest.raises(ConfigError) as raised:
        config.load(host.config, frozenset(SOURCES))
    told = str(raised.value)
    assert key in told
    assert what in told
    assert "user:word" not in told
