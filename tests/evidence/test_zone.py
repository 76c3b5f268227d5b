from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from budget_exporter.evidence.zone import zone_of

WRITTEN = datetime(2026, 2, 3, 10, 0, 0, 700_000, UTC).timestamp()


def zone(tmp_path: Path, text: bytes, written: float = WRITTEN) -> int | None:
    log = tmp_path / "engine.log"
    log.write_bytes(text)
    os.utime(log, (written, written))
    return zone_of(log)


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        ("02-03 10:00:00", 0),
        ("02-03 09:59:58", 0),
        ("02-03 11:00:00", 3600),
        ("02-03 02:00:00", -8 * 3600),
        ("02-03 15:45:00", 5 * 3600 + 2700),
        ("02-04 00:00:00", 14 * 3600),
        ("02-03 10:07:00", None),
        ("02-03 09:59:50", None),
        ("02-05 10:00:00", None),
        ("02-30 10:00:00", None),
    ],
)
def test_the_zone_is_what_the_last_line_and_the_file_differ_by(tmp_path: Path, stamp: str, seconds: int | None) -> None:
    assert zone(tmp_path, f"INFO 01-01 00:00:00 [a.py:1] x\nINFO {stamp} [a.py:1] x\n".encode()) == seconds


def test_a_zone_that_is_in_another_year(tmp_path: Path) -> None:
    written = datetime(2026, 1, 1, 0, 30, tzinfo=UTC).timestamp()
    assert zone(tmp_path, b"\x1b[36m(A pid=1)\x1b[0m INFO 12-31 23:30:00 [a.py:1] x\n", written) == -3600


@pytest.mark.parametrize("text", [b"", b"\n", b'INFO 02-03 11:00:00 [a.py:1] x\nINFO:  1.2.3.4 - "GET /health"\n'])
def test_where_the_last_line_has_no_stamp_no_zone_is_known(tmp_path: Path, text: bytes) -> None:
    assert zone(tmp_path, text) is None
    assert zone_of(tmp_path / "missing") is None
