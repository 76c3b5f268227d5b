from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from budget_exporter.evidence.line_time import line_time

NOW = datetime(2026, 11, 30, 4, 24, 0).timestamp()  # noqa: DTZ001 - the engine's stamps have no zone either
HOUR = 3600.0


def stamp(at: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(at))


def test_the_sources_own_time_goes_before_an_outer_stamp_and_that_before_the_engines() -> None:
    assert line_time(1.5, 2.5, stamp(NOW), lambda: NOW) == 1.5
    assert line_time(None, 2.5, stamp(NOW), lambda: NOW) == 2.5
    assert line_time(None, None, stamp(NOW - HOUR), lambda: NOW) == NOW - HOUR
    assert line_time(None, None, "", lambda: NOW) == NOW


def test_a_stamp_of_the_end_of_last_year_is_of_last_year() -> None:
    new_year = datetime(2027, 1, 1, 0, 30, 0).timestamp()  # noqa: DTZ001
    assert line_time(None, None, "12-31 23:59:00", lambda: new_year) == new_year - 31 * 60


@pytest.mark.parametrize("hours", [1, 5.5, 14, 26])
def test_a_stamp_of_a_zone_that_is_ahead_is_not_a_year_old(hours: float) -> None:
    assert line_time(None, None, stamp(NOW + hours * HOUR), lambda: NOW) == NOW


def test_a_zone_that_is_told_counts() -> None:
    at = datetime(2026, 11, 30, 4, 24, 0, tzinfo=UTC).timestamp()
    assert line_time(None, None, "11-30 09:54:00", lambda: at, 19800) == at
    assert line_time(None, None, "11-29 21:24:00", lambda: at, -7 * 3600) == at


def test_a_zone_that_is_ahead_may_be_in_next_year_already() -> None:
    old_year = datetime(2026, 12, 31, 23, 30, 0).timestamp()  # noqa: DTZ001
    assert line_time(None, None, "01-01 01:30:00", lambda: old_year) == old_year


def test_a_stamp_that_is_days_ahead_is_of_last_year() -> None:
    at = line_time(None, None, stamp(NOW + 30 * 24 * HOUR), lambda: NOW)
    assert 300 * 24 * HOUR < NOW - at < 366 * 24 * HOUR
