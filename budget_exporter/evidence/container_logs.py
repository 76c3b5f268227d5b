"""
Follow one container's log through the logs API of podman or docker.

The container is known by its name: one that is created anew under the same name is followed on. Where the stream ends
(the container did, or the daemon is restarted) it is taken up again behind the last line; what the container wrote in
the meantime is in the daemon's log. What that log has thrown away (``max-size``) cannot be had.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

from budget_exporter.errors import SourceError
from budget_exporter.evidence import LogTarget, Record
from budget_exporter.evidence.container_api import Api, Run
from budget_exporter.evidence.container_frames import Frames, Said
from budget_exporter.evidence.container_place import Finder, Place, Seconds
from budget_exporter.roots import Roots

__all__ = ["ContainerLogs", "source"]

_BEAT = 2.0
_QUIET = 0.25
"""Seconds without a line after which we say that there is nothing more for now."""
_CHECK = 30.0
"""Seconds of silence after which we look whether the daemon has lines that it did not send."""
_MUCH = 8192
"""Bytes from which on they are taken apart off the event loop."""


def source(roots: Roots, limit: int = 65536, check: float = _CHECK) -> ContainerLogs:
    """
    Return the log source of containers; ``roots.sockets()`` are the daemons asked where a target names none.

    ``limit`` are the bytes of a line that are kept, ``check`` the seconds of silence after which the daemon is asked
    for lines that it has not sent.
    """
    return ContainerLogs(roots, limit, check)


class ContainerLogs:
    """Follow containers; one connection each."""

    name = "container_logs"
    beat: float | None = _BEAT

    def __init__(self, roots: Roots, limit: int, check: float) -> None:
        self._roots = roots
        self._limit = limit
        self._check = check

    async def batches(self, target: LogTarget, cursor: str | None) -> AsyncIterator[Sequence[Record]]:
        """
        Yield the lines of ``target.container`` (or ``container_id``) since ``target.since``, or after ``cursor``.

        Raise SourceError where no daemon answers, has the container, or keeps its log; SourceDenied where the socket
        may not be used.
        """
        async with AsyncExitStack() as stack:
            api = await self._daemon(target, stack)
            following = _Following(api, target, cursor, self._limit, self._check)
            async with aclosing(following.batches()) as batches:
                async for batch in batches:
                    yield batch

    async def _daemon(self, target: LogTarget, stack: AsyncExitStack) -> Api:
        """Return a connection to the daemon that has the container; where several have, to the one that runs it."""
        sockets = [Path(target.socket)] if target.socket else await asyncio.to_thread(self._roots.sockets)
        if not sockets:
            raise SourceError(f"no socket of podman or docker below {self._roots.rootfs}")
        if len(sockets) == 1:
            return await stack.enter_async_context(Api(sockets[0]))
        having: list[tuple[Api, Run]] = []
        errors = []
        for socket in sockets:
            api = await stack.enter_async_context(Api(socket))
            try:
                run = await api.run_of(_name(target))
            except SourceError as error:
                errors.append(str(error))
                continue
            if run is not None:
                having.append((api, run))
        found = [api for api, run in having if run.id == target.container_id]
        found = found or [api for api, run in having if run.running] or [api for api, _ in having]
        if len(found) == 1:
            return found[0]
        places = ", ".join(str(api.socket) for api in found) or ", ".join(map(str, sockets))
        what = "several daemons have" if found else "there is no"
        raise SourceError("; ".join([f"{what} container {_name(target)}: {places}", *errors]))


def _name(target: LogTarget) -> str:
    name = target.container or target.container_id
    if name is None:
        raise SourceError(f"no container given for the log of {target.engine}")
    return name


class _Following:
    """One container of one daemon, run after run."""

    def __init__(self, api: Api, target: LogTarget, cursor: str | None, limit: int, check: float) -> None:
        self._api = api
        self._name = _name(target)
        self._cursor = cursor
        self._since = 0 if target.since is None else max(0, int(target.since) - 1)
        self._limit = limit
        self._check = check

    async def batches(self) -> AsyncGenerator[Sequence[Record], None]:
        read: Run | None = None
        while True:
            run = await self._api.run_of(self._name)
            if run is None and self._cursor is None:
                raise SourceError(f"{self._api.socket}: there is no container {self._name}")
            if run is None or run == read:
                yield []
                await asyncio.sleep(_BEAT / 2)
                continue
            # What is there first, as its end shows; then what comes.
            for follow in (False, True) if run.running else (False,):
                async with aclosing(self._pass(run, follow=follow)) as batches:
                    async for batch in batches:
                        self._cursor = batch[-1].cursor if batch else self._cursor
                        yield batch
                yield []
            if not run.running:
                read = run
            else:
                await asyncio.sleep(_QUIET)  # some daemons end a stream before the container has ended

    async def _pass(self, run: Run, *, follow: bool) -> AsyncGenerator[Sequence[Record], None]:
        """Yield the lines after our place, to the end of what is there or of the run."""
        place, skip, rest, since = Place(run.id), 0, b"", self._since
        finder = Finder.of(self._cursor)
        if finder is not None:
            # Another container's log is read from its start.
            since = finder.since - 1 if finder.container == run.id else 0
            if finder.container == run.id:
                await self._find(finder)
                skip, rest = finder.skip, finder.rest
        reader = _Reader(place, self._limit, skip, rest)
        async with self._api.log(run.id, max(0, since), follow=follow) as chunks:
            stream = _Stream(chunks)
            try:
                async with aclosing(self._read(stream, reader, run if follow else None)) as batches:
                    async for batch in batches:
                        yield batch
            finally:
                await stream.close()
        if not run.running:
            yield reader.finish()

    async def _find(self, finder: Finder) -> int:
        """Find our place in the daemon's log; return how many lines it has since then, and the second before."""
        frames, seconds = Frames(self._limit), Seconds()
        async with self._api.log(finder.container, max(0, finder.since - 1), follow=False) as chunks:
            async for chunk in chunks:
                for said in frames.feed(chunk):
                    finder.passed(said, seconds.of(said.stamp))
        ended = finder.seen
        for said in frames.finish():
            finder.passed(said, seconds.of(said.stamp))
        return ended

    async def _read(self, stream: _Stream, reader: _Reader, run: Run | None) -> AsyncGenerator[Sequence[Record], None]:
        """Yield what comes; while ``run`` is followed say where nothing does."""
        silent = 0.0
        while (chunk := await stream.next(_BEAT if silent else _QUIET)) != b"":
            if chunk is not None:
                silent = 0.0
                records = await asyncio.to_thread(reader.feed, chunk) if len(chunk) > _MUCH else reader.feed(chunk)
                if records:
                    yield records
                continue
            if run is None:
                continue
            silent += _BEAT if silent else _QUIET
            # The answer also shows that the daemon does not hang.
            if silent > _BEAT and await self._api.run_of(self._name) != run:
                return
            yield []
            if silent > self._check:
                silent = _QUIET
                finder = Finder.of(str(reader.place))
                if finder is not None and await self._find(finder) > finder.skip:
                    return


class _Reader:
    """Bytes of one stream to records, the first ``skip`` lines left out; ``rest`` is new at the end of the last one."""

    def __init__(self, place: Place, limit: int, skip: int, rest: bytes) -> None:
        self.place = place
        self._frames = Frames(limit)
        self._seconds = Seconds()
        self._skip = skip
        self._rest = rest

    def feed(self, chunk: bytes) -> list[Record]:
        return self._records(self._frames.feed(chunk))

    def finish(self) -> list[Record]:
        return self._records(self._frames.finish())

    def _records(self, lines: Sequence[Said]) -> list[Record]:
        records = []
        for said in lines:
            at = self._seconds.of(said.stamp)
            self.place.passed(said, at)
            data = said.data
            if self._skip:
                self._skip -= 1
                if self._skip or not self._rest:
                    continue
                data = self._rest
            records.append(Record(data, "", at, None, said.stream, said.cut))
        if records:
            last = records[-1]
            records[-1] = Record(last.data, str(self.place), last.at, None, last.stream, last.cut)
        return records


class _Stream:
    """Chunks that are waited for with a deadline, without losing the one that comes after it."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._coming: asyncio.Task[bytes] | None = None

    async def next(self, patience: float) -> bytes | None:
        """Return the next chunk, None where there is none within ``patience`` seconds, nothing at the end."""
        if self._coming is None:
            self._coming = asyncio.ensure_future(self._one())
        done, _ = await asyncio.wait({self._coming}, timeout=patience)
        if not done:
            return None
        coming, self._coming = self._coming, None
        return coming.result()

    async def _one(self) -> bytes:
        return await anext(self._chunks, b"")

    async def close(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
            with contextlib.suppress(asyncio.CancelledError, SourceError):
                await self._coming
