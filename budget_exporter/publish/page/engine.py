"""One engine: what is wrong first, then margins per rank, then identity and ledgers."""

from __future__ import annotations

from budget_exporter.facts.engine import Placement
from budget_exporter.facts.snapshot import EngineState
from budget_exporter.facts.verdict import Finding, Floors, RankVerdict
from budget_exporter.publish.page import findings, identity, ledger, supervision
from budget_exporter.publish.page.figures import gib
from budget_exporter.publish.page.html import Html, join, tag
from budget_exporter.publish.ranks import facts_of, ranks_of
from budget_exporter.units import gib_text

__all__ = ["is_troubled", "section"]

_RECENT_S = 3600.0
_GRAVE: tuple[Finding, ...] = ("crash_loop", "leak")
"""Findings that page somebody."""
_DYING = frozenset({"failing", "stopped"})


def is_troubled(state: EngineState) -> bool:
    """Return whether someone should look at this engine first."""
    return (state.expected and state.up is False) or _is_sharp(state)


def _is_sharp(state: EngineState) -> bool:
    return any(state.verdict.knife_edge.values()) or state.verdict.findings.get("knife_edge", False)


def section(state: EngineState, *, now: float) -> Html:
    """Return everything known of one engine; ``now`` is the Unix time ages are counted to."""
    phase = _pill(state.phase, "bad" if state.phase in _DYING else "phase")
    edge = _pill("knife edge", "bad") if _is_sharp(state) else None
    title = tag("h2", state.name, phase, _life(state), edge)
    # What is gone holds nothing: its devices are shown below.
    margins = [_margin(state, verdict) for verdict in state.verdict.ranks.values()] if state.up else []
    return tag(
        "section",
        title,
        _alarms(state, now),
        tag("div", *margins, class_="tiles") if margins else None,
        identity.rows(state, now),
        identity.flags(state),
        *_ledgers(state),
        class_="engine troubled" if is_troubled(state) else "engine",
    )


def _life(state: EngineState) -> Html:
    if state.up:
        return _pill("up", "good")
    if state.up is None:
        return _pill("not looked at lately", "phase")
    return _pill("down", "bad") if state.expected else _pill("down, as allowed", "phase")


def _pill(text: str, kind: str) -> Html:
    return tag("span", text, class_=f"pill {kind}")


def _alarms(state: EngineState, now: float) -> Html:
    """Return whether it is down or died lately, why and what to change; then flags it would not take, and findings."""
    held = {name for name, holds in state.verdict.findings.items() if holds and not findings.harmless(name, state)}
    if state.verdict.sentences:
        # The sentences say all that the finding of the same name says.
        held.discard("knife_edge")
    fate = _fate(state, now)
    alarms = [tag("li", fate)] if fate else []
    alarms += [findings.item(name, state) for name in _GRAVE if name in held]
    alarms += [tag("li", sentence) for sentence in state.verdict.sentences]
    alarms += [tag("li", f"To change: {advice.sentence}.") for advice in state.verdict.advice]
    mild = [tag("li", fault) for fault in (state.shape.faults if state.shape is not None else ())]
    mild += [findings.item(name, state) for name in state.verdict.findings if name in held and name not in _GRAVE]
    return join(
        tag("ul", *alarms, class_="alarms") if alarms else None,
        tag("ul", *mild, class_="alarms mild") if mild else None,
    )


def _fate(state: EngineState, now: float) -> str:
    """Return that the engine is down, or that it died within the last hour and is back."""
    failure = state.last_failure
    if state.expected and state.up is False:
        seen = "" if failure or state.sighting else ", and none has been seen since the exporter started"
        last = "" if failure is None else f"Last failure: {identity.death(failure, now)}."
        return " ".join(text for text in (f"No main process is running{seen}.", supervision.fate(state), last) if text)
    if failure is not None and now - failure.at < _RECENT_S:
        return f"Died: {identity.death(failure, now)}."
    return ""


def _where(place: Placement) -> str:
    if place.device is None:
        return f"device unknown: {place.why}"
    return f"{place.device} ({place.why})" if place.why else place.device


def _margin(state: EngineState, verdict: RankVerdict) -> Html:
    place = next((p for p in state.placements if p.rank == verdict.rank), None)
    device = None if place is None else _where(place)
    held = state.rank_memory.get(verdict.rank)
    left = verdict.margin_high_water
    kind, words = _judgement(left, state.floors)
    # A boot takes and gives back memory on purpose.
    if left is not None and "measured_margin" not in state.verdict.knife_edge:
        kind, words = "", f"not judged while {state.phase}"
    return tag(
        "div",
        tag("h3", f"rank {verdict.rank}", tag("small", device) if device else None),
        tag("p", gib(left), tag("small", " GiB"), class_="figure"),
        tag("p", "left at high water"),
        tag("p", f"{gib(verdict.margin_now)} GiB left now"),
        None if held is None or held.used is None else tag("p", f"{gib(held.used)} GiB held by its processes"),
        tag("p", words, class_="words") if words else None,
        class_=f"tile {kind}".strip(),
    )


def _judgement(left: int | None, floors: Floors) -> tuple[str, str]:
    """Return style and words for a margin: colour alone tells nothing to some readers."""
    if left is None:
        return "", ""
    if left < floors.critical:
        return "bad", f"below the critical floor of {gib_text(floors.critical)}"
    if left < floors.warning:
        return "warn", f"below the warning floor of {gib_text(floors.warning)}"
    return "good", f"above the floor of {gib_text(floors.warning)}"


def _ledgers(state: EngineState) -> list[Html]:
    """Return a ledger per rank; the rank with the least left is open."""
    if state.ledger is None:
        return []
    left = {rank: verdict.margin_high_water for rank, verdict in state.verdict.ranks.items()}
    known = [rank for rank in ranks_of(state) if rank in state.ledger.ranks]
    worst = min(known, key=lambda rank: _or_most(left.get(rank)), default=None)
    out = []
    for rank in known:
        verdict = state.verdict.ranks.get(rank)
        body = ledger.table(
            state.ledger.ranks[rank],
            facts_of(state, rank),
            charged=None if state.report is None else state.report.graph_charge_applied,
            drift=None if verdict is None else verdict.drift,
        )
        opened = "" if rank == worst else None
        out.append(tag("details", tag("summary", f"Ledger of rank {rank}"), body, open=opened))
    return out


def _or_most(left: int | None) -> float:
    return float("inf") if left is None else left
