"""What a unit's properties say, and systemctl as the fallback; the real bus is in tests/integration."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from budget_exporter.engines._systemctl import parse_show, show
from budget_exporter.engines._systemd_bus import unit_path
from budget_exporter.engines.systemd import SystemdSupervisor, supervision
from budget_exporter.errors import SourceError
from budget_exporter.facts.engine import Supervision
from budget_exporter.roots import Roots

UNIT = "vllm-qwen.service"


@pytest.mark.parametrize(
    ("active", "sub", "state"),
    [
        ("active", "running", "active"),
        ("reloading", "reload", "active"),
        ("activating", "start-pre", "activating"),
        ("activating", "auto-restart", "auto_restart"),
        ("activating", "auto-restart-queued", "auto_restart"),
        ("deactivating", "stop-sigterm", "inactive"),
        ("inactive", "dead", "inactive"),
        ("failed", "failed", "failed"),
        ("dreaming", "x", "unknown"),
        (None, None, "unknown"),
    ],
)
def test_states(active: str | None, sub: str | None, state: str) -> None:
    assert supervision(UNIT, {"ActiveState": active, "SubState": sub}).state == state


@pytest.mark.parametrize(
    ("code", "status", "exit_code"),
    [
        (1, 1, 1),
        (1, 0, 0),
        (2, 9, 137),
        (3, 11, 139),
        (0, 0, None),
        (None, 3, None),
        ("2", "15", 143),
        ("x", "1", None),
    ],
)
def test_exit_codes(code: object, status: object, exit_code: int | None) -> None:
    assert supervision(UNIT, {"ExecMainCode": code, "ExecMainStatus": status}).exit_code == exit_code


def test_a_unit_that_does_not_exist_has_no_restarts_to_count() -> None:
    shown = parse_show("Result=success\nNRestarts=0\nSubState=dead\nActiveState=inactive\nLoadState=not-found\n")
    assert supervision(UNIT, shown) == Supervision("systemd", UNIT, "inactive", None)


def test_lines_in_any_order_with_any_value() -> None:
    text = "Result=exit-code\nExecMainStatus=1\nNRestarts=7\nnoise\nA=b=c\nActiveState=failed\nExecMainCode=1\n"
    assert parse_show(text)["A"] == "b=c"
    assert supervision(UNIT, parse_show(text)) == Supervision("systemd", UNIT, "failed", 7, 1, "exit-code")


@pytest.mark.parametrize(
    ("properties", "asked"),
    [
        ({"ActiveState": "inactive", "started": 10, "left": 50, "ended": 51}, True),
        ({"ActiveState": "failed", "Result": "timeout", "started": "10", "left": "50", "ended": "60"}, True),
        ({"ActiveState": "deactivating", "started": 10, "left": 50, "ended": 0}, True),
        ({"ActiveState": "inactive", "started": 10, "left": 50, "ended": 49}, False),
        ({"ActiveState": "failed", "Result": "signal", "started": 10, "left": 50, "ended": 49}, False),
        ({"ActiveState": "failed", "Result": "watchdog", "started": 10, "left": 50, "ended": 60}, False),
        ({"ActiveState": "deactivating", "Result": "oom-kill", "started": 10, "left": 50, "ended": 0}, False),
        # It never was active in this life, or systemd has forgotten it, or it goes on.
        ({"ActiveState": "failed", "Result": "exit-code", "started": 10, "left": 5, "ended": 12}, None),
        ({"ActiveState": "inactive", "started": 0, "left": 0, "ended": 0}, None),
        ({"ActiveState": "inactive", "started": 10, "left": 50, "ended": 0}, None),
        ({"ActiveState": "active", "started": 60, "left": 50, "ended": 0}, None),
        ({"ActiveState": "activating", "SubState": "auto-restart", "started": 10, "left": 50, "ended": 49}, None),
        ({"ActiveState": "failed"}, None),
    ],
)
def test_whether_an_end_was_asked_for_shows_in_what_came_first(
    properties: dict[str, object], asked: bool | None
) -> None:
    names = {"started": "ExecMainStart", "left": "ActiveExit", "ended": "ExecMainExit"}
    told = {f"{names[n]}TimestampMonotonic" if n in names else n: value for n, value in properties.items()}
    assert supervision(UNIT, told).asked is asked


@pytest.mark.parametrize(
    ("changed", "result"),
    [
        ({}, "start-limit-hit"),
        ({"NRestarts": "2"}, "exit-code"),
        ({"StartLimitBurst": "0"}, "exit-code"),
        ({"Restart": "no"}, "exit-code"),
        ({"ActiveState": "activating"}, "exit-code"),
        ({"ActiveExitTimestampMonotonic": "20"}, "exit-code"),
        ({"NRestarts": "0", "Result": "start-limit-hit"}, "start-limit-hit"),
    ],
)
def test_a_unit_that_systemd_gives_up_has_hit_its_limit(changed: dict[str, object], result: str) -> None:
    """As systemd 252 shows it: the result is still that of the last start."""
    shown = {
        "ActiveState": "failed",
        "Result": "exit-code",
        "NRestarts": "3",
        "Restart": "always",
        "StartLimitBurst": "3",
        "ExecMainStartTimestampMonotonic": "10",
        "ExecMainExitTimestampMonotonic": "30",
        "ActiveExitTimestampMonotonic": "31",
    }
    assert supervision(UNIT, shown | changed).result == result


def test_no_restarts_are_not_invented() -> None:
    assert supervision(UNIT, {"ActiveState": "active"}).nrestarts is None


@pytest.mark.parametrize(
    ("unit", "tail"),
    [
        ("vllm-qwen.service", "vllm_2dqwen_2eservice"),
        ("0a.service", "_30a_2eservice"),
        (r"a\x2db.service", "a_5cx2db_2eservice"),
        ("é", "_c3_a9"),
        ("", "_"),
    ],
)
def test_object_paths(unit: str, tail: str) -> None:
    assert unit_path(unit) == f"/org/freedesktop/systemd1/unit/{tail}"


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


async def test_a_failing_program_says_why(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not been booted"):
        await show(UNIT, program=program(tmp_path / "a", "echo 'System has not been booted' >&2; exit 1"))
    with pytest.raises(SourceError, match="exit code 3"):
        await show(UNIT, program=program(tmp_path / "b", "exit 3"))
    with pytest.raises(SourceError, match="No such file"):
        await show(UNIT, program=str(tmp_path / "none"))


async def test_a_hanging_program_is_ended(tmp_path: Path) -> None:
    hanging = program(tmp_path / "a", f"echo $$ > {tmp_path}/pid; exec sleep 600")
    began = time.monotonic()
    with pytest.raises(SourceError, match=r"no answer within 0\.5 s"):
        await show(UNIT, timeout=0.5, program=hanging)
    assert time.monotonic() - began < 60
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_program_is_asked_again_and_only_changes_are_told(tmp_path: Path) -> None:
    answers = program(
        tmp_path / "systemctl",
        f'n=$(cat {tmp_path}/n); echo $((n + 1)) > {tmp_path}/n; echo "$@" >> {tmp_path}/asked\n'
        'echo LoadState=loaded; echo ActiveState=active; echo "NRestarts=$((n / 2))"',
    )
    (tmp_path / "n").write_text("0")
    supervisor = SystemdSupervisor(Roots(), poll=0.01, systemctl=answers)
    seen = []
    async with asyncio.timeout(30):
        async for now in supervisor._by_program(UNIT):
            seen.append(now)
            if len(seen) == 3:
                break
    assert [s.nrestarts for s in seen] == [0, 1, 2]
    assert (tmp_path / "asked").read_text().splitlines()[0].endswith(f"-- {UNIT}")


async def test_another_host_s_program_is_not_ours(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="system_bus_socket"):
        await anext(aiter(SystemdSupervisor(Roots(rootfs=tmp_path)).watch(UNIT)))
