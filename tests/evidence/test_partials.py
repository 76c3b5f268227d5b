from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from budget_exporter.evidence import Record
from budget_exporter.evidence.partials import Partials

AT = "2026-02-03T10:00:29.297966219Z"


def joined(*blocks: bytes, limit: int = 1000) -> list[bytes]:
    partials = Partials(limit)
    return [record.data for block in blocks for record in partials.join([Record(block)])]


def docker(text: str, stream: str = "stdout") -> bytes:
    return json.dumps({"log": text, "stream": stream, "time": AT}, separators=(",", ":")).encode()


def test_a_block_without_parts_passes_as_it_is() -> None:
    for block in (b"plain\nlines", f"{AT} stdout F one\n{AT} stderr F two".encode(), docker("one\n"), b'{"a": 1}'):
        assert joined(block) == [block]


def test_parts_are_put_together_by_stream_over_blocks() -> None:
    first = f"{AT} stdout P one \n{AT} stderr P x\n{AT} stdout F two\n{AT} stdout P three ".encode()
    second = f"{AT} stderr F y\n{AT} stdout F four\n{AT} stdout F five".encode()
    assert joined(first, second) == [
        f"{AT} stdout F one two".encode(),
        f"{AT} stderr F xy\n{AT} stdout F three four\n{AT} stdout F five".encode(),
    ]


def test_a_docker_line_in_parts_loses_its_envelope_and_keeps_its_time() -> None:
    block = b"\n".join([docker("one "), docker("x\n", "stderr"), docker("two "), docker("three\n")])
    assert joined(block) == [f"{AT} x\n{AT} one two three".encode()]


def test_a_line_that_only_looks_like_a_part_is_left_alone() -> None:
    block = b"the log said: 10:00 stdout P one\nnext"
    assert joined(block) == [block]


def test_what_is_put_together_is_bounded() -> None:
    parts = b"\n".join([f"{AT} stdout P {'x' * 300}".encode()] * 10 + [f"{AT} stdout F end".encode()])
    (line,) = joined(parts, limit=500)
    assert len(line) < 600


@pytest.mark.parametrize("line", [b"{", b'{"log": 1', b'{"log":"a","stream":"stdout"}', b'["log","stream":"'])
def test_what_is_no_entry_is_left_alone(line: bytes) -> None:
    assert joined(line + b'","stream":"') == [line + b'","stream":"']


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_can_be_joined(blocks: list[bytes]) -> None:
    joined(*blocks)
