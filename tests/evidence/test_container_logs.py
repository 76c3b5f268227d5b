"""The source of containers' logs where a daemon misbehaves as no real one does on demand."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.evidence import LogTarget
from budget_exporter.evidence.container_logs import source
from budget_exporter.roots import Roots

IDENTITY = "c0ffee" * 10 + "c0ff"
INSPECTION = {"Id": IDENTITY, "State": {"Running": True, "StartedAt": "2026-02-03T10:00:00Z", "FinishedAt": ""}}
DEADLINE = 20.0


def frames(*numbers: int) -> bytes:
    bodies = [f"2026-02-03T10:00:{number:02}.5Z line {number}\n".encode() for number in numbers]
    return b"".join(b"\x01\0\0\0" + len(body).to_bytes(4, "big") + body for body in bodies)


class Daemon:
    """What it has of a log, and how much of it it sends to whoever follows."""

    def __init__(self) -> None:
        self.has = 3
        self.sends = 3
        self.follows = 0
        self.status = 200
        self.inspection: object = INSPECTION

    async def inspect(self, _: web.Request) -> web.Response:
        return web.json_response(self.inspection)

    async def logs(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=self.status)
        await response.prepare(request)
        if request.query["follow"] == "0":
            await response.write(frames(*range(self.has)))
            return response
        self.follows += 1
        await response.write(frames(*range(self.sends if self.follows == 1 else self.has)))
        await asyncio.sleep(DEADLINE)
        return response


@asynccontextmanager
async def serving(daemon: Daemon, socket: Path) -> AsyncIterator[None]:
    socket.parent.mkdir(parents=True)
    app = web.Application()
    app.router.add_get("/containers/{name}/json", daemon.inspect)
    app.router.add_get("/containers/{name}/logs", daemon.logs)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def lines(roots: Roots, target: LogTarget, count: int, check: float = 60.0) -> list[bytes]:
    found: list[bytes] = []
    batches = source(roots, check=check).batches(target, None)
    async with aclosing(batches), asyncio.timeout(DEADLINE):  # type: ignore[type-var]
        while len(found) < count:
            found += [record.data for record in await anext(batches)]
    return found


async def test_lines_that_a_stream_does_not_bring_are_found_missing_and_fetched(tmp_path: Path) -> None:
    """Some daemons' streams fall silent when the log is rotated under them; the log itself goes on."""
    daemon = Daemon()
    async with serving(daemon, tmp_path / "run/podman/podman.sock"):
        following = asyncio.ensure_future(lines(Roots(rootfs=tmp_path), LogTarget("tiny", container="c"), 5, check=0.1))
        async with asyncio.timeout(DEADLINE):
            while not daemon.follows:  # noqa: ASYNC110 - the daemon is a test's
                await asyncio.sleep(0.01)
        daemon.has = 5
        assert await following == [f"line {number}".encode() for number in range(5)]


async def test_of_two_daemons_the_one_with_the_container_that_is_meant_is_asked(tmp_path: Path) -> None:
    one, other = Daemon(), Daemon()
    other.inspection = {**INSPECTION, "Id": "another"}
    other.has = 1
    roots = Roots(rootfs=tmp_path)
    async with (
        serving(other, tmp_path / "run/podman/podman.sock"),
        serving(one, tmp_path / "var/run/docker.sock"),
    ):
        target = LogTarget("tiny", container="c", container_id=IDENTITY)
        assert len(await lines(roots, target, 3)) == 3
        socket = str(tmp_path / "run/podman/podman.sock")
        assert await lines(roots, LogTarget("tiny", container="c", socket=socket), 1) == [b"line 0"]
        with pytest.raises(SourceError, match=r"several daemons have container c: .*podman.sock, .*docker.sock"):
            await lines(roots, LogTarget("tiny", container="c"), 1)


async def test_a_log_that_cannot_be_read_back_says_so(tmp_path: Path) -> None:
    daemon = Daemon()
    daemon.status = 501
    async with serving(daemon, tmp_path / "run/docker.sock"):
        with pytest.raises(SourceError, match="status 501; its log driver may have nothing to read back"):
            await lines(Roots(rootfs=tmp_path), LogTarget("tiny", container="c"), 1)


@pytest.mark.parametrize("inspection", [[], {}, {"Id": 7, "State": {}}, {"Id": "a", "State": []}])
async def test_an_answer_that_makes_no_sense_is_an_error(tmp_path: Path, inspection: object) -> None:
    daemon = Daemon()
    daemon.inspection = inspection
    async with serving(daemon, tmp_path / "run/docker.sock"):
        with pytest.raises(SourceError, match=r"docker\.sock: ValueError"):
            await lines(Roots(rootfs=tmp_path), LogTarget("tiny", container="c"), 1)


async def test_without_a_socket_or_a_container_there_is_nothing_to_follow(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no socket of podman or docker below"):
        await lines(Roots(rootfs=tmp_path), LogTarget("tiny", container="c"), 1)
    async with serving(Daemon(), tmp_path / "run/docker.sock"):
        with pytest.raises(SourceError, match="no container given for the log of tiny"):
            await lines(Roots(rootfs=tmp_path), LogTarget("tiny"), 1)


async def test_a_socket_that_may_not_be_used_names_the_permission() -> None:
    # pytest's own folder is closed to others
    with tempfile.TemporaryDirectory(prefix="budget-daemon-") as folder:
        root = Path(folder)
        root.chmod(0o755)  # noqa: ASYNC240 - a test may touch its own files
        async with serving(Daemon(), root / "run/docker.sock"):
            (root / "run/docker.sock").chmod(0o600)
            was = os.geteuid()
            if was == 0:
                os.seteuid(65534)
            try:
                with pytest.raises(SourceDenied, match=r"Permission denied; needs the socket's group, or root"):
                    await lines(Roots(rootfs=root), LogTarget("tiny", container="c"), 1)
            finally:
                os.seteuid(was)
