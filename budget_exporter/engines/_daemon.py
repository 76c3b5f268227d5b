"""Ask a container daemon over its socket: single answers and the stream of its events, each with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.facts.container import ContainerRuntime

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

__all__ = ["Daemon", "DaemonBusyError", "Event", "NoSuchContainerError", "event_of"]

_LARGEST = 16 << 20
_MISSING = 404
_FAILED = 500
_OK = 200


class DaemonBusyError(SourceError):
    """The daemon has failed to answer this once: podman does while a container is being restarted or removed."""


class Event(NamedTuple):
    """Something that has happened to a container."""

    id: str
    action: str


class NoSuchContainerError(SourceError):
    """The daemon has no container of that name."""


class Daemon:
    """
    A connection to podman or docker at ``socket``; a context, open while it is entered.

    An answer is given up after ``timeout`` seconds, or when it is larger than any that makes sense.
    """

    def __init__(self, socket: Path, timeout: float = 5.0) -> None:
        self.socket = socket
        self._timeout = timeout
        self._session: ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp  # noqa: PLC0415 - its client costs nothing where no daemon is there

        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self.socket)),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeout),
            read_bufsize=1 << 20,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def runtime(self) -> ContainerRuntime:
        """Return whose daemon it is, as its version tells."""
        version = await self.get("/version")
        components = version.get("Components") if isinstance(version, dict) else None
        names = [part.get("Name") for part in components or () if isinstance(part, dict)]
        return "podman" if "Podman Engine" in names else "docker"

    async def get(self, path: str, **query: str) -> Any:
        """
        Return the JSON that the daemon answers.

        Raise NoSuchContainerError for 404, DaemonBusyError for a failure of the daemon's own, SourceDenied where the
        socket is not ours to use, SourceError for all else that is not an answer. The text of an answer never becomes
        part of an error: it may hold what is secret.
        """
        with self._errors():
            async with asyncio.timeout(self._timeout), await self._request(path, query) as response:
                body = await response.content.read(_LARGEST + 1)
                while len(body) <= _LARGEST and (more := await response.content.read(_LARGEST + 1)):
                    body += more
        if len(body) > _LARGEST:
            raise SourceError(f"{self.socket}: the answer to {path} is above {_LARGEST >> 20} MiB")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{self.socket}: the answer to {path} is no JSON") from error

    @contextlib.asynccontextmanager
    async def events(self) -> AsyncIterator[asyncio.Queue[Event | SourceError]]:
        """
        Give a queue of what happens to containers from now on; the last in it is why nothing more comes.

        Raise SourceError where the daemon does not answer in time.
        """
        queue: asyncio.Queue[Event | SourceError] = asyncio.Queue()
        with self._errors():
            async with asyncio.timeout(self._timeout):
                response = await self._request("/events", {"filters": '{"type":["container"]}'})
        reader = asyncio.create_task(self._read(response, queue), name=f"events {self.socket}")
        try:
            yield queue
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
            response.close()

    async def _read(self, response: ClientResponse, queue: asyncio.Queue[Event | SourceError]) -> None:
        end = SourceError(f"{self.socket}: the daemon has ended its stream of events")
        try:
            with self._errors():
                while line := await response.content.readline():
                    if line.strip():
                        queue.put_nowait(event_of(json.loads(line)))
        except SourceError as error:
            end = error
        queue.put_nowait(end)

    async def _request(self, path: str, query: dict[str, str]) -> ClientResponse:
        assert self._session is not None  # noqa: S101 - entered
        # Without a version in the path the daemon answers in its own newest: what is read here is in all of them, and
        # each daemon refuses what it holds for too old (docker 29 anything below 1.44).
        response = await self._session.get(f"http://daemon{path}", params=query, allow_redirects=False)
        if response.status != _OK:
            response.close()
            if response.status == _MISSING:
                raise NoSuchContainerError(f"{self.socket}: {path}: there is none")
            error = DaemonBusyError if response.status >= _FAILED else SourceError
            raise error(f"{self.socket}: {path}: status {response.status}")
        return response

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn whatever a connection can raise into an error of the source."""
        import aiohttp  # noqa: PLC0415 - as above

        try:
            yield
        except TimeoutError as error:
            raise SourceError(f"{self.socket}: no answer within {self._timeout:g} s") from error
        except (aiohttp.ClientConnectorError, PermissionError) as error:
            if isinstance(error.__cause__ or error, PermissionError):
                raise SourceDenied(f"{self.socket}: permission denied; needs the socket's group, or root") from error
            raise SourceError(f"{self.socket}: {getattr(error, 'strerror', None) or type(error).__name__}") from error
        except aiohttp.ClientPayloadError as error:
            raise SourceError(f"{self.socket}: the daemon's answer broke off") from error
        except SourceError:
            raise
        except Exception as error:  # what a stranger's bytes raise in aiohttp and json is no closed list
            # Its name only: the text may hold what was answered.
            raise SourceError(f"{self.socket}: {getattr(error, 'strerror', None) or type(error).__name__}") from error


def event_of(what: object) -> Event:
    """
    Return the event that a line of the stream tells of; ``exec_start: sh -c …`` keeps its first word only.

    Raise ValueError for what is none.
    """
    actor = what.get("Actor") if isinstance(what, dict) else None
    if not isinstance(what, dict) or not isinstance(actor, dict):
        raise ValueError("no event")  # noqa: TRY004 - as json raises for what is no JSON
    return Event(str(actor.get("ID") or ""), str(what.get("Action") or "").partition(":")[0])
