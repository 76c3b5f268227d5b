from __future__ import annotations

import gzip
import threading
from collections.abc import Iterable
from dataclasses import replace

import pytest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from budget_exporter.publish.exposition import Exposition
from tests.publish import snapshots

ODD = '<b>"x"\n\\'


class Fixed(Collector):
    """Families made beforehand, as a collector; it counts how often it is asked."""

    def __init__(self, metrics: Iterable[Family] = ()) -> None:
        self.metrics = list(metrics)
        self.calls = 0

    def collect(self) -> Iterable[Family]:
        self.calls += 1
        return self.metrics


def parse_openmetrics(text: str) -> list[Family]:
    return list(openmetrics_parser.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", snapshots.ALL)
def test_openmetrics_parses_and_holds_the_same_samples_as_the_text(name: str) -> None:
    rendered = Exposition().render(snapshots.ALL[name]())
    openmetrics = [s for family in parse_openmetrics(rendered.openmetrics.decode()) for s in family.samples]
    text = [s for family in parse_text(rendered.text.decode()) for s in family.samples]
    assert [(s.name, s.labels, s.value) for s in openmetrics] == [(s.name, s.labels, s.value) for s in text]
    assert openmetrics


def test_openmetrics_units_end_the_names() -> None:
    rendered = Exposition(()).render(snapshots.healthy())
    parsed = {family.name: family.unit for family in parse_openmetrics(rendered.openmetrics.decode())}
    assert parsed["budget_device_margin_bytes"] == "bytes"
    assert parsed["budget_kv_bytes_per_token"] == ""
    assert all(name.endswith(f"_{unit}") for name, unit in parsed.items() if unit)


def test_gzip_holds_the_same_bytes() -> None:
    rendered = Exposition().render(snapshots.healthy())
    assert gzip.decompress(rendered.text_gzip) == rendered.text
    assert gzip.decompress(rendered.openmetrics_gzip) == rendered.openmetrics
    assert len(rendered.text_gzip) < len(rendered.text) / 4


def test_odd_names_come_back_as_they_were() -> None:
    before = snapshots.healthy()
    odd = replace(before, engines=(replace(before.engines[0], name=ODD),))
    rendered = Exposition(()).render(odd)
    for parsed in (parse_openmetrics(rendered.openmetrics.decode()), parse_text(rendered.text.decode())):
        up = next(family for family in parsed if family.name == "budget_engine_up")
        assert [sample.labels for sample in up.samples] == [{"engine": ODD}]


def test_a_name_that_is_no_utf8_does_not_cost_the_scrape() -> None:
    before = snapshots.healthy()
    odd = replace(before, engines=(replace(before.engines[0], name=b"\xffqwen".decode(errors="surrogateescape")),))
    text = Exposition(()).render(odd).text.decode()
    assert 'budget_engine_up{engine="?qwen"} 1.0' in text


def test_a_snapshot_is_rendered_once_however_often_it_is_asked_for() -> None:
    own = Fixed()
    exposition = Exposition([own])
    first = snapshots.healthy()
    assert exposition.render(first) is exposition.render(first)
    assert own.calls == 1
    exposition.render(snapshots.healthy())  # equal, but another Snapshot
    assert own.calls == 2


def test_threads_that_ask_at_once_share_one_rendering() -> None:
    own = Fixed()
    exposition = Exposition([own])
    snapshot = snapshots.healthy()
    barrier = threading.Barrier(8)
    results = []

    def ask() -> None:
        barrier.wait()
        results.append(exposition.render(snapshot))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert own.calls == 1
    assert len({id(result) for result in results}) == 1


def test_before_the_first_snapshot_there_are_only_the_processs_own_figures() -> None:
    text = Exposition().render(None).text.decode()
    assert {name for name in (family.name for family in parse_text(text)) if name.startswith("budget_")} == set()
    names = {family.name for family in parse_text(text)}
    assert {"process_resident_memory_bytes", "process_cpu_seconds", "process_open_fds", "python_info"} <= names


def test_no_series_says_when_it_was_created() -> None:
    rendered = Exposition().render(snapshots.healthy())
    assert b"_created" not in rendered.text + rendered.openmetrics
