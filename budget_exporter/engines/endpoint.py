"""Ask an engine's own endpoint how it is and what its metrics say: small answers, in time, or none."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from budget_exporter.engines._exposition import Scanner, facts
from budget_exporter.engines.address import Address
from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.facts.endpoint import Answer, EndpointFacts
from budget_exporter.roots import Roots

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Endpoint", "EndpointSource", "source"]

HEALTH = 3.0
"""Seconds an answer to /health may take: it has no work to do."""
METRICS = 10.0
"""Seconds an answer to anything else may take."""
LARGEST = 16 << 20
"""Bytes of metrics that are read; 60 kB per replica are usual."""
SMALL = 1 << 20
"""Bytes of any other answer."""
PIECE = 64 << 10
_OK, _FAILED, _UNAVAILABLE = 200, 500, 503
_DENIED = (401, 403)


def source(roots: Roots, interval: float = 5.0) -> EndpointSource:  # noqa: ARG001 - what every source is given
    """Return the source that asks engines' endpoints, each every ``interval`` seconds."""
    return EndpointSource(interval)


class EndpointSource:
    """Open endpoints; asynchronous."""

    name = "endpoint"

    def __init__(self, interval: float = 5.0, health: float = HEALTH, metrics: float = METRICS) -> None:
        self.interval = interval
        self._health = health
        self._metrics = metrics

    @property
    def beat(self) -> float:
        """Return the seconds within which the next answer, or the lack of one, is noted."""
        return self.interval + self._health + 3 * self._metrics

    @contextlib.asynccontextmanager
    async def opened(self, address: Address) -> AsyncIterator[Endpoint]:
        """Give the endpoint at ``address``; nothing is asked yet. Raise SourceError where its CA cannot be read."""
        import aiohttp  # noqa: PLC0415 - costs nothing where no endpoint is asked

        tls = await asyncio.to_thread(_tls, address)
        connector: aiohttp.BaseConnector
        if address.uds is not None:
            connector = aiohttp.UnixConnector(address.uds, force_close=True)
        else:
            # A connection each time: the engine closes an idle one after 5 s, and just then it would be asked again.
            connector = aiohttp.TCPConnector(ssl=tls, force_close=True, use_dns_cache=False)
        async with aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            # Compressing costs the engine more than the bytes cost loopback, and an answer may swell a thousandfold.
            headers={"User-Agent": "budget-exporter", "Accept-Encoding": "identity"},
            auto_decompress=False,
        ) as session:
            yield Endpoint(session, address, tls, self._health, self._metrics)


class Endpoint:
    """
    One engine's endpoint.

    Nothing but GET is sent, no key, no cookie; no redirect is followed and no proxy used.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: Address,
        tls: ssl.SSLContext | bool,
        health: float,
        metrics: float,
    ) -> None:
        self._session = session
        self._address = address
        self._tls = tls
        self._health = health
        self._metrics = metrics

    async def health(self) -> Answer:
        """Return what /health says, or how it failed to; never raise for what an endpoint may do."""
        try:
            async with asyncio.timeout(self._health), self._get("/health") as answer:
                return _health(answer.status)
        except TimeoutError:
            return Answer("timeout")
        except Exception as error:  # noqa: BLE001 - aiohttp's own among others; nothing we ask may end us
            return _failed(error)

    async def facts(self) -> EndpointFacts:
        """
        Return what /metrics, /version and /v1/models say; raise SourceError where there are no metrics to read.

        Of an answer above LARGEST the beginning is read.
        """
        version = await self._version()
        scanner = Scanner()
        cut = await self._read("/metrics", scanner.feed, LARGEST)
        return facts(scanner.close(cut=cut), version=version)

    async def max_model_len(self) -> int | None:
        """Return the longest sequence that the list of models tells; None where a key is needed to read it."""
        document = await self._json("/v1/models")
        models = document.get("data") if isinstance(document, dict) else None
        lengths = {model.get("max_model_len") for model in models or () if isinstance(model, dict)} - {None}
        length = lengths.pop() if len(lengths) == 1 else None
        return length if type(length) is int and length > 0 else None

    async def _version(self) -> str | None:
        document = await self._json("/version")
        version = document.get("version") if isinstance(document, dict) else None
        return version if isinstance(version, str) and 0 < len(version) <= 64 and version.isprintable() else None  # noqa: PLR2004

    async def _json(self, path: str) -> Any:
        """Return the document at ``path``, None where there is none; an older release may lack it."""
        pieces: list[bytes] = []
        try:
            if await self._read(path, pieces.append, SMALL):
                return None
            return json.loads(b"".join(pieces))
        except (SourceError, ValueError, RecursionError):
            return None

    async def _read(self, path: str, take: Callable[[bytes], object], largest: int) -> bool:
        """Hand the answer's body to ``take`` piece by piece; return whether it was cut at ``largest`` bytes."""
        try:
            async with asyncio.timeout(self._metrics), self._get(path) as answer:
                return await _body(path, answer, take, largest)
        except SourceError:
            raise
        except TimeoutError as error:
            raise SourceError(f"{path}: no whole answer within {self._metrics:g} s") from error
        except Exception as error:
            raise SourceError(f"{path}: {_reason(error)}") from error

    def _get(self, path: str) -> Any:
        return self._session.get(f"{self._address.url}{path}", allow_redirects=False, ssl=self._tls)


async def _body(path: str, answer: aiohttp.ClientResponse, take: Callable[[bytes], object], largest: int) -> bool:
    if answer.status != _OK:
        raise SourceError(f"{path}: answers {answer.status}")
    taken = 0
    async with contextlib.aclosing(_plain(answer)) as pieces:
        async for piece in pieces:
            taken += len(piece)
            if taken > largest:
                return True
            take(piece)
    return False


async def _plain(answer: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Yield the body in small pieces, inflated if the other side compressed it though it was not asked to."""
    encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "deflate"):
        raise SourceError(f"compressed by {encoding[:20]!r}")
    inflate = None if encoding == "identity" else zlib.decompressobj(zlib.MAX_WBITS | 32)
    async for piece in answer.content.iter_chunked(PIECE):
        if inflate is None:
            yield piece
            continue
        rest = piece
        while rest:
            yield inflate.decompress(rest, PIECE)
            rest = inflate.unconsumed_tail
            # While an answer swells nothing here would wait otherwise.
            await asyncio.sleep(0)
    if inflate is not None:
        yield inflate.flush()


def _health(status: int) -> Answer:
    """
    Return what the status says.

    503 is the engine's word for a dead core; releases before it had one answer 500. Any other status is not an engine's
    (a proxy's, or another server's). Source: vLLM ``entrypoints/serve/instrumentator/health.py``.
    """
    if status == _OK:
        return Answer("ok")
    if status in (_FAILED, _UNAVAILABLE):
        return Answer("unavailable")
    if 300 <= status < 400:  # noqa: PLR2004 - RFC 9110
        return Answer(why=f"/health: answers {status}, a redirect, which is not followed")
    return Answer(why=f"/health: answers {status}" + (": access denied" if status in _DENIED else ""))


def _failed(error: Exception) -> Answer:
    """Return what a failure to connect or to read says of the engine."""
    number = error.errno if isinstance(error, OSError) else None
    # A socket's file is made when the engine begins to listen, so without it nobody does.
    if number in (errno.ECONNREFUSED, errno.ENOENT):
        return Answer("refused")
    if number == errno.ETIMEDOUT:
        return Answer("timeout")
    return Answer(why=f"/health: {_reason(error)}")


def _reason(error: Exception) -> str:
    """Return what went wrong, without the address: it may be nobody's business."""
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {inner.verify_message}"
    if isinstance(inner, ssl.SSLError):
        return "no TLS session could be made"
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror)
    return f"no answer that makes sense ({type(error).__name__})"


def _tls(address: Address) -> ssl.SSLContext | bool:
    """Return how an https address's certificate is judged; blocking, it reads files."""
    if not address.url.startswith("https:"):
        return True
    if address.verify:
        try:
            return ssl.create_default_context(cafile=address.ca)
        except PermissionError as error:
            raise SourceDenied("endpoint_ca: may not be read") from error
        except (OSError, ssl.SSLError) as error:
            raise SourceError(f"endpoint_ca: {error.strerror or 'cannot be read'}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
