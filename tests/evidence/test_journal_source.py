from __future__ import annotations

import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.evidence import LogTarget, Record
from budget_exporter.evidence.journal import _ended, source
from budget_exporter.evidence.journal_entries import Entries
from budget_exporter.roots import Roots

CURSOR = "s=1;i=4;b=2;m=3;t=4;x=5"


def entry(message: Any, **fields: Any) -> bytes:
    return json.dumps({"MESSAGE": message, "__CURSOR": CURSOR, **fields}).encode() + b"\n"


def test_an_entry_gives_bytes_cursor_time_pid_and_stream() -> None:
    (record,) = Entries().feed(
        entry("hello\n", __REALTIME_TIMESTAMP="1770200000250000", _PID="42", PRIORITY="6", _TRANSPORT="stdout")
    )

    assert record == Record(b"hello", CURSOR, 1770200000.25, 42, "stdout")


@pytest.mark.parametrize(
    ("message", "data"),
    [
        ([27, 91, 48, 109, 255], b"\x1b[0m\xff"),
        (["first", "last"], b"last"),
        (["first", [27, 91]], b"\x1b["),
        ("grün", "grün".encode()),
    ],
)
def test_every_form_of_a_message_gives_its_bytes(message: Any, data: bytes) -> None:
    assert [record.data for record in Entries().feed(entry(message))] == [data]


@pytest.mark.parametrize("message", [None, 7, {}, [], [256], [[]], [True, None]])
def test_a_message_that_is_none_gives_no_record(message: Any) -> None:
    assert [record.data for record in Entries().feed(entry(message))] in ([], [b"\x01"])


@pytest.mark.parametrize("line", [b"", b"no json", b"[1]", b'{"MESSAGE": "no cursor"}', b"[" * 100_000, b"\xff"])
def test_what_is_no_entry_gives_no_record(line: bytes) -> None:
    assert Entries().feed(line + b"\n") == []


@given(st.integers(1, 40))
def test_chunks_of_any_size_give_the_same_records(size: int) -> None:
    stream = b"".join(entry(f"line {number}") for number in range(5))
    entries = Entries()

    records = [record for at in range(0, len(stream), size) for record in entries.feed(stream[at : at + size])]

    assert [record.data for record in records] == [f"line {number}".encode() for number in range(5)]


def test_an_entry_of_any_length_is_bounded_and_the_next_one_read() -> None:
    entries = Entries()
    for _ in range(64):
        assert entries.feed(b"x" * (1 << 20)) == []
        assert len(entries._rest) <= 1 << 20

    assert [record.data for record in entries.feed(b"\n" + entry("next"))] == [b"next"]


def test_a_long_message_is_cut_and_says_so() -> None:
    (record,) = Entries().feed(entry("x" * 100_000))

    assert (len(record.data), record.cut) == (65536, True)


async def first_error(roots: Roots, target: LogTarget) -> None:
    batches = source(roots).batches(target, None)
    async with aclosing(batches):  # type: ignore[type-var]
        await anext(batches)


async def test_no_journal_below_the_root_is_an_error_that_names_both_places(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no journal below .*var/log/journal nor .*run/log/journal is there"):
        await first_error(Roots(rootfs=tmp_path), LogTarget("tiny", unit="vllm"))


async def test_a_target_without_unit_or_container_is_an_error() -> None:
    with pytest.raises(SourceError, match="neither unit nor container given for the log of tiny"):
        await first_error(Roots(), LogTarget("tiny"))


async def test_a_missing_journalctl_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="journalctl not found"):
        await first_error(Roots(), LogTarget("tiny", unit="vllm"))


def test_a_journal_that_may_not_be_read_names_the_group() -> None:
    complaint = (
        "No journal files were opened due to insufficient permissions.\nData from the specified boot is not there"
    )

    error = _ended(1, complaint)

    assert isinstance(error, SourceDenied)
    assert str(error).startswith(
        "journalctl: No journal files were opened due to insufficient permissions. Needs the group"
    )
