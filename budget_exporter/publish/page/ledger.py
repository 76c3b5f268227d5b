"""One rank's ledger as a bar and a table: what the law says, what the engine says, and the difference."""

from __future__ import annotations

from collections.abc import Mapping

from budget_exporter.facts.boot import Printed, RankFacts
from budget_exporter.facts.ledger import RankLedger, Term
from budget_exporter.publish.page.figures import NOTHING, gib, signed_gib
from budget_exporter.publish.page.html import Html, join, tag
from budget_exporter.publish.reported_metrics import charges_of, kv_pool_of

__all__ = ["table"]

_BAR_WIDTH = 1000
_COLOURS = 8


def table(ledger: RankLedger, facts: RankFacts | None, *, charged: bool | None, drift: int | None) -> Html:
    """
    Return the ledger of one rank.

    ``facts`` is what the rank printed, ``charged`` whether its graph estimate was charged, ``drift`` capture minus
    charge in bytes. A difference is shown only where the law's figure did not come from the engine's log itself.
    """
    reported = _reported(facts, charged=charged)
    parts = [*ledger.charges, *([ledger.pool] if ledger.pool is not None else [])]
    registry = {term.name: term for term in ledger.registry}
    rows = [
        _row(term, reported.get(term.name), swatch=index, registry=registry.get(term.name))
        for index, term in enumerate(parts)
    ]
    if ledger.pool is None:
        rows.append(tag("tr", tag("th", "the rest: a charge is not known", scope="row"), _cell(NOTHING), _empty(2)))
    rows.append(tag("tr", tag("th", "requested", scope="row"), _cell(gib(ledger.requested)), _empty(2), class_="sum"))
    inside = list(ledger.within)
    if ledger.kv_pool is not None and (ledger.pool is None or ledger.pool.name != ledger.kv_pool.name):
        inside.append(ledger.kv_pool)
    rows += _group("of which, inside a part above", inside, reported)
    rows += _group("beside the request", list(ledger.outside), reported)
    rows += _capture(facts, drift)
    head = tag("tr", *(tag("th", text, scope="col") for text in ("GiB", "law", "engine", "difference")))
    return join(_bar(ledger, parts), tag("table", tag("thead", head), tag("tbody", *rows), class_="ledger"))


def _reported(facts: RankFacts | None, *, charged: bool | None) -> dict[str, Printed]:
    """Return the engine's figures by the name of the law's term."""
    if facts is None:
        return {}
    reported: dict[str, Printed | None] = dict(charges_of(facts, charged=charged).items())
    reported["kv_pool"] = kv_pool_of(facts)
    if facts.plan is not None:
        reported |= {"arena": facts.plan.arena, "resident_experts": facts.plan.resident_experts}
    return {name: printed for name, printed in reported.items() if printed is not None}


def _row(term: Term, printed: Printed | None, *, swatch: int | None = None, registry: Term | None = None) -> Html:
    mark = None if swatch is None else tag("i", class_=f"swatch c{swatch % _COLOURS}")
    origin = " \N{MIDDLE DOT} ".join(part for part in (term.source, term.lever) if part)
    other = None if registry is None else f"{registry.source} says {gib(registry.bytes)}"
    details = [tag("small", text) for text in (origin, other, term.note) if text]
    name = tag("th", mark, term.name, *details, scope="row")
    engine = None if printed is None else printed.bytes
    difference = None if engine is None or term.source == "log" else engine - term.bytes
    return tag("tr", name, _cell(gib(term.bytes)), _cell(gib(engine)), _cell(signed_gib(difference)))


def _group(title: str, terms: list[Term], reported: Mapping[str, Printed]) -> list[Html]:
    if not terms:
        return []
    head = tag("tr", tag("th", title, colspan="4", scope="rowgroup"), class_="group")
    return [head, *(_row(term, reported.get(term.name)) for term in terms)]


def _capture(facts: RankFacts | None, drift: int | None) -> list[Html]:
    """Return the row of graph capture, whose difference is the drift: capture minus the charge applied."""
    if facts is None or facts.graph_capture is None:
        return []
    name = tag("th", "graph capture", tag("small", "log; difference is to the charge applied"), scope="row")
    head = tag("tr", tag("th", "after the fact", colspan="4", scope="rowgroup"), class_="group")
    return [head, tag("tr", name, _cell(NOTHING), _cell(gib(facts.graph_capture.bytes)), _cell(signed_gib(drift)))]


def _bar(ledger: RankLedger, parts: list[Term]) -> Html | None:
    """Return the request as a stack over the device's size; none where a part is negative and cannot be drawn."""
    whole = max(ledger.size, ledger.requested)
    if whole <= 0 or any(term.bytes < 0 for term in parts):
        return None
    rectangles, x = [], 0.0
    for index, term in enumerate(parts):
        width = term.bytes / whole * _BAR_WIDTH
        title = tag("title", f"{term.name} {gib(term.bytes)} GiB")
        box = {"x": f"{x:.1f}", "width": f"{width:.1f}", "height": "20"}
        rectangles.append(tag("rect", title, class_=f"c{index % _COLOURS}", **box))
        x += width
    label = "The request's parts over the device's size"
    box = {"viewBox": f"0 0 {_BAR_WIDTH} 20", "preserveAspectRatio": "none"}
    return tag("svg", *rectangles, class_="bar", role="img", aria_label=label, **box)


def _cell(text: str) -> Html:
    return tag("td", text)


def _empty(columns: int) -> Html:
    return tag("td", colspan=str(columns))
