"""What each finding means, in a sentence with its figures where the Snapshot holds them."""

from __future__ import annotations

from budget_exporter.facts.snapshot import EngineState
from budget_exporter.facts.verdict import Finding
from budget_exporter.publish.page.figures import count, size_text
from budget_exporter.publish.page.html import Html, tag

__all__ = ["harmless", "item"]

_MEANING: dict[Finding, str] = {
    "graph_charge_over": "every rank captured clearly less than its graph charge; a lower charge would do",
    "graph_charge_under": "graph capture took clearly more than its charge; the rest comes out of free memory",
    "graph_charge_negative": "graph capture gave memory back: it fitted pages that had been counted already",
    "graph_estimate_not_charged": "the engine estimated its graphs and charged nothing; they come out of free memory",
    "kv_report_misleading": "the engine's own figure of its KV pool cannot be taken at its word",
    "util_misread": "the utilization does not mean what it seems to",
    "knife_edge": "the shape boots, but cannot be counted on to survive a request or the next start",
    "leak": "use goes on growing while the load does not",
    "crash_loop": "it keeps dying and being restarted",
    "model_mismatch": "the law and the engine's own words differ; distrust what the law predicts until they agree",
    "kv_changed_since_last_boot": "the same flags gave a KV pool of another size at the last start",
    "free_at_init_falling": "less memory was free at each start",
    "kv_price_drift": "a token of KV does not cost what was planned",
    "zombie_memory": "the device holds memory of a process that is gone",
    "mlock_failed": "host memory could not be locked; raise the memlock limit (LimitMEMLOCK=infinity)",
    "advertised_above_servable": "the engine admits longer requests than its KV pool holds",
    "law_assumed": "the engine's version is unknown or newer than any the law was checked against",
}
_HARMLESS: frozenset[Finding] = frozenset({"graph_charge_over", "graph_charge_negative", "law_assumed"})


def harmless(finding: Finding, state: EngineState) -> bool:
    """Return whether ``finding`` explains and costs no memory; a price below the planned one leaves room unused."""
    prices = _prices(state)
    if finding == "kv_price_drift" and prices is not None:
        return prices[1] < prices[0]
    return finding in _HARMLESS


def item(finding: Finding, state: EngineState) -> Html:
    """Return ``finding`` and what it means for ``state`` as an item of a list."""
    return tag("li", tag("code", finding), f": {_sentence(finding, state)}")


def _sentence(finding: Finding, state: EngineState) -> str:
    if finding in state.verdict.said:
        return state.verdict.said[finding]
    prices = _prices(state)
    if finding == "kv_price_drift" and prices is not None:
        planned, measured = prices
        amount = "more" if measured < planned else "less"
        return (
            f"a token of KV costs {count(measured)} B, planned were {count(planned)} B: the reserve of one request "
            f"holds {amount} than that"
        )
    report = state.report
    if finding == "mlock_failed" and report is not None and report.ple_not_locked is not None:
        return f"{size_text(report.ple_not_locked.bytes)}: {_MEANING[finding]}"
    return _MEANING[finding]


def _prices(state: EngineState) -> tuple[int, int] | None:
    """Return the planned and the measured price of a token in bytes."""
    prices = {} if state.ledger is None else state.ledger.kv_bytes_per_token
    planned, measured = prices.get("registry"), prices.get("measured")
    return None if planned is None or measured is None else (planned, measured)
