from __future__ import annotations

import pytest
from prometheus_client.metrics_core import Metric as Family

from budget_exporter.publish.families import Families


def values(families: list[Family]) -> dict[tuple[str, tuple[str, ...]], float]:
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


def test_a_name_outside_the_catalogue_is_refused() -> None:
    with pytest.raises(KeyError, match="budget_engine_vibes"):
        Families().add("budget_engine_vibes", 1, engine="e")


@pytest.mark.parametrize("labels", [{}, {"engine": "e", "rank": "0"}, {"device": "e"}])
def test_a_label_set_that_is_not_the_catalogues_is_refused(labels: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="budget_engine_up"):
        Families().add("budget_engine_up", 1, **labels)


def test_labels_are_checked_even_where_there_is_no_value() -> None:
    with pytest.raises(ValueError, match="budget_engine_up"):
        Families().add("budget_engine_up", None, device="e")


def test_a_value_outside_a_closed_list_is_refused() -> None:
    out = Families()
    out.add("budget_engine_phase", 1, engine="e", phase="serving")
    with pytest.raises(ValueError, match="closed list of phase"):
        out.add("budget_engine_phase", 1, engine="e", phase="serving_badly")


def test_nothing_is_not_zero() -> None:
    out = Families()
    out.add("budget_engine_up", None, engine="a")
    assert out.collect() == []
    out.add("budget_engine_up", 0, engine="b")
    assert values(out.collect()) == {("budget_engine_up", ("b",)): 0.0}


def test_an_integer_no_double_holds_is_absent() -> None:
    out = Families()
    out.add("budget_engine_max_model_len_tokens", 10**400, engine="e")
    assert out.collect() == []


def test_a_second_sample_of_one_label_set_keeps_the_first() -> None:
    out = Families()
    out.add("budget_engine_restarts_total", 3, engine="e")
    out.add("budget_engine_restarts_total", 9, engine="e")
    assert values(out.collect()) == {("budget_engine_restarts_total", ("e",)): 3.0}


def test_families_come_in_the_catalogues_order_whatever_the_order_of_samples() -> None:
    out = Families()
    out.add("budget_exporter_demo", 1)
    out.add("budget_device_memory_size_bytes", 7, device="d")
    assert [family.name for family in out.collect()] == ["budget_device_memory_size_bytes", "budget_exporter_demo"]


@pytest.mark.parametrize(
    ("name", "labels", "unit"),
    [
        ("budget_device_memory_size_bytes", {"device": "d"}, "bytes"),
        ("budget_kv_bytes_per_token", {"engine": "e", "source": "registry"}, ""),
        ("budget_engine_up", {"engine": "e"}, ""),
        ("budget_source_runs_total", {"source": "s"}, ""),
        ("budget_device_evicted_seconds_total", {"device": "d"}, "seconds"),
    ],
)
def test_a_unit_is_told_only_where_the_name_ends_in_it(name: str, labels: dict[str, str], unit: str) -> None:
    out = Families()
    out.add(name, 1, **labels)
    (family,) = out.collect()
    assert family.unit == unit
    assert family.samples[0].name == name
