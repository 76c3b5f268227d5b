"""
From sysfs to a page: real exporters, a real Prometheus with the rules, a real Alertmanager, a webhook.

The healthy host is started before all other integration tests and runs beside them; what takes minutes is looked at
when they are done (``last_``).
"""

from __future__ import annotations

import json
import subprocess
import time

import pytest

from budget_exporter.demo.host import DEVICES, SIZE
from budget_exporter.publish.catalogue import CATALOGUE
from budget_exporter.units import GIB, MIB
from dashboards import queries
from tests.alerts.recorded import exposition_to_promtool
from tests.integration.incident import Incident
from tests.integration.paging import ROOT
from tests.integration.processes import until
from tests.real_parts import program

pytestmark = [pytest.mark.real_part("prometheus"), pytest.mark.real_part("prometheus-alertmanager")]
EXHAUSTED = "BudgetDeviceMemoryNearlyExhausted"

NOT_HERE = {
    "budget_device_memory_reserved_bytes": "NVIDIA: the demo's cards are AMD's",
    "budget_device_memory_allocator_used_bytes": "Gaudi: the demo's cards are AMD's",
    "budget_device_cross_check_difference_bytes": "cross-checks are off by default",
    "budget_engine_nrestarts": "a synthetic host has no supervisor to ask",
    "budget_engine_unit_state": "the same",
    "budget_engine_pending_flag": "no file of the demo's units says how they start",
    "budget_engine_pending_flags": "the same",
    "budget_engine_floor_reached_seconds": "there is no trend",
    "budget_engine_last_failure_info": "it never failed",
    "budget_engine_last_failure_tried_bytes": "the same",
    "budget_engine_last_failure_free_bytes": "the same",
    "budget_engine_last_failure_timestamp_seconds": "the same",
    "budget_neuron_kv_cap_bytes": "Neuron: the demo's cards are AMD's",
    "budget_neuron_kv_minimum_bytes": "the same",
    "budget_neuron_vnc_memory_used_bytes": "the same, and no hook is installed",
    "budget_neuron_vnc_memory_limit_bytes": "the same",
}


def serving(incident: Incident, name: str) -> bool:
    return incident.exporters[name].value("budget_engine_phase", phase="serving") == 1


def test_the_healthy_host_has_every_series_that_applies_to_it(incident: Incident) -> None:
    until(lambda: serving(incident, "healthy"), "the engine serves", 60)
    names = {name for name, _ in incident.exporters["healthy"].series() if name.startswith("budget_")}
    assert names == CATALOGUE.keys() - NOT_HERE.keys()


def test_promtool_has_nothing_to_say_about_the_metrics(incident: Incident) -> None:
    for exporter in incident.exporters.values():
        _, text = exporter.get()
        told = subprocess.run(
            [program("promtool"), "check", "metrics"], input=text, capture_output=True, text=True, check=True
        )
        assert told.stdout + told.stderr == ""


def test_plan_words_and_measurement_of_the_healthy_host(incident: Incident) -> None:
    """Shape G: arena within 0.01 GiB and 2 slots of the engine's own, limit 0.982, 401,408 tokens, 0.89 GiB free."""
    until(lambda: serving(incident, "healthy"), "the engine serves", 60)
    healthy = incident.exporters["healthy"]
    for rank in ("0", "1"):
        arena = healthy.value("budget_model_arena_bytes", rank=rank)
        assert arena == pytest.approx(17.77 * GIB, abs=0.01 * GIB)
        assert healthy.value("budget_model_arena_slots", rank=rank) == pytest.approx(7762, abs=2)
        assert healthy.value("budget_reported_arena_slots", rank=rank) == 7762
        assert healthy.value("budget_law_utilization_limit_ratio", rank=rank) == 0.982
        charges = sum(
            value
            for (name, labels), value in healthy.series().items()
            if name == "budget_model_charge_bytes" and ("rank", rank) in labels
        )
        assert charges + (arena or 0) == healthy.value("budget_model_requested_bytes", rank=rank)
    assert healthy.value("budget_reported_kv_pool_tokens") == 401408
    assert healthy.value("budget_graph_drift_bytes", rank="0") == pytest.approx(-0.13 * GIB, abs=0.01 * GIB)
    for device in DEVICES:
        until(lambda device=device: healthy.value("budget_device_margin_bytes", device=device) == round(0.89 * GIB),  # type: ignore[misc]
              "the high water is reached")  # fmt: skip
    assert healthy.value("budget_exporter_demo") == 1


def test_a_knife_edge_is_paged_within_a_minute_of_the_state(incident: Incident) -> None:
    until(lambda: serving(incident, "knife-edge"), "the engine serves", 60)
    began = incident.exporters["knife-edge"].value("budget_engine_phase_start_time_seconds")
    assert began is not None
    pages = until(
        lambda: incident.paging.hook.of("firing", alertname=EXHAUSTED, instance="knife-edge"),
        "the page",
        began + 60 - time.time(),
    )
    assert pages[0].labels["severity"] == "critical"
    assert pages[0].at - began < 60
    print(f"paged {pages[0].at - began:.1f} s after the engine began to serve")  # noqa: T201 - for the record


def test_an_engine_that_fills_the_card_is_paged(incident: Incident) -> None:
    """The driven host serves well, then loses its memory; it is mended for the last tests to see the page resolved."""
    until(lambda: serving(incident, "driven"), "the engine serves", 60)
    assert not incident.paging.hook.of("firing", alertname=EXHAUSTED, instance="driven")
    began = time.time()
    incident.driven.hold(DEVICES[1], SIZE - 64 * MIB)
    page = until(lambda: incident.paging.hook.of("firing", alertname=EXHAUSTED, instance="driven"), "the page", 60)[0]
    assert (page.labels["device"], page.labels["rank"]) == (DEVICES[1], "1")
    print(f"paged {page.at - began:.1f} s after the card was full")  # noqa: T201 - for the record
    incident.driven.hold(DEVICES[1], SIZE - GIB)


def test_no_query_of_the_dashboard_is_empty(incident: Incident) -> None:
    until(lambda: serving(incident, "healthy"), "the engine serves", 60)
    dashboard = json.loads((ROOT / "dashboards" / "engine.json").read_text())
    for query in queries.queries(dashboard, engine="vllm-qwen"):
        until(lambda query=query: incident.paging.query(query.expr), f"{query.panel}: {query.expr}")  # type: ignore[misc]


def test_ten_minutes_of_the_healthy_host_raise_nothing(
    incident: Incident, tmp_path_factory: pytest.TempPathFactory
) -> None:
    until(lambda: serving(incident, "healthy"), "the engine serves", 60)
    _, text = incident.exporters["healthy"].get()
    path = tmp_path_factory.mktemp("recorded") / "healthy.test.yml"
    path.write_text(exposition_to_promtool(text, minutes=10, interval=15))
    subprocess.run([program("promtool"), "test", "rules", str(path)], check=True, capture_output=True)


def test_last_the_crash_loop_was_paged(incident: Incident) -> None:
    page = until(
        lambda: incident.paging.hook.of("firing", alertname="BudgetEngineCrashLooping", instance="crash-loop"),
        "the page",
        180,
    )[0]
    assert page.labels["severity"] == "critical"
    crashing = incident.exporters["crash-loop"]
    assert (crashing.value("budget_engine_failures_total", cause="budget_above_free") or 0) > 3
    assert crashing.value("budget_engine_knife_edge", reason="utilization_limit") == 1


def test_last_the_page_was_resolved(incident: Incident) -> None:
    until(
        lambda: incident.paging.hook.of("resolved", alertname=EXHAUSTED, instance="driven"), "the page is resolved", 300
    )


def test_last_the_healthy_host_raised_no_alert(incident: Incident) -> None:
    assert incident.paging.query('up{instance="healthy"}')[0]["value"][1] == "1"
    # The log says that the engine serves before its endpoint is asked again: for a moment it seems not to answer.
    for chosen in ('alertstate="firing"', 'alertname!="BudgetEngineNotAnswering"'):
        fired = incident.paging.query(f'max_over_time(ALERTS{{instance="healthy",{chosen}}}[1h])')
        assert [result["metric"] for result in fired] == []
    assert incident.paging.hook.of("firing", instance="healthy") == []
