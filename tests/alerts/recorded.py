"""Turn a scraped exposition into a promtool rule test, so that the rules are tried on what an exporter really said."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["RULES", "exposition_to_promtool"]

RULES = Path(__file__).parents[2] / "alerts" / "budget.rules.yml"
UNIX_TIMES = ("_timestamp_seconds", "_time_seconds")
MOVES = "budget_source_last_success_timestamp_seconds"
"""The one instant that moves on while nothing happens: sources go on succeeding."""


def exposition_to_promtool(
    text: str,
    minutes: int,
    interval: int,
    *,
    firing: Collection[str] = (),
    rules: Path = RULES,
    job: str = "budget_exporter",
    instance: str = "recorded.example.org:19470",
) -> str:
    """
    Return a promtool rule test in which the host stays as ``text`` says.

    Without ``firing`` no alert may so much as be pending in any minute; with it exactly these alerts must be firing at
    the end. promtool's clock starts at 0, so instants are moved by the newest of them, which is taken for the time of
    the scrape; ages stay what they were.

    Args:
        text: exposition in Prometheus' text format.
        minutes: length of the test.
        interval: seconds between two scrapes, and between two evaluations.
        firing: names of the alerts that must be firing at the end, and no others.
        rules: rule file to test.
        job: label that Prometheus adds to the series.
        instance: label that Prometheus adds to the series.

    Raises:
        ValueError: ``text`` is no exposition, holds nothing, or a value that promtool cannot repeat (NaN, infinity).

    """
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    if not samples:
        raise ValueError("the exposition holds no sample")
    now = max((s.value for s in samples if s.name.endswith(UNIX_TIMES)), default=0.0)
    times = minutes * 60 // interval
    target = {"job": job, "instance": instance}
    series = [{"series": _series("up", target), "values": f"1x{times}"}]
    for sample in samples:
        value = sample.value - now if sample.name.endswith(UNIX_TIMES) else sample.value
        step = f"+{interval}" if sample.name == MOVES else ""
        name = _series(sample.name, sample.labels | target)
        series.append({"series": name, "values": f"{_number(name, value)}{step}x{times}"})
    test: dict[str, Any] = {"name": "recorded exposition", "interval": f"{interval}s", "input_series": series}
    test["promql_expr_test"] = _expectations(minutes, firing)
    document = {"rule_files": [str(rules)], "evaluation_interval": f"{interval}s", "tests": [test]}
    return yaml.safe_dump(document, sort_keys=False, width=1000)


def _expectations(minutes: int, firing: Collection[str]) -> list[dict[str, Any]]:
    if not firing:
        expr = "count by (alertname) (ALERTS)"
        return [{"expr": expr, "eval_time": f"{minute}m", "exp_samples": []} for minute in range(minutes + 1)]
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(firing)]
    expr = 'group by (alertname) (ALERTS{alertstate="firing"})'
    return [{"expr": expr, "eval_time": f"{minutes}m", "exp_samples": samples}]


def _series(name: str, labels: dict[str, str]) -> str:
    # PromQL quotes as Go does, and Go reads every escape that JSON writes for text without surrogates.
    inside = ",".join(f"{label}={json.dumps(value, ensure_ascii=False)}" for label, value in sorted(labels.items()))
    return f"{name}{{{inside}}}"


def _number(name: str, value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{name}: promtool cannot repeat {value}")
    # The shortest figure that is this float, written out: an exponent would run into the step and the repetition.
    return f"{Decimal(repr(value)):f}".removesuffix(".0")
