"""The application over real sockets."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import MappingProxyType

import pytest
from aiohttp import ClientSession, DummyCookieJar, web

from budget_exporter.errors import ConfigError
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.snapshot import Snapshot
from budget_exporter.publish import page
from budget_exporter.publish.exposition import Exposition
from budget_exporter.publish.http import application
from tests.publish import snapshots
from tests.publish.snapshots import SECRET
from tests.publish.test_negotiate import BROWSER, PROMETHEUS_2, PROMETHEUS_3


@asynccontextmanager
async def serving(
    snapshot: Snapshot | None, *, telemetry_path: str = "/metrics", exposition: Exposition | None = None
) -> AsyncIterator[ClientSession]:
    app = application(
        lambda: snapshot, telemetry_path=telemetry_path, exposition=exposition, clock=lambda: snapshots.AT + 1
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        async with ClientSession(
            f"http://{host}:{port}", auto_decompress=False, cookie_jar=DummyCookieJar()
        ) as session:
            yield session
    finally:
        await runner.cleanup()


async def body(session: ClientSession, path: str, **headers: str) -> str:
    async with session.get(path, headers={"Accept-Encoding": "identity", **headers}) as response:
        assert response.status == 200, path
        return await response.text()


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (PROMETHEUS_2, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        (PROMETHEUS_3, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        (BROWSER, "text/plain; version=0.0.4; charset=utf-8"),
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
    ],
)
async def test_metrics_come_in_the_format_asked_for(accept: str, content_type: str) -> None:
    async with serving(snapshots.healthy()) as session:
        async with session.get("/metrics", headers={"Accept": accept, "Accept-Encoding": "identity"}) as response:
            assert response.headers["Content-Type"] == content_type
            assert response.headers["Vary"] == "Accept, Accept-Encoding"
            assert "Content-Encoding" not in response.headers
            text = await response.text()
        async with session.get("/metrics", headers={"Accept": accept, "Accept-Encoding": "gzip"}) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            assert gzip.decompress(await response.read()).decode() == text
    assert text.endswith("# EOF\n") == content_type.startswith("application/openmetrics-text")


async def test_accept_headers_on_several_lines_are_one_list() -> None:
    async with serving(snapshots.healthy()) as session:
        lines = [("Accept", "text/plain;q=0.2"), ("Accept", "application/openmetrics-text")]
        async with session.get("/metrics", headers=lines) as response:
            assert response.content_type == "application/openmetrics-text"


async def test_a_scrape_is_served_from_what_the_sidecar_rendered() -> None:
    snapshot, exposition = snapshots.healthy(), Exposition()
    rendered = exposition.render(snapshot)
    async with serving(snapshot, exposition=exposition) as session:
        # Process figures move with each rendering, so equal bytes are the same rendering.
        assert (await body(session, "/metrics")).encode() == rendered.text
        assert (await body(session, "/metrics")).encode() == rendered.text


async def test_before_the_first_snapshot_the_exporter_answers_for_itself_only() -> None:
    async with serving(None) as session:
        text = await body(session, "/metrics")
        assert "process_resident_memory_bytes" in text
        assert "budget_" not in text
        assert "Starting" in await body(session, "/")
        async with session.get("/api/v1/snapshot") as response:
            assert (response.status, await response.json()) == (503, {"error": "no snapshot yet"})


@pytest.mark.parametrize("build", [snapshots.healthy, snapshots.crash_loop, snapshots.empty, None])
async def test_healthy_is_about_the_process_only(build: Callable[[], Snapshot] | None) -> None:
    async with serving(None if build is None else build()) as session:
        assert await body(session, "/-/healthy") == "healthy\n"


async def test_ready_names_the_sources_it_waits_for() -> None:
    starting = snapshots.empty()
    starting = replace(starting, sources=(replace(starting.sources[0], settled=True), *starting.sources[1:]))
    for snapshot, status, text in (
        (None, 503, "not ready: waiting for the first full cycle\n"),
        (starting, 503, "not ready: waiting for the first run of procfs\n"),
        (snapshots.crash_loop(), 200, "ready\n"),
    ):
        async with serving(snapshot) as session, session.get("/-/ready") as response:
            assert (response.status, await response.text()) == (status, text)


@pytest.mark.parametrize("path", ["/", "/metrics", "/-/healthy", "/-/ready", "/api/v1/snapshot"])
async def test_head_is_get_without_a_body_and_nothing_else_is_allowed(path: str) -> None:
    async with serving(snapshots.healthy()) as session:
        async with session.get(path) as response:
            length = response.headers["Content-Length"]
        async with session.head(path) as response:
            assert response.status == 200
            assert await response.read() == b""
            if path not in {"/metrics", "/api/v1/snapshot"}:
                assert response.headers["Content-Length"] == length
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            async with session.request(method, path, data=b"x") as response:
                assert response.status == 405, method
                assert response.headers["Allow"] == "GET,HEAD"


@pytest.mark.parametrize(
    "path", ["/", "/metrics", "/-/healthy", "/-/ready", "/api/v1/snapshot", "/nothing", "/metrics/"]
)
async def test_every_answer_says_how_it_may_be_used_and_not_what_serves_it(path: str) -> None:
    async with serving(snapshots.healthy()) as session, session.get(path) as response:
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["X-Frame-Options"] == "DENY"
        assert response.headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert response.headers["Server"] == "budget-exporter"


async def test_an_unknown_path_is_a_short_404() -> None:
    async with serving(snapshots.healthy()) as session, session.get("/..%2f..%2fetc/passwd") as response:
        assert response.status == 404
        assert response.content_type == "text/plain"
        assert len(await response.read()) < 40


async def test_the_page_is_allowed_its_own_style_only() -> None:
    async with serving(snapshots.healthy()) as session, session.get("/") as response:
        assert response.headers["Content-Security-Policy"] == page.CONTENT_SECURITY_POLICY
        assert response.content_type == "text/html"


async def test_metrics_may_take_the_place_of_the_page() -> None:
    async with serving(snapshots.healthy(), telemetry_path="/") as session:
        assert "budget_engine_up" in await body(session, "/")
        async with session.get("/metrics") as response:
            assert response.status == 404


async def test_metrics_may_live_elsewhere_and_the_page_says_where() -> None:
    async with serving(snapshots.healthy(), telemetry_path="/probe/metrics") as session:
        assert "budget_engine_up" in await body(session, "/probe/metrics")
        assert 'href="/probe/metrics"' in await body(session, "/")


@pytest.mark.parametrize(
    "path", ["metrics", "", "/{name}", "/a b", "/a?b", "/a#b", "/\x00", "/%2e", "/-/ready", "/api/v1/snapshot"]
)
def test_a_telemetry_path_that_cannot_be_served_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"--web\.telemetry-path"):
        application(lambda: None, telemetry_path=path)


@pytest.mark.parametrize("name", snapshots.ALL)
async def test_no_secret_of_a_process_leaves_by_any_path(name: str) -> None:
    snapshot = snapshots.ALL[name]()
    leaky = []
    for engine in snapshot.engines:
        shape = replace(
            engine.shape or Shape(),
            model=f"s3://user:{SECRET}@example.org/models/x?token={SECRET}",
            served_model_name=None,
            given={"max-model-len": "4096", "api-key": SECRET, "HF_TOKEN": SECRET},
            environ={"HF_TOKEN": SECRET, "VLLM_API_KEY": SECRET},
        )
        leaky.append(replace(engine, shape=shape, sighting=snapshots.sighting()))
    async with serving(replace(snapshot, engines=tuple(leaky))) as session:
        for path in ("/", "/metrics", "/api/v1/snapshot", "/-/ready"):
            async with session.get(path, headers={"Accept-Encoding": "identity"}) as response:
                assert SECRET not in await response.text(), path


async def test_the_secret_is_there_to_be_leaked() -> None:
    assert SECRET in repr(snapshots.healthy())


async def test_the_snapshot_as_json_has_the_facts_and_only_the_allowed_ones_of_a_process() -> None:
    async with serving(snapshots.healthy()) as session:
        view = json.loads(await body(session, "/api/v1/snapshot"))
    (engine,) = view["engines"]
    assert engine["sighting"]["main"]["pid"] == 4711
    assert engine["sighting"].keys().isdisjoint({"argv", "environ", "cwd"})
    assert engine["sighting"]["workers"] == [{"pid": 4720, "rank": 0}, {"pid": 4721, "rank": 1}]
    assert engine["shape"]["given"]["max-model-len"] == "200704"
    assert engine["ledger"]["ranks"]["1"]["requested"] == 33_592_986_043
    assert engine["report"]["ranks"]["1"]["graph_capture"]["bytes"] < 0
    assert engine["report"]["failure"] is None


async def test_json_survives_what_no_json_can_hold() -> None:
    before = snapshots.healthy()
    shape = Shape(
        model=b"\xff".decode(errors="surrogateescape"),
        max_model_len=10**30,
        max_num_seqs=-(2**63),
        given=MappingProxyType({"max-model-len": "1e30"}),
    )
    snapshot = replace(before, engines=(replace(before.engines[0], shape=shape),))
    async with serving(snapshot) as session:
        (engine,) = json.loads(await body(session, "/api/v1/snapshot"))["engines"]
    assert engine["shape"]["model"] == "?"
    assert engine["shape"]["max_model_len"] is None
    assert engine["shape"]["max_num_seqs"] == -(2**63)
    assert engine["shape"]["given"] == {"max-model-len": "1e30"}
