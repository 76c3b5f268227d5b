"""Sockets that are no daemon, hang or talk nonsense: each is an error in time, and tells nothing of the answer."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from budget_exporter.demo.procfs_tree import Process, build
from budget_exporter.engines import docker, podman
from budget_exporter.engines._container_supervisor import ContainerSupervisor
from budget_exporter.engines._daemon import Daemon
from budget_exporter.engines.containers import ContainerSource, source
from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.facts.container import Container
from budget_exporter.roots import Roots

SHORT = 0.3
ID = "ab" * 32
Answer = Callable[[str], bytes | None]


def http(body: object, status: str = "200 OK") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data


@asynccontextmanager
async def daemon(path: Path, answer: Answer) -> AsyncIterator[Path]:
    """Listen at ``path`` and send what ``answer`` has for each requested path; None is never answered."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        request = await reader.readline()
        while (await reader.readline()).strip():
            pass
        data = answer(request.split()[1].decode().partition("?")[0])
        if data is not None:
            writer.write(data)
            if not data.startswith(STREAM) or data.endswith(LAST):
                writer.close()

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield path
    finally:
        server.close()
        for writer in writers:
            writer.close()


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


LAST = b"0\r\n\r\n"


def chunk(event: object) -> bytes:
    data = event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def container(name: str = "qwen", pid: int = 7, identity: str = ID, **changes: Any) -> dict[str, Any]:
    return {
        "Id": identity,
        "Name": f"/{name}",
        "Path": "vllm",
        "Args": ["serve", "m"],
        "RestartCount": 0,
        "State": {"Status": "running", "Pid": pid, "StartedAt": "2026-01-02T03:04:05Z"},
        "Config": {},
        "HostConfig": {},
        **changes,
    }


def docker_with(*containers: dict[str, Any], events: bytes = b"", version: object = None) -> Answer:
    """Return the answers of a docker that has these containers."""

    def answer(path: str) -> bytes | None:
        if path == "/version":
            return http(version or {"Components": [{"Name": "Engine"}]})
        if path == "/events":
            return STREAM + events
        if path == "/containers/json":
            return http([{"Id": each["Id"]} for each in containers])
        found = [
            each for each in containers if path in (f"/containers/{each['Id']}/json", f"/containers{each['Name']}/json")
        ]
        return http(found[0]) if found else http({"message": "none"}, "404 Not Found")

    return answer


async def first(finder: ContainerSource, path: Path) -> tuple[tuple[Container, ...], list[str]]:
    async for told in finder.watch(path):
        return told
    raise AssertionError("it ended")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda _: None, "no answer within 0.3 s"),
        (lambda _: b"SSH-2.0-hunter2\r\n\r\n", ""),
        (lambda _: b"", ""),
        (lambda _: http(b"hunter2"), "the answer to /version is no JSON"),
        (lambda _: http(b"[" * 100_000), "the answer to /version is no JSON"),
        (lambda _: http({}, "403 Forbidden"), "/version: status 403"),
        (lambda _: http({}, "302 Found"), "/version: status 302"),
        (lambda _: http({}, "500 Oops"), "/version: status 500"),
        (lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nConnection: close\r\n\r\nhunter2", ""),
    ],
)  # fmt: skip
async def test_what_is_no_daemon_is_an_error_in_time(tmp_path: Path, answer: Answer, says: str) -> None:
    async with daemon(tmp_path / "run/docker.sock", answer) as path:
        began = time.monotonic()
        with pytest.raises(SourceError) as raised:
            await first(ContainerSource(Roots(rootfs=tmp_path), timeout=SHORT), path)
        assert time.monotonic() - began < SHORT + 5
    assert says in str(raised.value)
    assert str(path) in str(raised.value)
    assert "hunter2" not in str(raised.value)


async def test_an_answer_without_an_end_is_given_up(tmp_path: Path) -> None:
    endless = STREAM + chunk(b"x" * (17 << 20))
    async with daemon(tmp_path / "s", lambda _: endless) as path, Daemon(path) as asked:
        with pytest.raises(SourceError, match="is above 16 MiB"):
            await asked.get("/version")


async def test_a_list_that_makes_no_sense_is_an_error(tmp_path: Path) -> None:
    every: list[object] = [{}, None, "x", [{}], [{"Id": 7}], [{"Id": "../../x"}]]
    for nonsense in every:
        usual = docker_with()

        def answer(path: str, nonsense: object = nonsense, usual: Answer = usual) -> bytes | None:
            return http(nonsense) if path == "/containers/json" else usual(path)

        async with daemon(tmp_path / "run/docker.sock", answer) as path:
            with pytest.raises(SourceError, match="the list of containers makes no sense"):
                await first(source(Roots(rootfs=tmp_path)), path)
        path.unlink(missing_ok=True)


async def test_one_container_that_is_not_told_costs_no_other(tmp_path: Path) -> None:
    good, bad = container(), container("bad", identity="cd" * 32, State="hunter2")
    async with daemon(tmp_path / "run/docker.sock", docker_with(good, bad)) as path:
        containers, faults = await first(source(Roots(rootfs=tmp_path)), path)
    assert [each.name for each in containers] == ["qwen"]
    assert faults == [f"{path}: what is said of a container makes no sense"]


@pytest.mark.parametrize("line", [b"hunter2\n", b"[]\n", b'{"Action":"die"}\n', b"x" * (3 << 20)])
async def test_a_stream_of_nonsense_ends_the_watch(tmp_path: Path, line: bytes) -> None:
    usual = docker_with(container(), events=chunk(line) + LAST)
    async with daemon(tmp_path / "run/docker.sock", usual) as path:
        with pytest.raises(SourceError) as raised:
            async for _ in source(Roots(rootfs=tmp_path)).watch(path):
                pass
    assert "hunter2" not in str(raised.value)
    assert "no answer" not in str(raised.value)


async def test_a_socket_that_nobody_serves_and_one_that_is_not_ours(tmp_path: Path) -> None:
    dead = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(dead))
    for path, says in ((dead, "Connection refused"), (tmp_path / "none", "No such file or directory")):
        with pytest.raises(SourceError, match=says) as raised:
            await first(source(Roots(rootfs=tmp_path)), path)
        assert not isinstance(raised.value, SourceDenied)


async def test_a_process_that_is_ours_is_not_hidden_and_one_that_never_appears_is(tmp_path: Path) -> None:
    shown = Process(7, 1, ("vllm", "serve", "m"), cgroup=f"0::/system.slice/docker-{ID}.scope\n")
    other = Process(7, 1, ("sh",), cgroup="0::/\n")
    for name, process, hidden in (("shown", shown, False), ("other", other, True), ("none", None, True)):
        root = tmp_path / name
        build(root / "proc", [process] if process else [], 1_000_000, "b")
        async with daemon(root / "run/docker.sock", docker_with(container())) as path, asyncio.timeout(30):
            finder = ContainerSource(Roots(procfs=root / "proc", rootfs=root), resync=1.0)
            told = [await first(finder, path)]
            async for each in finder.watch(path):
                told.append(each)
                if len(told) > 2 or not hidden:
                    break
        # Not hidden at once: a process that has just ended is not there either.
        assert [containers[0].hidden for containers, _ in told] == [False, False, True][: len(told)]
        assert told[-1][0][0].hidden is hidden


def at(rootfs: Path, *names: str) -> Roots:
    return Roots(rootfs=rootfs, container_sockets=tuple(rootfs / name for name in names))


async def now(supervisor: ContainerSupervisor, unit: str = "qwen") -> str:
    async with asyncio.timeout(30):
        async for told in supervisor.watch(unit):
            return told.state
    raise AssertionError("it ended")


async def test_a_supervisor_asks_only_daemons_of_its_runtime(tmp_path: Path) -> None:
    roots = at(tmp_path, "one.sock")
    async with daemon(tmp_path / "one.sock", docker_with(container())):
        assert await now(docker.supervisor(roots)) == "active"
        with pytest.raises(SourceError, match="no socket of podman is there"):
            await now(podman.supervisor(roots))
    with pytest.raises(SourceError, match=r"none\.sock: No such file"):
        await now(docker.supervisor(at(tmp_path, "none.sock")))


async def test_a_container_is_found_at_whichever_daemon_has_it_but_not_at_two(tmp_path: Path) -> None:
    roots = at(tmp_path, "one.sock", "two.sock", "podman.sock")
    with_it, without = docker_with(container()), docker_with()
    async with daemon(tmp_path / "one.sock", without), daemon(tmp_path / "two.sock", with_it):
        assert await now(docker.supervisor(roots)) == "active"
    async with daemon(tmp_path / "three.sock", with_it), daemon(tmp_path / "four.sock", with_it):
        with pytest.raises(SourceError, match="several daemons have a container 'qwen'"):
            await now(docker.supervisor(at(tmp_path, "three.sock", "four.sock")))


async def test_a_name_that_is_the_beginning_of_an_id_is_not_that_container(tmp_path: Path) -> None:
    usual = docker_with(container())

    def answer(path: str) -> bytes | None:
        return http(container()) if path == "/containers/abab/json" else usual(path)

    async with daemon(tmp_path / "one.sock", answer):
        assert await now(docker.supervisor(at(tmp_path, "one.sock")), "abab") == "inactive"


async def test_a_daemon_that_fails_once_is_asked_again(tmp_path: Path) -> None:
    usual, failures = docker_with(container()), [1, 1]

    def answer(path: str) -> bytes | None:
        if path == f"/containers/{ID}/json" and failures:
            failures.pop()
            return http({}, "500 Oops")
        return usual(path)

    async with daemon(tmp_path / "run/docker.sock", answer) as path:
        containers, faults = await first(source(Roots(rootfs=tmp_path)), path)
    assert ([each.name for each in containers], faults) == (["qwen"], [])


def test_sockets_are_found_where_packages_have_them_each_once(tmp_path: Path) -> None:
    there = ["run/podman/podman.sock", "run/user/1000/podman/podman.sock", "run/user/1001/docker.sock"]
    for name in there:
        (tmp_path / name).parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / name))
    # As the package podman-docker has it.
    (tmp_path / "run/docker.sock").symlink_to("podman/podman.sock")
    (tmp_path / "run/user/1002/podman").mkdir(parents=True)
    (tmp_path / "run/user/1002/podman/podman.sock").write_text("a file")
    assert Roots(rootfs=tmp_path).sockets() == [tmp_path / name for name in there]
    named = Roots(rootfs=tmp_path, container_sockets=(tmp_path / there[1], tmp_path / "later.sock"))
    assert named.sockets() == [tmp_path / there[1], tmp_path / "later.sock", tmp_path / there[0], tmp_path / there[2]]
