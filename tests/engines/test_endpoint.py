"""Endpoints of every kind, each a real server on loopback: well, dying, hung, lying, huge, with TLS, on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import ssl
import subprocess
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import pytest
from aiohttp import web

from budget_exporter.engines.address import Address, configured
from budget_exporter.engines.endpoint import LARGEST, Endpoint, EndpointSource
from budget_exporter.errors import SourceError
from budget_exporter.facts.endpoint import Answer
from tests.real_parts import program

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CONFIG = (
    'vllm:cache_config_info{block_size="16",engine="0",kv_cache_max_concurrency="4.5",kv_cache_size_tokens="36864",'
    'num_gpu_blocks="2304"} 1.0\n'
)


def text(status: int, body: str = "") -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body)

    return answer


def document(content: object) -> Handler:
    return text(200, json.dumps(content))


@contextlib.asynccontextmanager
async def serving(
    routes: Mapping[str, Handler], tls: ssl.SSLContext | None = None, uds: Path | None = None
) -> AsyncIterator[str]:
    """Serve ``routes``; give host and port."""
    application = web.Application()
    application.add_routes([web.get(path, handler) for path, handler in routes.items()])
    # What hangs on purpose is not waited for.
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.05)
    await runner.setup()
    site = web.UnixSite(runner, str(uds)) if uds else web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield "" if uds else f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def talking(say: bytes) -> AsyncIterator[str]:
    """Listen, say ``say`` to whoever connects, and hang up."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Hanging up on what was not read would be a reset instead.
        await reader.readuntil(b"\r\n\r\n")
        writer.write(say)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@contextlib.asynccontextmanager
async def asking(address: Address | str, health: float = 3.0, metrics: float = 10.0) -> AsyncIterator[Endpoint]:
    at = configured(f"http://{address}") if isinstance(address, str) else address
    async with EndpointSource(1.0, health, metrics).opened(at) as endpoint:
        yield endpoint


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, Answer("ok")),
        (503, Answer("unavailable")),
        (500, Answer("unavailable")),
        (404, Answer(why="/health: answers 404")),
        (403, Answer(why="/health: answers 403: access denied")),
        (502, Answer(why="/health: answers 502")),
    ],
)
async def test_the_status_is_the_health(status: int, answer: Answer) -> None:
    async with serving({"/health": text(status)}) as at, asking(at) as endpoint:
        assert await endpoint.health() == answer


async def test_nobody_listens() -> None:
    with socket.socket() as bound:
        # Bound and not listening, as a vLLM is that still loads: nobody else can take the port meanwhile.
        bound.bind(("127.0.0.1", 0))
        async with asking(f"127.0.0.1:{bound.getsockname()[1]}") as endpoint:
            assert await endpoint.health() == Answer("refused")
            with pytest.raises(SourceError, match=r"/metrics: Connect"):
                await endpoint.facts()


async def test_a_hung_engine_accepts_and_says_nothing() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        async with asking(f"127.0.0.1:{listener.getsockname()[1]}", health=0.1, metrics=0.1) as endpoint:
            began = time.monotonic()
            assert await endpoint.health() == Answer("timeout")
            with pytest.raises(SourceError, match=r"^/metrics: no whole answer within 0.1 s$"):
                await endpoint.facts()
            assert time.monotonic() - began < 5


async def test_metrics_that_never_end_are_given_up() -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b"# HELP\n")
            await asyncio.sleep(0.02)

    async with serving({"/metrics": drip}) as at, asking(at, metrics=0.2) as endpoint:
        with pytest.raises(SourceError, match="no whole answer within"):
            await endpoint.facts()


@pytest.mark.parametrize(
    "say",
    [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"\x16\x03\x01\0\0", b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 5000, b"\0" * 9000],
)
async def test_what_is_no_http_is_unknown(say: bytes) -> None:
    async with talking(say) as at, asking(at) as endpoint:
        answer = await endpoint.health()
        assert answer.health == "unknown"
        assert answer.why.startswith("/health: ")
        assert at not in answer.why
        with pytest.raises(SourceError, match=r"^/metrics: "):
            await endpoint.facts()


async def test_an_answer_that_breaks_off_gives_no_figures() -> None:
    say = b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + CONFIG.encode()
    async with talking(say) as at, asking(at) as endpoint:
        with pytest.raises(SourceError, match=r"^/metrics: "):
            await endpoint.facts()


async def test_no_redirect_is_followed() -> None:
    asked: list[str] = []

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.Response()

    async def redirect(_: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/elsewhere")

    routes = {"/health": redirect, "/metrics": redirect, "/version": redirect, "/elsewhere": elsewhere}
    async with serving(routes) as at, asking(at) as endpoint:
        assert await endpoint.health() == Answer(why="/health: answers 302, a redirect, which is not followed")
        with pytest.raises(SourceError, match="answers 302"):
            await endpoint.facts()
        assert asked == []


async def test_nothing_but_a_plain_get_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[web.Request] = []

    async def note(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        answer = web.Response(text="{}")
        answer.set_cookie("session", "1")
        return answer

    # A proxy that the environment names is not asked: nobody listens there.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    routes = dict.fromkeys(("/health", "/metrics", "/version", "/v1/models"), note)
    async with serving(routes) as at, asking(at) as endpoint:
        for _ in range(2):
            await endpoint.health()
            await endpoint.facts()
            await endpoint.max_model_len()
    assert [request.path for request in seen] == ["/health", "/version", "/metrics", "/v1/models"] * 2
    for request in seen:
        assert request.method == "GET"
        assert request.headers["Accept-Encoding"] == "identity"
        assert not {"Authorization", "Cookie"} & set(request.headers)


async def test_figures_of_a_plain_answer() -> None:
    usage = 'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:num_requests_running{engine="0"} 3.0\n'
    routes = {"/metrics": text(200, CONFIG + usage), "/version": document({"version": "0.32.0"})}
    async with serving(routes) as at, asking(at) as endpoint:
        facts = await endpoint.facts()
    assert (facts.kv_tokens, facts.kv_blocks, facts.block_size, facts.kv_concurrency) == (36864, 2304, 16, 4.5)
    assert (facts.kv_usage, facts.running, facts.waiting) == (0.25, 3, None)
    assert (facts.version, facts.max_model_len) == ("0.32.0", None)


@pytest.mark.parametrize(
    ("content", "length"),
    [
        ({"data": [{"id": "m", "max_model_len": 4096}]}, 4096),
        # An adapter has no length of its own.
        ({"data": [{"id": "m", "max_model_len": 4096}, {"id": "lora", "max_model_len": None}]}, 4096),
        ({"data": [{"max_model_len": 4096}, {"max_model_len": 8192}]}, None),
        ({"data": [{"max_model_len": True}]}, None),
        ({"data": [{"max_model_len": -1}]}, None),
        ({"data": [{"max_model_len": "4096"}]}, None),
        ({"data": "nothing"}, None),
        ([1], None),
    ],
)
async def test_the_longest_sequence_is_in_the_list_of_models(content: object, length: int | None) -> None:
    async with serving({"/v1/models": document(content)}) as at, asking(at) as endpoint:
        assert await endpoint.max_model_len() == length


async def test_a_list_that_needs_a_key_tells_nothing_and_is_no_error() -> None:
    async with serving({"/v1/models": text(401)}) as at, asking(at) as endpoint:
        assert await endpoint.max_model_len() is None


@pytest.mark.parametrize("version", ["{", "[" * 100_000, '{"version": 32}', '{"version": "%s"}' % ("x" * 500), "\0"])
async def test_a_version_that_is_none(version: str) -> None:
    async with serving({"/metrics": text(200, CONFIG), "/version": text(200, version)}) as at, asking(at) as endpoint:
        facts = await endpoint.facts()
    assert (facts.version, facts.kv_tokens) == (None, 36864)


def filler(size: int) -> Iterator[bytes]:
    """Yield ``size`` bytes of metrics that are of no interest."""
    piece = b"".join(b'other_bucket{le="%d"} 1.0\n' % i for i in range(40_000))
    for _ in range(size // len(piece) + 1):
        yield piece


def huge(first: str, size: int) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(first.encode())
        with contextlib.suppress(ConnectionError):
            for piece in filler(size):
                await response.write(piece)
        return response

    return answer


async def test_50_megabytes_are_cut_and_cost_little_memory() -> None:
    # Time enough for a machine that is busy: here memory is what counts.
    async with serving({"/metrics": huge(CONFIG, 50 << 20)}) as at, asking(at, metrics=60) as endpoint:
        tracemalloc.start()
        try:
            facts = await endpoint.facts()
            # Server and client in one process: its pieces of 1 MB, its buffers, and ours.
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()
    assert facts.kv_tokens == 36864


async def test_one_line_without_an_end_costs_little_memory() -> None:
    first = CONFIG + "x" * (LARGEST - 1000)
    async with serving({"/metrics": text(200, first)}) as at, asking(at) as endpoint:
        assert (await endpoint.facts()).kv_tokens == 36864


async def test_a_family_that_may_have_been_cut_is_left_out() -> None:
    running = "".join(f'vllm:num_requests_running{{engine="{i}"}} 1.0\n' for i in range(600_000))
    assert len(running) > LARGEST
    async with serving({"/metrics": text(200, CONFIG + running)}) as at, asking(at) as endpoint:
        facts = await endpoint.facts()
    assert (facts.kv_tokens, facts.running) == (36864, None)


@pytest.mark.parametrize("encoding", ["gzip", "br"])
async def test_what_is_compressed_unasked_is_inflated_or_refused(encoding: str) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        body = gzip.compress((CONFIG + "#\n" * 100_000).encode())
        return web.Response(body=body, headers={"Content-Encoding": encoding})

    async with serving({"/metrics": answer}) as at, asking(at) as endpoint:
        if encoding == "gzip":
            assert (await endpoint.facts()).kv_tokens == 36864
        else:
            with pytest.raises(SourceError, match="compressed by 'br'"):
                await endpoint.facts()


async def test_an_answer_that_swells_a_thousandfold_is_cut() -> None:
    body = gzip.compress(CONFIG.encode() + b"\n" * (200 << 20))
    assert len(body) < 1 << 20

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, headers={"Content-Encoding": "gzip"})

    async with serving({"/metrics": answer}) as at, asking(at, metrics=60) as endpoint:
        tracemalloc.start()
        try:
            facts = await endpoint.facts()
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()
    # All that follows the one family is cut, so whether it was whole cannot be told.
    assert facts.kv_tokens is None


@pytest.mark.parametrize("body", ["", "\0\xff" * 500, "vllm:cache_config_info{", '{"json": true}', "<html></html>"])
async def test_metrics_that_make_no_sense_tell_nothing(body: str) -> None:
    async with serving({"/metrics": text(200, body)}) as at, asking(at) as endpoint:
        facts = await endpoint.facts()
    assert (facts.replicas, facts.kv_tokens, facts.kv_usage) == (0, None, None)


async def test_a_unix_socket() -> None:
    # Sockets have paths of 107 characters at most: not below pytest's folder.
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "vllm.sock")
        address = Address("http://localhost", uds=str(place), verify=False)
        async with asking(address) as endpoint:
            assert await endpoint.health() == Answer("refused")
            async with serving({"/health": text(200), "/metrics": text(200, CONFIG)}, uds=place):
                assert await endpoint.health() == Answer("ok")
                assert (await endpoint.facts()).kv_tokens == 36864
            place.touch()  # noqa: ASYNC240 - a file for the next question
            assert await endpoint.health() == Answer("refused")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a PEM file with key and certificate of 127.0.0.1, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    words = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=engine", "-days", "2"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([program("openssl"), "req", "-x509", *words], cwd=folder, check=True, capture_output=True)
    (folder / "both.pem").write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return folder / "both.pem"


def server_side(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


async def test_tls_on_loopback_is_not_held_against_a_ca(certificate: Path) -> None:
    async with serving({"/health": text(200)}, server_side(certificate)) as at:
        async with asking(Address(f"https://{at}", verify=False)) as endpoint:
            assert await endpoint.health() == Answer("ok")
        async with asking(at) as plain:
            assert (await plain.health()).health == "unknown"


async def test_tls_of_a_peer_is_held_against_the_ca_given(certificate: Path) -> None:
    async with serving({"/health": text(200)}, server_side(certificate)) as at:
        async with asking(configured(f"https://{at}", str(certificate.with_name("cert.pem")))) as endpoint:
            assert await endpoint.health() == Answer("ok")
        async with asking(configured(f"https://{at}")) as unknown:
            answer = await unknown.health()
    assert answer.health == "unknown"
    assert answer.why.startswith("/health: its certificate is not trusted: self")


async def test_tls_that_asks_for_our_certificate(certificate: Path) -> None:
    context = server_side(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificate.with_name("cert.pem"))
    async with (
        serving({"/health": text(200)}, context) as at,
        asking(Address(f"https://{at}", verify=False)) as endpoint,
    ):
        answer = await endpoint.health()
    assert answer.health == "unknown"
    assert answer.why


async def test_a_plain_server_where_tls_was_expected() -> None:
    async with serving({"/health": text(200)}) as at, asking(Address(f"https://{at}", verify=False)) as endpoint:
        assert await endpoint.health() == Answer(why="/health: no TLS session could be made")


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_a_ca_that_cannot_be_read(tmp_path: Path, content: str | None) -> None:
    ca = tmp_path / "ca.pem"
    if content is not None:
        ca.write_text(content)
    with pytest.raises(SourceError, match=r"^endpoint_ca: "):
        async with asking(configured("https://127.0.0.1:9", str(ca))):
            pass
