"""Where an engine may be asked, and where nobody may ask."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from budget_exporter.engines.address import Address, configured, own
from budget_exporter.errors import SourceError
from budget_exporter.facts.engine import EngineSighting, ProcessKey

PID = 4242
OURS = "net:[4026531840]"


def unread(path: str) -> str:
    raise SourceError(f"{path} is not to be read")


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    """Give a tree with the engine's process in our network namespace, and with a root of its own."""
    (tmp_path / "ours").symlink_to(OURS)
    process = tmp_path / "proc" / str(PID)
    (process / "ns").mkdir(parents=True)
    (process / "ns" / "net").symlink_to(OURS)
    (tmp_path / "rootfs" / "run").mkdir(parents=True)
    (process / "root").symlink_to(tmp_path / "rootfs")
    return tmp_path / "proc"


def sighting(*flags: str, cwd: str | None = "/srv") -> EngineSighting:
    argv = ("/opt/bin/python3", "/opt/bin/vllm", "serve", "org/model", *flags)
    return EngineSighting("procfs", ProcessKey(PID, 1), 0.0, argv, {}, cwd=cwd)


def address(procfs: Path, *flags: str, cwd: str | None = "/srv") -> Address:
    return own(sighting(*flags, cwd=cwd), unread, procfs, ours=procfs.parent / "ours")


@pytest.mark.parametrize(
    ("flags", "url", "verify"),
    [
        ((), "http://127.0.0.1:8000", False),
        (("--port", "7770"), "http://127.0.0.1:7770", False),
        (("--host", "0.0.0.0", "--port=1"), "http://127.0.0.1:1", False),  # noqa: S104 - what an engine binds
        (("--host", "::"), "http://[::1]:8000", False),
        (("--host", "::1"), "http://[::1]:8000", False),
        (("--host", "127.0.0.2"), "http://127.0.0.2:8000", False),
        (("--host", "localhost"), "http://localhost:8000", False),
        (("--host=192.0.2.7",), "http://192.0.2.7:8000", True),
        (("--host", "gpu1.example.org"), "http://gpu1.example.org:8000", True),
        (("--host", "a", "--host", "b"), "http://b:8000", True),
        (("--ssl-certfile", "c.pem", "--ssl-keyfile", "k.pem"), "https://127.0.0.1:8000", False),
        (("--ssl-certfile", "c.pem", "--host", "192.0.2.7"), "https://192.0.2.7:8000", True),
        # What stands before the engine knows this prefix; the engine answers without it.
        (("--root-path", "/llm"), "http://127.0.0.1:8000", False),
        (("--uds", "None"), "http://127.0.0.1:8000", False),
    ],
)
def test_the_flags_say_where(procfs: Path, flags: tuple[str, ...], url: str, verify: bool) -> None:
    assert address(procfs, *flags) == Address(url, verify=verify)


def test_a_key_is_no_part_of_an_address(procfs: Path) -> None:
    assert "secret" not in repr(address(procfs, "--api-key", "secret-key", "secret-too"))


def test_flags_of_a_file_count(procfs: Path) -> None:
    found = own(
        sighting("--config", "f.yaml"), lambda _: "port: 7771\nhost: 127.0.0.3\n", procfs, ours=procfs.parent / "ours"
    )
    assert found.url == "http://127.0.0.3:7771"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--headless",), "it is headless: its endpoint is on another host"),
        (("--port", "http"), "its port cannot be told from its flags"),
        (("--port", "0"), "its port cannot be told from its flags"),
        (("--port", "65536"), "its port cannot be told from its flags"),
        (("--host", "a b"), "its host cannot be told from its flags"),
        (("--host", "user:word@example.org"), "its host cannot be told from its flags"),
        (("--host", "a/b"), "its host cannot be told from its flags"),
    ],
)
def test_flags_that_do_not_say_where(procfs: Path, flags: tuple[str, ...], why: str) -> None:
    assert address(procfs, *flags) == Address(why=why)


def test_a_port_in_another_network_is_not_asked(procfs: Path) -> None:
    link = procfs / str(PID) / "ns" / "net"
    link.unlink()
    link.symlink_to("net:[4026532999]")
    found = address(procfs)
    assert (found.url, found.why[:22]) == ("", "its network is its own")
    link.unlink()
    assert address(procfs) == Address(why="whether it shares our network cannot be told")


def test_our_own_network_is_ours() -> None:
    """This process and this one's namespace, as the kernel tells them."""
    here = EngineSighting("procfs", ProcessKey(os.getpid(), 1), 0.0, ("vllm", "serve"), {})
    assert own(here, unread, Path("/proc")).url == "http://127.0.0.1:8000"


def test_a_socket_lies_in_the_engine_s_own_root(procfs: Path) -> None:
    root = f"{procfs}/{PID}/root"
    assert address(procfs, "--uds", "/run/vllm.sock") == Address(
        "http://localhost", uds=f"{root}/run/vllm.sock", verify=False
    )
    # Where the port is does not matter, nor in which network it would be.
    (procfs / str(PID) / "ns" / "net").unlink()
    found = address(procfs, "--uds=vllm.sock", "--port", "http", "--ssl-keyfile", "k")
    assert (found.url, found.uds) == ("https://localhost", f"{root}/srv/vllm.sock")


def test_no_link_of_the_engine_s_leads_out_of_its_root(procfs: Path) -> None:
    (procfs.parent / "rootfs" / "run" / "docker.sock").touch()
    (procfs.parent / "rootfs" / "run" / "vllm.sock").symlink_to("/run/docker.sock")
    assert address(procfs, "--uds", "/run/vllm.sock").uds == f"{procfs}/{PID}/root/run/docker.sock"
    (procfs.parent / "rootfs" / "run" / "loop").symlink_to("/run/loop")
    assert address(procfs, "--uds", "/run/loop").why == "its socket: too many symbolic links"


def test_a_socket_that_cannot_be_found(procfs: Path) -> None:
    assert address(procfs, "--uds", "vllm.sock", cwd=None).why.startswith("its socket: the working directory")
    assert address(procfs, "--uds", "/" + "x" * 120).why == "the path of its socket is too long to be asked"
    (procfs / str(PID) / "root").unlink()
    assert address(procfs, "--uds", "vllm.sock").why == "its socket: No such file or directory"


def test_a_configured_address_is_taken_as_it_is() -> None:
    assert configured("http://peer.example.org:8000/") == Address("http://peer.example.org:8000")
    assert configured("https://[2001:db8::1]/llm", "/etc/ca.pem") == Address(
        "https://[2001:db8::1]/llm", ca="/etc/ca.pem"
    )


@pytest.mark.parametrize(
    ("url", "ca", "message"),
    [
        ("peer:8000", None, "not http://HOST"),
        ("ftp://peer", None, "not http://HOST"),
        ("http://", None, "not http://HOST"),
        ("http://a b", None, "not http://HOST"),
        ("http://user@peer", None, "nothing secret is ever sent"),
        ("http://:word@peer", None, "nothing secret is ever sent"),
        ("http://peer/?key=1", None, "nothing secret is ever sent"),
        ("http://peer#x", None, "nothing secret is ever sent"),
        ("http://peer:99999", None, "out of range"),
        ("http://peer", "/etc/ca.pem", "an https address only"),
    ],
)
def test_a_configured_address_that_is_none(url: str, ca: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configured(url, ca)
