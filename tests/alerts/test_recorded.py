"""An exposition becomes a rule test that passes on a healthy host, and on no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from tests.alerts.promtools import run
from tests.alerts.recorded import exposition_to_promtool
from tests.real_parts import program

HEALTHY = (Path(__file__).parent / "healthy_host.prom").read_text()

pytestmark = pytest.mark.real_part("promtool")


@pytest.fixture
def promtool() -> str:
    return program("promtool", "prometheus")


def verdict(promtool: str, tmp_path: Path, test: str) -> tuple[int, str]:
    path = tmp_path / "recorded.test.yml"
    path.write_text(test)
    done = run(promtool, "test", "rules", path)
    return done.returncode, done.stdout + done.stderr


def test_ten_minutes_of_the_healthy_host_raise_nothing(promtool: str, tmp_path: Path) -> None:
    code, said = verdict(promtool, tmp_path, exposition_to_promtool(HEALTHY, minutes=10, interval=15))
    assert code == 0, said


def test_the_healthy_host_is_an_exposition_promtool_has_nothing_to_say_about(promtool: str) -> None:
    done = run(promtool, "check", "metrics", stdin=HEALTHY)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_series_is_carried_over() -> None:
    document = yaml.safe_load(exposition_to_promtool(HEALTHY, minutes=1, interval=15))
    carried = [entry["series"] for entry in document["tests"][0]["input_series"]]
    lines = [line for line in HEALTHY.splitlines() if not line.startswith("#")]
    assert len(carried) == len(set(carried)) == len(lines) + 1


def to(series: str, value: str) -> tuple[str, str]:
    """Return the change of the one series whose line begins like ``series`` (a pattern) to ``value``."""
    return rf"(?m)^({series}) .*$", rf"\1 {value}"


def also(line: str) -> tuple[str, str]:
    """Return the addition of a series that the healthy host does not have."""
    return r"(?m)^(budget_exporter_demo .*)$", rf"\1\n{line}"


E = 'engine="vllm-qwen"'
NOT_WELL = to(r'budget_engine_health\{.*"ok".*\}', "0")
LEAK = also(f'budget_engine_finding{{{E},finding="leak"}} 1')
# What is changed of the healthy host, and who must fire after 12 minutes.
SICK: dict[str, tuple[list[tuple[str, str]], set[str]]] = {
    "device full": (
        [to(r"budget_device_memory_used_window_max_bytes\{.*03:00.*\}", "34208743424")],
        {"BudgetDeviceMemoryNearlyExhausted"},
    ),
    "one byte below the critical floor": (
        [to(r"budget_device_memory_used_window_max_bytes\{.*06:00.*\}", "33940307969")],
        {"BudgetDeviceMemoryNearlyExhausted"},
    ),
    "margin": ([to(r"budget_device_margin_bytes\{.*03:00.*\}", "805306367")], {"BudgetMarginBelowFloor"}),
    "knife edge": ([to(r'budget_engine_knife_edge\{.*"kv_minimum".*\}', "1")], {"BudgetShapeKnifeEdge"}),
    "utilization": (
        [to(r'budget_engine_knife_edge\{.*"utilization_limit".*\}', "1")],
        {"BudgetShapeKnifeEdge", "BudgetUtilizationAboveLimit"},
    ),
    "pool": ([to(r"budget_reported_kv_pool_tokens\{.*\}", "200703")], {"BudgetKVPoolBelowContract"}),
    "mismatch": ([to(r'budget_engine_finding\{.*"model_mismatch".*\}', "1")], {"BudgetModelMismatch"}),
    "over-charge": ([to(r'budget_engine_finding\{.*"graph_charge_over".*\}', "1")], {"BudgetGraphOverCharge"}),
    "free at init": (
        [also(f'budget_engine_finding{{{E},finding="free_at_init_falling"}} 1')],
        {"BudgetFreeAtInitFalling"},
    ),
    "another pool": (
        [also(f'budget_engine_finding{{{E},finding="kv_changed_since_last_boot"}} 1')],
        {"BudgetKVPoolChanged"},
    ),
    "leak": ([LEAK, also(f'budget_engine_floor_reached_seconds{{{E},rank="1"}} 90000')], {"BudgetMemoryLeak"}),
    "leak near the floor": (
        [LEAK, also(f'budget_engine_floor_reached_seconds{{{E},rank="1"}} 900')],
        {"BudgetMemoryLeak", "BudgetLeakNearFloor"},
    ),
    "a stranger": (
        [to(r"budget_device_foreign_memory_bytes\{.*03:00.*\}", "268435456")],
        {"BudgetForeignProcess"},
    ),
    "left behind": ([to(r'budget_engine_finding\{.*"zombie_memory".*\}', "1")], {"BudgetZombieMemory"}),
    "card lost": ([(r"(?m)^budget_device_memory_size_bytes\{.*03:00.*\n", "")], {"BudgetDeviceLost"}),
    "cross-check": (
        [also('budget_device_cross_check_difference_bytes{device="0000:03:00.0",source="rocm_smi"} -268435457')],
        {"BudgetCrossCheckDisagrees"},
    ),
    "core dead": ([NOT_WELL, to(r'budget_engine_health\{.*"unavailable".*\}', "1")], {"BudgetEngineCoreDead"}),
    "silent": ([NOT_WELL, to(r'budget_engine_health\{.*"timeout".*\}', "1")], {"BudgetEngineNotAnswering"}),
    "down": ([to(r"budget_engine_up\{.*\}", "0")], {"BudgetEngineDown"}),
    "given up": (
        [to(r"budget_engine_up\{.*\}", "0"), also(f'budget_engine_unit_state{{{E},state="failed"}} 1')],
        {"BudgetEngineDown", "BudgetEngineUnitFailed"},
    ),
    "loop": ([to(r'budget_engine_finding\{.*"crash_loop".*\}', "1")], {"BudgetEngineCrashLooping"}),
    "boot": (
        [
            to(r'budget_engine_phase\{.*"serving".*\}', "0"),
            to(r'budget_engine_phase\{.*"loading".*\}', "1"),
            to(r"budget_engine_phase_start_time_seconds\{.*\}", "1700000000"),
        ],
        {"BudgetBootStalled"},
    ),
    "source": ([to(r'budget_source_success\{.*"file".*\}', "0")], {"BudgetSourceFailing"}),
    "reload": ([to(r"budget_exporter_config_last_reload_successful", "0")], {"BudgetConfigReloadFailed"}),
    "unparsed": ([to(r"budget_exporter_unparsed_lines_total\{.*\}", "3")], {"BudgetUnparsedLines"}),
}


@pytest.mark.parametrize("case", SICK)
def test_one_change_to_the_healthy_host_raises_its_alert_and_no_other(promtool: str, tmp_path: Path, case: str) -> None:
    changes, expected = SICK[case]
    text = HEALTHY
    for find, put in changes:
        text, changed = re.subn(find, put, text)
        assert changed == 1
    code, said = verdict(promtool, tmp_path, exposition_to_promtool(text, minutes=12, interval=15, firing=expected))
    assert code == 0, said
    code, said = verdict(promtool, tmp_path, exposition_to_promtool(text, minutes=12, interval=15))
    assert code != 0, "the assertion of no alert let one pass"


def test_ages_are_kept_and_sources_go_on_succeeding() -> None:
    text = (
        "budget_engine_start_time_seconds 1759990000\n"
        'budget_source_last_success_timestamp_seconds{source="a"} 1760000000.5\n'
        'budget_source_last_success_timestamp_seconds{source="b"} 1759999998.5\n'
    )
    document = yaml.safe_load(exposition_to_promtool(text, minutes=1, interval=20, job="j", instance="i"))
    series = {entry["series"]: entry["values"] for entry in document["tests"][0]["input_series"]}
    assert series == {
        'up{instance="i",job="j"}': "1x3",
        'budget_engine_start_time_seconds{instance="i",job="j"}': "-10000.5x3",
        'budget_source_last_success_timestamp_seconds{instance="i",job="j",source="a"}': "0+20x3",
        'budget_source_last_success_timestamp_seconds{instance="i",job="j",source="b"}': "-2+20x3",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "no sample"), ("# only a comment\n", "no sample"), ("a NaN\n", "a{.*nan"), ("a +Inf\n", "a{.*inf")],
)
def test_what_promtool_cannot_be_told_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        exposition_to_promtool(text, minutes=1, interval=15)


def figures() -> Iterator[float]:
    yield from (0.0, -0.0, 1e-12, 0.1, 1 / 3, 2.0**53 + 2, 1e300, -5e-324, 34208743424.0)


@settings(max_examples=10, deadline=None)
@given(
    label=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
)
def test_promtool_reads_back_any_label_and_any_figure(
    tmp_path_factory: pytest.TempPathFactory, label: str, values: list[float]
) -> None:
    promtool = program("promtool", "prometheus")
    quoted = label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    values = [*values, *figures()]
    text = "".join(f'm{{l="{quoted}",n="{n}"}} {value!r}\n' for n, value in enumerate(values))
    document = yaml.safe_load(exposition_to_promtool(text, minutes=1, interval=60))
    test = document["tests"][0]
    samples = [
        {"labels": entry["series"], "value": value}
        for entry, value in zip(test["input_series"][1:], values, strict=True)
    ]
    test["promql_expr_test"] = [{"expr": "m", "eval_time": "1m", "exp_samples": samples}]
    code, said = verdict(promtool, tmp_path_factory.mktemp("read_back"), yaml.safe_dump(document))
    assert code == 0, said
