"""Ask systemd through its own program, where there is no bus for us."""

from __future__ import annotations

import asyncio
import contextlib
import os
from asyncio.subprocess import DEVNULL, PIPE

from budget_exporter.errors import SourceError

__all__ = ["parse_show", "show"]

_PROPERTIES = (
    "LoadState,ActiveState,SubState,NRestarts,Result,ExecMainCode,ExecMainStatus,Restart,StartLimitBurst,"
    "ActiveExitTimestampMonotonic,ExecMainStartTimestampMonotonic,ExecMainExitTimestampMonotonic"
)


async def show(unit: str, timeout: float = 5.0, program: str = "systemctl") -> dict[str, str]:  # noqa: ASYNC109 - ends a child too
    """
    Return the properties of ``unit`` as ``systemctl show`` prints them, given up after ``timeout`` seconds.

    Raise SourceError where the program is missing, fails or hangs.
    """
    try:
        child = await asyncio.create_subprocess_exec(
            program,
            "show",
            "--no-pager",
            f"--property={_PROPERTIES}",
            "--",
            unit,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            env={**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0"},
        )
    except OSError as error:
        raise SourceError(f"{program}: {error.strerror}") from error
    try:
        out, complaint = await asyncio.wait_for(child.communicate(), timeout)
    except TimeoutError as error:
        raise SourceError(f"{program} show {unit}: no answer within {timeout:g} s") from error
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    if child.returncode:
        lines = complaint.decode(errors="replace").strip().splitlines() or [f"exit code {child.returncode}"]
        raise SourceError(f"{program} show {unit}: {lines[0][:200]}")
    return parse_show(out.decode(errors="replace"))


def parse_show(text: str) -> dict[str, str]:
    """Return ``NAME=value`` lines as a mapping; systemctl prints them in an order of its own."""
    return {name: value for name, equals, value in (line.partition("=") for line in text.splitlines()) if equals}
