"""How one endpoint is asked: how often, what is kept when it ails, and what is told to whom."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import web

from budget_exporter.engines.address import Address
from budget_exporter.engines.endpoint import EndpointSource
from budget_exporter.facts.engine import ProcessKey
from budget_exporter.sidecar.asker import Asker
from budget_exporter.sidecar.health import Health

METRICS = 'vllm:cache_config_info{num_gpu_blocks="9",kv_cache_size_tokens="144"} 1.0\nvllm:kv_cache_usage_perc 0.5\n'


class Server:
    """An engine's endpoint on a socket, that says what it is told to say."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.status = 200
        self.metrics = METRICS
        self.asked: list[str] = []
        self.length: int | None = 4096

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        application = web.Application()
        application.router.add_get("/{path:.*}", self._answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.05)
        await runner.setup()
        await web.UnixSite(runner, str(self.place)).start()
        try:
            yield
        finally:
            await runner.cleanup()
            self.place.unlink(missing_ok=True)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        bodies = {
            "/metrics": self.metrics,
            "/version": json.dumps({"version": "0.32.0"}),
            "/v1/models": json.dumps({"data": [{"max_model_len": self.length}]}),
        }
        if request.path == "/health":
            return web.Response(status=self.status)
        return web.Response(text=bodies[request.path]) if bodies[request.path] else web.Response(status=404)


@pytest.fixture
def server() -> Iterator[Server]:
    # Sockets have paths of 107 characters at most: not below pytest's folder.
    with tempfile.TemporaryDirectory() as folder:
        yield Server(Path(folder, "vllm.sock"))


class Asking:
    """An asker with a clock of ours, and what it told."""

    def __init__(self, server: Server, interval: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.woken = 0
        self.health = Health("endpoint", interval)
        address = Address("http://localhost", uds=str(server.place))
        self.source = EndpointSource(interval)
        self.asker = Asker("qwen", ProcessKey(1, 1), address, self.source, self.health, self.wake, monotonic=monotonic)
        self.health.joined(self.asker)

    def wake(self) -> None:
        self.woken += 1

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Asker]:
        task = asyncio.create_task(self.asker.run())
        try:
            yield self.asker
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def until(self, look: Callable[[Asker], object]) -> None:
        async with asyncio.timeout(10):
            while not look(self.asker):  # noqa: ASYNC110 - the asker tells nobody
                await asyncio.sleep(0.005)


async def test_a_life_from_refused_over_well_and_dead_to_refused(server: Server) -> None:
    asking = Asking(server, 0.01)
    began = time.time()
    async with asking.running() as asker:
        await asking.until(lambda a: a.state.health == "refused")
        first = asker.state
        assert first.since is None  # it was so before anybody asked
        async with server.listening():
            await asking.until(lambda a: a.state.facts and a.state.facts.max_model_len)
            well = asker.state
            assert well.health == "ok"
            assert began <= (well.since or 0) <= (well.told_at or 0) <= time.time()
            facts = well.facts
            assert facts is not None
            assert (facts.version, facts.kv_blocks, facts.kv_tokens, facts.max_model_len) == ("0.32.0", 9, 144, 4096)
            assert facts.kv_usage == 0.5
            server.status = 503
            await asking.until(lambda a: a.state.health == "unavailable")
            # The pool is what it was; what is used of it is not known any more.
            assert asker.state.facts == facts.quiet()
        await asking.until(lambda a: a.state.health == "refused")
        assert asker.state.facts == facts.quiet()
    health = asking.health.health()
    assert (health.success, health.failures, health.settled) == (True, 0, True)
    assert asking.woken >= 4


async def test_once_known_the_metrics_are_asked_for_less_often(server: Server) -> None:
    now = [0.0]
    asking = Asking(server, 5.0, lambda: now[0])
    async with server.listening(), asking.source.opened(asking.asker.asked[1]) as endpoint:

        async def asked(rounds: int) -> list[int]:
            counts = []
            for _ in range(rounds):
                before = server.asked.count("/metrics")
                await asking.asker._round(endpoint)
                counts.append(server.asked.count("/metrics") - before)
                now[0] += 5.0
            return counts

        server.metrics = "nothing yet 1.0\n"
        assert await asked(5) == [1, 0, 1, 0, 1]
        server.metrics = METRICS
        assert await asked(9) == [0, 1, 0, 0, 0, 0, 0, 1, 0]
        # A list that needs a key is not asked for again and again, and what it told is kept.
        assert server.asked.count("/v1/models") == 1
        assert asking.asker.state.facts is not None
        assert asking.asker.state.facts.max_model_len == 4096
    assert server.asked.count("/health") == 14


async def test_other_processes_than_before_are_a_reason_to_ask_at_once(server: Server) -> None:
    asking = Asking(server, 60.0)
    async with server.listening(), asking.running() as asker:
        asker.see(frozenset({1, 2}))
        await asking.until(lambda a: a.state.facts)
        asker.see(frozenset({1, 2}))
        server.status = 503
        asker.see(frozenset({1}))
        await asking.until(lambda a: a.state.health == "unavailable")
        # And one that was well a moment ago is asked more often than the interval says.
        server.status = 200
        await asking.until(lambda a: a.state.health == "ok")


async def test_metrics_that_fail_are_a_failure_of_the_source_and_cost_no_health(server: Server) -> None:
    asking = Asking(server, 0.01)
    async with server.listening(), asking.running() as asker:
        await asking.until(lambda a: a.state.facts)
        server.metrics = ""
        await asking.until(lambda _: not asking.health.health().success)
        assert asking.health.health().error == "qwen: /metrics: answers 404"
        assert asker.state.health == "ok"
        assert asker.state.facts is not None
        assert (asker.state.facts.kv_tokens, asker.state.facts.kv_usage) == (144, None)
        server.metrics = METRICS
        await asking.until(lambda _: asking.health.health().success)


async def test_an_answer_nobody_understands_is_a_failure_of_the_source(server: Server) -> None:
    server.status = 418
    asking = Asking(server, 0.01)
    async with server.listening(), asking.running() as asker:
        await asking.until(lambda a: a.state.why)
        assert (asker.state.health, asker.state.why) == ("unknown", "/health: answers 418")
        assert asking.health.health().error == "qwen: /health: answers 418"
        assert asker.state.facts is None


async def test_a_ca_that_cannot_be_read_is_said_and_tried_again(server: Server, tmp_path: Path) -> None:
    asking = Asking(server, 0.01)
    asking.asker.asked = (None, Address("https://127.0.0.1:9", ca=str(tmp_path / "none.pem")))
    async with asking.running() as asker:
        await asking.until(lambda a: a.state.why)
        assert (asker.state.health, asker.state.why) == ("unknown", "endpoint_ca: No such file or directory")
        assert not asking.health.health().success
