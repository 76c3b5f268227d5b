"""A real vLLM's endpoint: what the exporter makes of it, against the answers themselves and against the log."""

from __future__ import annotations

import json
import re
import sys

import pytest

from budget_exporter.facts.endpoint import HEALTH_STATES
from tests.integration.real_engines import KEY, PLANS, Scene, Seen

pytestmark = pytest.mark.real_part("vllm")
SERVING = [name for name, plan in PLANS.items() if plan.end != "fail"]
serving = pytest.mark.parametrize("seen", SERVING, indirect=True)


def only(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("seen", [name], indirect=True)


@serving
def test_blocks_tokens_and_concurrency_are_the_engine_s_own(seen: Seen) -> None:
    facts = seen.view["endpoint"]["facts"]
    rows = seen.own("vllm:cache_config_info")
    assert facts["replicas"] == len(rows)
    for row in rows:
        assert facts["kv_blocks"] == int(row["num_gpu_blocks"])
        assert facts["kv_tokens"] == int(row["kv_cache_size_tokens"])
        assert facts["kv_concurrency"] == float(row["kv_cache_max_concurrency"])
        assert facts["kv_bytes"] == int(row["kv_cache_memory_bytes"])
        assert facts["block_size"] == int(row["block_size"])
        # Not the two decimals of its log.
        concurrency = seen.value("budget_reported_kv_max_concurrency_ratio", engine=seen.name)
        assert concurrency == float(row["kv_cache_max_concurrency"])
        assert seen.value("budget_reported_kv_pool_tokens", engine=seen.name) == int(row["kv_cache_size_tokens"])


@only("dp2")
def test_the_blocks_of_two_replicas_are_summed_and_the_tokens_are_not(seen: Seen) -> None:
    printed = {int(text.replace(",", "")) for text in re.findall(r"KV cache size: ([\d,]+) tokens", seen.engine.log)}
    facts = seen.view["endpoint"]["facts"]
    assert printed == {facts["kv_tokens"]}
    assert facts["kv_blocks"] * facts["block_size"] == 2 * facts["kv_tokens"]


@serving
def test_log_and_endpoint_agree(seen: Seen) -> None:
    assert seen.view["disagreements"] == []


@serving
def test_it_is_well_and_idle(seen: Seen) -> None:
    states = {state: seen.value("budget_engine_health", engine=seen.name, state=state) for state in HEALTH_STATES}
    assert states == dict.fromkeys(HEALTH_STATES, 0) | {"ok": 1}
    facts = seen.view["endpoint"]["facts"]
    assert facts["version"] == "0.32.0"
    assert facts["asleep"] is False
    # Several processes of one server show no usage before the first request.
    assert (facts["kv_usage"], facts["running"]) in [(0.0, 0), *([(None, None)] if seen.name == "dp2" else [])]


@serving
def test_the_longest_sequence_comes_from_its_list_of_models_but_for_one_that_wants_a_key(seen: Seen) -> None:
    told = seen.view["endpoint"]["facts"]["max_model_len"]
    assert told == (None if KEY in seen.engine.flags else seen.view["shape"]["max_model_len"])


@only("gemma2")
def test_its_key_is_in_nothing_the_exporter_says(seen: Seen, servers: Scene) -> None:
    assert KEY in seen.engine.flags
    assert KEY not in json.dumps(seen.view)
    assert KEY not in servers.exporter.log


@only("mla")
def test_one_behind_a_path_of_a_proxy_s_is_asked_without_it(seen: Seen) -> None:
    assert "--root-path" in seen.engine.flags
    assert seen.view["endpoint"]["health"] == "ok"


@serving
def test_asking_is_no_failure_of_the_source(seen: Seen) -> None:
    assert seen.value("budget_source_success", source="endpoint") == 1


@only("tp2")
def test_a_core_that_dies_is_told_before_nobody_listens(seen: Seen, capsys: pytest.CaptureFixture[str]) -> None:
    assert seen.killed is not None
    assert [health for _, health in seen.killed.healths] == ["ok", "unavailable", "refused"]
    assert set(seen.killed.shown) - {"ok"} <= {"unavailable", "refused"}
    with capsys.disabled():
        changes = ", ".join(f"{health} after {at:.2f} s" for at, health in seen.killed.healths)
        sys.stdout.write(f"\na worker killed: {changes}; the exporter showed {', '.join(seen.killed.shown)}\n")
