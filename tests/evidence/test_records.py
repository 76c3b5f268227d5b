from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from budget_exporter.evidence.records import Line, Writer, lines

MESSAGE = "Available KV cache memory: 6.87 GiB"
PLAIN = f"INFO 02-03 10:00:22 [gpu_worker.py:436] {MESSAGE}"


def only(data: str | bytes) -> Line:
    (line,) = lines(data.encode() if isinstance(data, str) else data)
    return line


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "\x1b[1;36m",
        "2026-02-03T10:00:29.297966219Z ",
        "2026-02-03T10:00:29.2979Z stdout F ",
        "[2026-02-03T10:00:29Z] ",
        "  | [2026-02-03T10:00:29Z] ",
        "> 2026-02-03T10:00:44.0930119Z ",
        "vllm-service  | ",
        "Feb 03 10:00:29 host.example.org vllm[4242]: ",
        "INFO 2026-02-03T10:00:29.09Z [resource.labels.containerName: vllm] ",
        "2026-02-03 10:00:29.5 [Error] (Process) ",
        "2026-02-03T10:00:29.5Z  INFO engine::worker: VLLM: ",
        "[Stage-0] ",
        "2026-02-03T10:00:29+0000 host.example.org vllm[4242]: ",
        "2026-02-03T10:00:29.123456+01:00 host vllm-qwen.service[4242]: ",
        "Feb  3 10:00:29.123456 host python3[4242]: ",
        "<14>1 2026-02-03T10:00:29Z ",
        "[pod/vllm-0/vllm] ",
        "[pod/vllm-7d9f-x/vllm] 2026-02-03T10:00:29.297966219Z ",
        "vllm-1  | 2026-02-03T10:00:29.297966219Z ",
        "\x1b[36mvllm-1  |\x1b[0m ",
        "2026-02-03T10:00:29.297966Z 01O ",
        "2026-02-03T10:00:29.297966Z 00E+",
        "2026-02-03T10:00:29.2979661Z ##[error]",
        "[2026-02-03T10:00:29.297Z] ",
        "\x1b_bk;t=1770112829000\x07",
        "`",
        "**",
    ],
)
@pytest.mark.parametrize(
    ("process", "writer"),
    [
        ("", Writer()),
        ("(EngineCore pid=12) ", Writer("EngineCore", 12)),
        ("(EngineCore_DP1 pid=12) ", Writer("EngineCore_DP1", 12, groups={"DP": 1})),
        ("(EngineCore_1 pid=12) ", Writer("EngineCore_1", 12, groups={"DP": 1})),
        ("(Worker_TP1 pid=31) ", Writer("Worker_TP1", 31, groups={"TP": 1})),
        ("(Worker_PP1_TP3 pid=31) ", Writer("Worker_PP1_TP3", 31, groups={"PP": 1, "TP": 3})),
        ("(Worker_DP1_TP1_EP3 pid=31) ", Writer("Worker_DP1_TP1_EP3", 31, groups={"DP": 1, "TP": 1, "EP": 3})),
        ("(Worker_TP0_DCP0 pid=31) ", Writer("Worker_TP0_DCP0", 31, groups={"TP": 0, "DCP": 0})),
        ("(VllmWorker rank=1 pid=31) ", Writer("VllmWorker", 31, 1)),
        ("(VllmWorker TP0 pid=31) ", Writer("VllmWorker TP0", 31, groups={"TP": 0})),
        ("(VllmWorker-2 pid=31) ", Writer("VllmWorker-2", 31, 2)),
        ("(VllmWorkerProcess pid=31) ", Writer("VllmWorkerProcess", 31)),
        ("(RayWorkerWrapper pid=31, ip=10.0.0.1) ", Writer("RayWorkerWrapper", 31)),
        ("[Worker_TP3 pid=540] ", Writer("Worker_TP3", 540, groups={"TP": 3})),
        ("(EngineCore pid=12) (Worker_TP1 pid=31) ", Writer("Worker_TP1", 31, groups={"TP": 1})),
        ("\x1b[0;36m(EngineCore pid=12)\x1b[0;0m ", Writer("EngineCore", 12)),
        ("^[[0;36m(EngineCore pid=12)^[[0;0m ", Writer("EngineCore", 12)),
    ],
)
def test_every_envelope_comes_off_and_tells_the_writer(prefix: str, process: str, writer: Writer) -> None:
    line = only(prefix + process + PLAIN)

    assert (line.text, line.writer, line.level, line.stamp) == (MESSAGE, writer, "INFO", "02-03 10:00:22")


def test_the_time_of_an_outer_stamp_with_a_zone_is_kept_and_one_without_is_not() -> None:
    assert only(f"2026-02-03T10:00:29.5Z {PLAIN}").at == 1770112829.5
    assert only(f"2026-02-03 10:00:29.5 [Error] (Process) {PLAIN}").at is None


@pytest.mark.parametrize(
    "location", ["[gpu_worker.py:436]", "[v1/worker/gpu_worker.py:548]", "worker.py:267]", "[core.py:12] "]
)
def test_every_form_of_the_location_comes_off(location: str) -> None:
    assert only(f"ERROR 02-03 10:00:22 {location} {MESSAGE}").text.strip() == MESSAGE


def test_colours_between_all_fields_come_off() -> None:
    line = only(
        "^[[0;36m(EngineCore_DP0 pid=738)^[[0;0m ^[[31mERROR^[[0m ^[[90m01-26 09:25:37^[[0m ^[[90m[core.py:935]^[[0m "
        + MESSAGE
    )

    assert (line.text, line.level, line.writer.pid) == (MESSAGE, "ERROR", 738)


def test_a_line_that_lost_its_level_keeps_its_text() -> None:
    assert only("[multiproc_executor.py:492] ValueError: x").text == "ValueError: x"
    assert only("(EngineCore pid=79) ValueError: x").writer == Writer("EngineCore", 79)
    assert only("[rank2]: RuntimeError: x") == Line("RuntimeError: x", Writer(rank=2))


def test_progress_bars_are_taken_off_the_records_glued_to_them() -> None:
    bar = "Capturing CUDA graphs (decode, FULL):  85%|███▎ | 57/67 [00:58<00:10,  1.08s/it]"

    texts = [line.text for line in lines(f"{bar}\r{bar}(Worker_TP1 pid=31) {PLAIN}".encode())]

    assert texts == [bar, bar, MESSAGE]


def test_a_record_glued_to_another_begins_a_line_of_its_own_and_the_first_has_no_known_end() -> None:
    first, second = lines(f"(A pid=1) {PLAIN}(Worker_TP1 pid=31) {PLAIN}".encode())

    assert (first.writer.pid, first.cut, second.writer.pid, second.cut) == (1, True, 31, False)


def test_json_lines_are_read_and_their_lines_split() -> None:
    entry = {
        "asctime": "2026-02-03 10:00:22,368",
        "levelname": "INFO",
        "processName": "MainProcess",
        "process": 31,
        "message": f"first\n{MESSAGE}",
        "vllm_process_name": "Worker_TP1",
    }

    first, second = lines(json.dumps(entry).encode())

    assert (first.text, second.text) == ("first", MESSAGE)
    assert second.writer == Writer("Worker_TP1", 31, groups={"TP": 1})
    assert (second.level, second.stamp) == ("INFO", "02-03 10:00:22")


def test_dockers_json_around_vllms_is_read() -> None:
    inner = json.dumps({"levelname": "INFO", "process": 31, "message": MESSAGE, "vllm_process_name": "EngineCore"})

    line = only(json.dumps({"log": inner + "\n", "stream": "stderr", "time": "2026-02-03T10:00:29Z"}))

    assert (line.text, line.writer.pid) == (MESSAGE, 31)


@pytest.mark.parametrize(
    "prefix",
    ["", "2026-02-03T10:00:29.297966219Z stdout F ", "vllm-1  | ", "[pod/vllm-0/vllm] ", "\x1b[36mvllm-1 |\x1b[0m "],
)
def test_vllms_json_is_read_behind_every_envelope(prefix: str) -> None:
    inner = json.dumps({"levelname": "INFO", "process": 31, "message": MESSAGE, "vllm_process_name": "Worker_TP1"})

    line = only(prefix + inner)

    assert (line.text, line.writer, line.level) == (MESSAGE, Writer("Worker_TP1", 31, groups={"TP": 1}), "INFO")


@pytest.mark.parametrize(
    "entry",
    [
        {"MESSAGE": PLAIN, "__REALTIME_TIMESTAMP": "1770112829500000", "_PID": "31"},
        {"message": PLAIN, "@timestamp": "2026-02-03T10:00:29.5Z", "log": {"offset": 7}},
        {"textPayload": PLAIN, "timestamp": "2026-02-03T10:00:29.5Z", "severity": "INFO"},
        {"log": PLAIN, "stream": "stdout", "time": "2026-02-03T10:00:29.5Z", "kubernetes": {"pod_name": "vllm-0"}},
        {"line": PLAIN, "timestamp": "2026-02-03T10:00:29.5Z"},
    ],
)
def test_the_journals_json_and_that_of_log_shippers_are_read_with_their_time(entry: dict[str, object]) -> None:
    line = only(json.dumps(entry))

    assert (line.text, line.level, line.at) == (MESSAGE, "INFO", 1770112829.5)


def test_rays_note_of_repetitions_comes_off_and_the_line_is_its_writers() -> None:
    note = "\x1b[32m [repeated 7x across cluster] (Ray deduplicates logs by default.)\x1b[0m"

    line = only(f"\x1b[36m(RayWorkerWrapper pid=31, ip=10.0.0.1)\x1b[0m {PLAIN}{note}")

    assert (line.text, line.writer, line.cut) == (MESSAGE, Writer("RayWorkerWrapper", 31), False)


def test_the_unicode_minus_is_a_minus() -> None:
    assert only("took \N{MINUS SIGN}0.06 GiB").text == "took -0.06 GiB"


@pytest.mark.parametrize(
    "data", [b"{" * 5000, b"[" * 5000, b'{"message": 7}', b'{"log": {}}', b"\xff\xfe\x00", b"^M" * 99]
)
def test_hostile_bytes_are_only_lines(data: bytes) -> None:
    assert all(isinstance(line.text, str) for line in lines(data))


@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_can_be_unfolded(data: bytes, cut: bool) -> None:
    for line in lines(data, cut=cut):
        assert "\n" not in line.text
        assert "\r" not in line.text
