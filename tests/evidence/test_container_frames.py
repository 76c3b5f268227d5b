from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, strategies as st

from budget_exporter.errors import SourceError
from budget_exporter.evidence.container_frames import Frames, Said

A, B = b"2026-02-03T10:00:29.297966219Z", b"2026-02-03T10:00:29.297966220Z"
SECOND, NEXT = b"2026-02-03T10:00:29Z", b"2026-02-03T10:00:30Z"


def frame(stream: int, body: bytes) -> bytes:
    return bytes((stream, 0, 0, 0)) + len(body).to_bytes(4, "big") + body


def read(data: bytes, limit: int = 65536) -> list[Said]:
    frames = Frames(limit)
    return frames.feed(data) + frames.finish()


def test_frames_give_the_lines_of_both_streams_in_their_order() -> None:
    stream = frame(1, A + b" one\n") + frame(2, B + b" two\n") + frame(1, B + b" \n")
    assert read(stream) == [Said(A, b"one", "stdout"), Said(B, b"two", "stderr"), Said(B, b"", "stdout")]


def test_a_terminal_s_bytes_have_no_frames_and_its_lines_end_in_both() -> None:
    stream = A + b" one\r\n" + B + b" 10%\r20%\r\n" + SECOND + b" odd\n"
    assert read(stream) == [Said(A, b"one"), Said(B, b"10%\r20%"), Said(SECOND, b"odd")]


@pytest.mark.parametrize("stamp", [A, SECOND])
def test_a_long_line_that_comes_in_parts_is_one(stamp: bytes) -> None:
    parts = [stamp + b" " + part for part in (b"x" * 20_000, b"y" * 20_000, b"z\n")]
    whole = b"x" * 20_000 + b"y" * 20_000 + b"z"
    assert read(b"".join(frame(1, part) for part in parts)) == [Said(stamp, whole, "stdout")]
    assert read(b"".join(parts)) == [Said(stamp, whole)]


def test_a_full_buffer_goes_on_with_a_later_stamp() -> None:
    """podman stamps each read of conmon's by itself."""
    stream = frame(1, SECOND + b" " + b"x" * 8192) + frame(1, NEXT + b" y\n")
    assert read(stream) == [Said(SECOND, b"x" * 8192 + b"y", "stdout")]


@pytest.mark.parametrize(
    "after", [frame(2, SECOND + b" two\n"), frame(1, NEXT + b" two\n")], ids=["other stream", "later"]
)
def test_a_line_that_was_never_ended_ends_where_something_else_follows(after: bytes) -> None:
    said = read(frame(1, SECOND + b" last words") + after)
    assert [(each.data, each.ended) for each in said] == [(b"last words", False), (b"two", True)]
    assert [each.data for each in read(SECOND + b" last words" + NEXT + b" two\r\n")] == [b"last words", b"two"]


def test_a_line_that_was_never_ended_is_told_at_the_end_only() -> None:
    for stream in (frame(1, A + b" last words"), A + b" last words"):
        frames = Frames(100)
        assert frames.feed(stream) == []
        assert [(said.data, said.ended) for said in frames.finish()] == [(b"last words", False)]
        assert frames.finish() == []


def test_what_is_torn_off_in_the_midst_of_a_message_is_no_line() -> None:
    assert read(frame(1, A + b" one\n") + frame(1, A + b" two\n")[:-3]) == [Said(A, b"one", "stdout")]


@pytest.mark.parametrize("framed", [True, False])
def test_a_line_over_the_limit_is_cut_and_never_held_whole(framed: bool) -> None:
    body = A + b" " + b"x" * (5 << 20) + b"\n"
    stream = (frame(1, body) if framed else body) + (frame(1, B + b" next\n") if framed else B + b" next\n")
    frames, said = Frames(100), []
    for at in range(0, len(stream), 1 << 16):
        said += frames.feed(stream[at : at + (1 << 16)])
        assert len(frames._rest) < 1 << 18
    assert [(each.data, each.cut) for each in said] == [(b"x" * 100, True), (b"next", False)]


def test_the_daemon_s_own_error_in_the_stream_is_one() -> None:
    with pytest.raises(SourceError, match="the daemon says: error grabbing logs"):
        read(frame(3, b"error grabbing logs: gone\n"))


@given(st.integers(1, 60), st.booleans())
def test_chunks_of_any_size_give_the_same_lines(size: int, framed: bool) -> None:
    bodies = [SECOND + b" one\n", SECOND + b" \n", SECOND + b" two", NEXT + b" three\n", NEXT + b" four\n"]
    stream = b"".join(frame(1, body) if framed else body for body in bodies)
    frames = Frames(100)
    said = [line for at in range(0, len(stream), size) for line in frames.feed(stream[at : at + size])]
    assert said + frames.finish() == read(stream)
    assert [line.data for line in said] == [b"one", b"", b"two", b"three", b"four"]


@given(st.binary(max_size=300), st.integers(1, 40))
def test_any_bytes_are_only_lines(data: bytes, size: int) -> None:
    frames = Frames(50)
    with contextlib.suppress(SourceError):
        for at in range(0, len(data), size):
            assert all(len(said.data) <= 50 for said in frames.feed(data[at : at + size]))
        frames.finish()
