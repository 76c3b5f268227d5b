from __future__ import annotations

from itertools import zip_longest

import pytest

from budget_exporter.demo import boot_log
from budget_exporter.evidence import Record
from budget_exporter.evidence.boot import BootReader
from budget_exporter.evidence.streams import apart
from budget_exporter.facts.boot import BootReport

ONE = [line for _, line in boot_log.healthy(boot_log.Pids(11, 12, (30, 31)))]
OTHER = [line for _, line in boot_log.knife_edge(boot_log.Pids(211, 212, (230, 231)))]


def mixed(one: str, other: str) -> list[Record]:
    """Return the lines of two engines in turn, each behind its name, in records of one line and of several."""
    pairs = zip_longest([one + line for line in ONE], [other + line for line in OTHER])
    lines = [line for pair in pairs for line in pair if line]
    return [Record("\n".join(lines[:9]).encode()), *(Record(line.encode()) for line in lines[9:])]


def reports(records: list[Record]) -> list[BootReport]:
    made = []
    for stream in apart(records):
        reader = BootReader(clock=lambda: 0.0)
        reader.feed(stream)
        made.append(reader.report())
    return made


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("vllm-a-1  | ", "vllm-b-1  | "),
        ("\x1b[36mvllm-a-1  |\x1b[0m ", "\x1b[33mvllm-b-1  |\x1b[0m "),
        ("[pod/a-0/vllm] ", "[pod/b-0/vllm] "),
        ("Feb 03 10:00:29 host vllm-a[4242]: ", "Feb 03 10:00:29 host vllm-b[4243]: "),
        ("2026-02-03T10:00:29+0000 host vllm-a[4242]: ", "2026-02-03T10:00:29+0000 host vllm-b[4243]: "),
        ("[Stage-0] ", "[Stage-1] "),
    ],
)
def test_two_engines_in_one_log_are_told_apart_by_their_names(one: str, other: str) -> None:
    assert [report.kv_tokens for report in reports(mixed(one, other))] == [401408, 1350182]


def test_where_nothing_names_them_their_processes_are_kept_apart() -> None:
    """No figure of one is ever told beside one of the other."""
    tokens = {"401408", "1350182"}
    for stream in apart(mixed("", "")):
        text = b"\n".join(record.data for record in stream).decode().replace(",", "")
        assert len([each for each in tokens if each in text]) <= 1
        assert not ({"pid=11)", "pid=12)"} & set(text.split()) and {"pid=211)", "pid=212)"} & set(text.split()))
    assert sorted(report.kv_tokens or 0 for report in reports(mixed("", "")))[-2:] == [401408, 1350182]


@pytest.mark.parametrize(
    "records",
    [
        [Record("\n".join([*ONE, *OTHER]).encode())],
        [Record(line.encode()) for line in ONE],
        [Record(b"total  | 3\nrest   | 4"), *(Record(line.encode()) for line in ONE)],
        [],
    ],
    ids=["two boots", "one", "a table in it", "nothing"],
)
def test_a_log_of_one_engine_is_left_whole(records: list[Record]) -> None:
    assert apart(records) == [records]


def test_the_lines_keep_their_numbers() -> None:
    (first, second) = apart([Record(b"a-1 | x\nb-1 | y\na-1 | z"), Record(b"b-1 | w")])
    assert [record.data for record in first] == [b"a-1 | x\n\na-1 | z", b""]
    assert [record.data for record in second] == [b"\nb-1 | y\n", b"b-1 | w"]
