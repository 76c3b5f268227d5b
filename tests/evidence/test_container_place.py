from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from budget_exporter.evidence.container_frames import Said
from budget_exporter.evidence.container_place import Finder, Place, Seconds


def stamp(second: float) -> bytes:
    """podman's: whole seconds."""
    return f"2026-02-03T10:00:{int(second):02}Z".encode()


def log(*lines: tuple[float, bytes]) -> list[Said]:
    return [Said(stamp(second), data, "stdout") for second, data in lines]


def place_after(lines: Sequence[Said]) -> str:
    place, seconds = Place("c1"), Seconds()
    for said in lines:
        place.passed(said, seconds.of(said.stamp))
    return str(place)


def found(cursor: str, lines: Sequence[Said]) -> tuple[int, bytes]:
    """Return what a finder makes of the lines a daemon has since the cursor's second."""
    finder, seconds = Finder.of(cursor), Seconds()
    assert finder is not None
    for said in lines:
        if (seconds.of(said.stamp) or 0.0) >= finder.since:
            finder.passed(said, seconds.of(said.stamp))
    return finder.skip, finder.rest


@pytest.mark.parametrize(
    ("text", "unix"),
    [
        (b"2026-02-03T10:00:29Z", 1770112829.0),
        (b"2026-02-03T10:00:29.5Z", 1770112829.5),
        (b"2026-02-03T10:00:29.297966219Z", 1770112829.297966219),
        (b"2026-02-03T11:00:29+01:00", 1770112829.0),
        (b"2026-02-03T11:00:29.25+01:00", 1770112829.25),
        (b"2026-02-30T10:00:29Z", None),
        (b"", None),
    ],
)
def test_a_stamp_is_a_time(text: bytes, unix: float | None) -> None:
    assert Seconds().of(text) == unix


@given(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from([b"a", b"b", b"same"])), min_size=1, max_size=40),
    st.data(),
)
def test_every_place_is_found_again_though_lines_and_seconds_repeat(
    lines: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    said = log(*sorted(lines, key=lambda line: line[0]))
    seen = data.draw(st.integers(1, len(said)))
    cursor = place_after(said[:seen])
    since = int(cursor.split(":")[1])
    kept = [each for each in said if (Seconds().of(each.stamp) or 0) >= since]
    skip, rest = found(cursor, said)
    assert (kept[skip:], rest) == (said[seen:], b"")


def test_lines_of_two_streams_that_come_in_the_wrong_order_are_counted() -> None:
    said = log((1, b"a"), (3, b"b"), (2, b"c"), (3, b"d"))
    skip, _ = found(place_after(said[:3]), said)
    assert [each.data for each in said[skip:]] == [b"d"]


def test_where_the_log_s_head_was_thrown_away_the_last_lines_tell_the_place() -> None:
    said = log(*((1, f"line {number}".encode()) for number in range(20)))
    cursor = place_after(said[:10])
    assert found(cursor, said[4:])[0] == 6
    assert found(cursor, said[15:]) == (0, b"")


def test_what_a_line_without_an_end_goes_on_with_is_new() -> None:
    before = [*log((1, b"one")), Said(stamp(2), b"load", "stdout", ended=False)]
    after = [*log((1, b"one"), (2, b"loading"), (2, b"two"))]
    assert found(place_after(before), after) == (2, b"ing")
    assert found(place_after(before), before) == (2, b"")


@pytest.mark.parametrize("cursor", [None, "", "x", "c1:1:2:3", "c1:a:2:3:4:5", "c1:-1:2:3:4:5", "c1:1:2:3:4:5:6"])
def test_a_cursor_that_makes_no_sense_is_none(cursor: str | None) -> None:
    assert Finder.of(cursor) is None
