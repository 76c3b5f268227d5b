"""What a log source asks of podman or docker over their REST socket: a container's state, and the bytes of its log."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from budget_exporter.errors import SourceDenied, SourceError

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

__all__ = ["Api", "Run"]

_DEADLINE = 5.0
"""Seconds an answer may take, and a log to begin."""
_LARGEST = 4 << 20
_BUFFER = 1 << 17
_OK = 200
_MISSING = 404


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a container: another one has another start, and one that is over another end."""

    id: str
    running: bool
    started: str
    finished: str


class Api:
    """A connection to the daemon at ``socket``; a context, open while it is entered."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._session: ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp  # noqa: PLC0415 - its client costs nothing where no container is followed

        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self.socket)),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_DEADLINE),
            read_bufsize=_BUFFER,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def run_of(self, container: str) -> Run | None:
        """Return the latest run of a container by name or id, None where the daemon has none of it."""
        with self._errors():
            async with asyncio.timeout(_DEADLINE):
                response = await self._get(f"/containers/{quote(container, safe='')}/json")
                if response is None:
                    return None
                async with response:
                    body = b""
                    while len(body) <= _LARGEST and (more := await response.content.readany()):
                        body += more
            return _run(json.loads(body))

    @contextlib.asynccontextmanager
    async def log(self, container: str, since: int, *, follow: bool) -> AsyncIterator[AsyncIterator[bytes]]:
        """Give the bytes of a container's log since a Unix second, stamped; none where the container is gone."""
        query = {"stdout": "1", "stderr": "1", "timestamps": "1", "since": str(since), "follow": str(int(follow))}
        with self._errors():
            async with asyncio.timeout(_DEADLINE):
                response = await self._get(f"/containers/{quote(container, safe='')}/logs", query)
        try:
            yield self._chunks(response)
        finally:
            if response is not None:
                response.close()

    async def _chunks(self, response: ClientResponse | None) -> AsyncIterator[bytes]:
        """Yield what comes, until the container or the daemon ends it; which of the two is to be asked afterwards."""
        import aiohttp  # noqa: PLC0415 - as above

        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
            while response is not None and (chunk := await response.content.readany()):
                yield chunk

    async def _get(self, path: str, query: dict[str, str] | None = None) -> ClientResponse | None:
        if self._session is None:
            raise SourceError(f"{self.socket}: not connected")
        # Without a version in the path the daemon answers in its own newest; docker 29 refuses the older ones.
        response = await self._session.get(f"http://daemon{path}", params=query, allow_redirects=False)
        if response.status == _OK:
            return response
        response.close()
        if response.status == _MISSING:
            return None
        what = "; its log driver may have nothing to read back" if path.endswith("/logs") else ""
        raise SourceError(f"{self.socket}: {path}: status {response.status}{what}")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        import aiohttp  # noqa: PLC0415 - as above

        try:
            yield
        except TimeoutError as error:
            raise SourceError(f"{self.socket}: no answer within {_DEADLINE:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            if isinstance(error, PermissionError) or isinstance(error.__cause__, PermissionError):
                raise SourceDenied(f"{self.socket}: {reason}; needs the socket's group, or root") from error
            raise SourceError(f"{self.socket}: {reason}") from error


def _run(body: Any) -> Run:
    """Return what is wanted of an inspection; raise ValueError where it is none."""
    state = body.get("State") if isinstance(body, dict) else None
    if not isinstance(state, dict) or not isinstance(body.get("Id"), str):
        raise ValueError("no inspection")  # noqa: TRY004 - as json raises for what is no JSON
    # Between two runs docker says that it is running, and restarting.
    running = state.get("Running") is True and state.get("Restarting") is not True
    return Run(body["Id"], running, str(state.get("StartedAt")), str(state.get("FinishedAt")))
