"""Where an engine's own endpoint is, from its command line; or why nobody may ask there."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from budget_exporter.engines._command_line import Given, split
from budget_exporter.engines._config_reader import _seen
from budget_exporter.engines._flag_versions import release
from budget_exporter.engines._launch import server_arguments
from budget_exporter.errors import SourceError
from budget_exporter.facts.engine import EngineSighting

__all__ = ["UNSEEN", "Address", "configured", "own"]

DEFAULT_PORT = 8000
"""vLLM's, ``entrypoints/openai/cli_args.py``."""
_OURS = Path("/proc/self/ns/net")
_HOST = re.compile(r"[A-Za-z0-9_.-]+|[A-Za-z0-9_.:%-]*:[A-Za-z0-9_.:%-]*")
"""A name or an IPv4 address, or an IPv6 one with or without a zone."""
_GIVE_IT = "give its address in the configuration (endpoint: http://HOST:PORT)"
_LONGEST = 107
"""Bytes of a socket's path, unix(7)."""
_EVERY = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what an engine binds, not we
"""What an engine that listens on every address is asked by."""


@dataclass(frozen=True, slots=True)
class Address:
    """
    One endpoint: ``url`` is scheme, host, port and (of a configured one) a path, ``uds`` the socket where it is one.

    ``verify`` says whether a certificate is held against a CA: ``ca`` where given, else the system's. An address that
    may not be asked has no ``url``, and ``why`` says so.
    """

    url: str = ""
    uds: str | None = None
    verify: bool = True
    ca: str | None = None
    why: str = ""


UNSEEN = Address(why=f"its processes cannot be seen: {_GIVE_IT}")
"""Of an engine that is known by its container only."""


def configured(url: str, ca: str | None = None) -> Address:
    """
    Return the address an operator gave; raise ValueError saying what is wrong with it.

    ``ca`` is a file with the certificates that an https peer's is held against.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(parts.hostname or ""):
        raise ValueError("not http://HOST[:PORT] or https://HOST[:PORT]")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError("an address has no user, password, query or fragment: nothing secret is ever sent")
    _ = parts.port  # out of range is a ValueError
    if ca is not None and parts.scheme != "https":
        raise ValueError("a CA is of use to an https address only")
    return Address(url.rstrip("/"), ca=ca)


def own(
    sighting: EngineSighting,
    read_config: Callable[[str], str],
    procfs: Path,
    version: str | None = None,
    ours: Path = _OURS,
) -> Address:
    """
    Return the address that the engine itself listens on, by ``--host``, ``--port``, ``--uds`` and ``--ssl-*``.

    It is asked only where it is certain to be the engine's: a socket inside its own root, or a port of a process in our
    own network namespace (the link ``ours``). What anything else on that port is must not be asked. Blocking.
    ``read_config`` returns the text of the file after ``--config``, ``version`` is the engine's, None where unknown.

    ``--root-path`` is for what stands before the engine: it answers without it (Starlette's routing strips it where it
    is there). ``--api-key`` guards ``/v1`` only and is never looked at. A certificate on loopback is not held against
    a CA: nobody else can be there.
    """
    line = split(server_arguments(sighting.argv) or (), read_config, release(version))
    given = {flag.name: flag for flag in line.flags}
    if "headless" in given:
        return Address(why="it is headless: its endpoint is on another host")
    scheme = "https" if _value(given, "ssl-certfile") or _value(given, "ssl-keyfile") else "http"
    if uds := _value(given, "uds"):
        return _socket(sighting, uds, scheme, procfs)
    if why := _elsewhere(procfs / str(sighting.main.pid) / "ns" / "net", ours):
        return Address(why=why)
    host = _value(given, "host") or ""
    host = _EVERY.get(host, host)
    port = _value(given, "port") or str(DEFAULT_PORT)
    if not port.isdecimal() or not 0 < int(port) < 65536:  # noqa: PLR2004 - the largest port there is
        return Address(why="its port cannot be told from its flags")
    shown = f"[{host}]" if ":" in host else host
    if not _HOST.fullmatch(host):
        return Address(why="its host cannot be told from its flags")
    return Address(f"{scheme}://{shown}:{port}", verify=not _loopback(host))


def _value(given: dict[str, Given], name: str) -> str | None:
    flag = given.get(name)
    return flag.values[-1] if flag is not None and flag.values and flag.values[-1] != "None" else None


def _socket(sighting: EngineSighting, path: str, scheme: str, procfs: Path) -> Address:
    """Return the address of a socket, found as the engine sees it: no link of its file system is followed in ours."""
    try:
        place = _seen(procfs, sighting.main.pid, sighting.cwd, path)
    except PermissionError:
        return Address(why="the root its socket is in may not be read (CAP_SYS_PTRACE)")
    except (OSError, SourceError) as error:
        return Address(why=f"its socket: {error.strerror if isinstance(error, OSError) else error}")
    if len(place.encode()) > _LONGEST:
        return Address(why="the path of its socket is too long to be asked")
    return Address(f"{scheme}://localhost", uds=place, verify=False)


def _elsewhere(theirs: Path, ours: Path) -> str:
    """Return why the engine's ports are not ours to ask, nothing where they are."""
    try:
        own_namespace = ours.readlink()
        if theirs.readlink() != own_namespace:
            return f"its network is its own: {_GIVE_IT}"
    except PermissionError:
        return "whether it shares our network may not be read (CAP_SYS_PTRACE)"
    except OSError:
        return "whether it shares our network cannot be told"
    return ""


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
