"""One engine: what is wrong first, then margins per rank, then identity and ledgers."""

from __future__ import annotations

from budget_exporter.facts.boot import Failure
from budget_exporter.facts.snapshot import EngineState
from budget_exporter.facts.verdict import Floors, RankVerdict
from budget_exporter.publish.engine_metrics import model_name_of, version_of
from budget_exporter.publish.flags import shown
from budget_exporter.publish.model_metrics import utilization_of
from budget_exporter.publish.page import ledger
from budget_exporter.publish.page.figures import NOTHING, age, count, gib, utc
from budget_exporter.publish.page.html import Html, join, tag
from budget_exporter.publish.ranks import facts_of, ranks_of
from budget_exporter.units import gib_text

__all__ = ["is_troubled", "section"]


def is_troubled(state: EngineState) -> bool:
    """Return whether someone should look at this engine first."""
    return (state.expected and not state.up) or any(state.verdict.knife_edge.values())


def section(state: EngineState, *, now: float) -> Html:
    """Return everything known of one engine; ``now`` is the Unix time ages are counted to."""
    title = tag("h2", state.name, _pill(state.phase, "phase"), _life(state))
    margins = [_margin(state, verdict) for verdict in state.verdict.ranks.values()]
    return tag(
        "section",
        title,
        _alarms(state, now),
        tag("div", *margins, class_="tiles") if margins else None,
        _identity(state, now),
        *_ledgers(state),
        class_="engine troubled" if is_troubled(state) else "engine",
    )


def _life(state: EngineState) -> Html:
    if state.up:
        return _pill("up", "good")
    return _pill("down", "bad") if state.expected else _pill("down, as allowed", "phase")


def _pill(text: str, kind: str) -> Html:
    return tag("span", text, class_=f"pill {kind}")


def _alarms(state: EngineState, now: float) -> Html:
    """Return knife-edge sentences before anything else, why it is down, flags it would not take, and findings."""
    alarms = [tag("li", sentence) for sentence in state.verdict.sentences]
    if state.expected and not state.up:
        why = "" if state.last_failure is None else f" Last failure: {_failure(state.last_failure, now)}."
        alarms.append(tag("li", f"No main process is running.{why}"))
    # The sentences say all that the finding of the same name says.
    findings = [
        name for name, holds in state.verdict.findings.items() if holds and not (name == "knife_edge" and alarms)
    ]
    mild = [tag("li", fault) for fault in (state.shape.faults if state.shape is not None else ())]
    mild += [tag("li", "finding: ", tag("code", name)) for name in findings]
    return join(
        tag("ul", *alarms, class_="alarms") if alarms else None,
        tag("ul", *mild, class_="alarms mild") if mild else None,
    )


def _margin(state: EngineState, verdict: RankVerdict) -> Html:
    place = next((p for p in state.placements if p.rank == verdict.rank), None)
    device = None if place is None else place.device or f"device unknown: {place.why}"
    left = verdict.margin_high_water
    kind, words = _judgement(left, state.floors)
    return tag(
        "div",
        tag("h3", f"rank {verdict.rank}", tag("small", device) if device else None),
        tag("p", gib(left), tag("small", " GiB"), class_="figure"),
        tag("p", "left at high water"),
        tag("p", f"{gib(verdict.margin_now)} GiB left now"),
        tag("p", words, class_="words") if words else None,
        class_=f"tile {kind}",
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


def _identity(state: EngineState, now: float) -> Html:
    rows: list[tuple[str, str | None]] = [
        ("model", model_name_of(state) or None),
        ("version", version_of(state) or None),
        ("law", _law(state)),
        ("supervised by", _supervision(state)),
        ("started", _moment(state.sighting.started_at, now) if state.up and state.sighting is not None else None),
        ("phase since", _moment(state.phase_since, now) if state.phase_since is not None else None),
        ("restarts", f"{count(state.restarts)} seen"),
        ("last failure", _failure(state.last_failure, now) if state.last_failure is not None else None),
        ("KV pool", _kv_pool(state)),
        ("utilization", _utilization(state)),
        ("host memory", _host(state)),
    ]
    pairs = [join(tag("dt", name), tag("dd", text)) for name, text in rows if text is not None]
    return join(tag("dl", *pairs), _flags(state))


def _law(state: EngineState) -> str | None:
    if state.ledger is None:
        return "none could be applied: too little is known of this engine"
    assumed = ", assumed" if state.ledger.assumed else ""
    text = f"{state.ledger.law} {state.ledger.version}".strip() + assumed
    return ". ".join([text, *state.ledger.notes])


def _supervision(state: EngineState) -> str:
    parts = [state.supervisor, state.unit]
    if state.supervision is not None:
        parts += [state.supervision.state, state.supervision.result]
        if state.supervision.nrestarts is not None:
            parts.append(f"its own count of restarts: {state.supervision.nrestarts}")
    return " \N{MIDDLE DOT} ".join(part for part in parts if part)


def _moment(at: float, now: float) -> str:
    return f"{age(now - at)} ago ({utc(at)})"


def _failure(failure: Failure, now: float) -> str:
    rank = "" if failure.rank is None else f" on rank {failure.rank}"
    sizes = [
        "" if failure.tried is None else f"tried {gib_text(failure.tried.bytes)}",
        "" if failure.free is None else f"{gib_text(failure.free.bytes)} free",
    ]
    detail = ", ".join(size for size in sizes if size)
    text = f"{failure.cause} while {failure.phase}{rank}, {_moment(failure.at, now)}"
    return f"{text}: {detail}" if detail else text


def _kv_pool(state: EngineState) -> str | None:
    law = None if state.ledger is None else state.ledger.kv_pool_tokens
    engine = None if state.report is None else state.report.kv_tokens
    if law is None and engine is None:
        return None
    text = f"law {count(law)} tokens, engine {count(engine)} tokens"
    if state.report is not None and state.report.kv_concurrency is not None:
        text += f" ({state.report.kv_concurrency:.2f} of the longest request)"
    contract = state.verdict.contract_tokens
    return text if contract is None else f"{text}, contract {count(contract)}"


def _utilization(state: EngineState) -> str | None:
    if state.ledger is None:
        return None
    texts = []
    for rank in state.ledger.ranks.values():
        share, limit = utilization_of(rank, state.ledger.utilization_ratio), rank.limit
        asked = NOTHING if share is None else f"{share:.4g}"
        bound = "limit unknown" if limit is None else f"limit {limit.ratio:.4g}"
        if limit is not None and limit.low < limit.high:
            bound += f" (printed: {limit.low:.4g} to {limit.high:.4g})"
        texts.append(f"{asked}, {bound}")
    return "; ".join(dict.fromkeys(texts)) or None  # ranks that agree say it once


def _host(state: EngineState) -> str | None:
    terms = () if state.ledger is None else state.ledger.host
    return ", ".join(f"{term.name} {gib_text(term.bytes)} ({term.source})" for term in terms) or None


def _flags(state: EngineState) -> Html | None:
    given = {} if state.shape is None else shown(state.shape.given)
    if not given:
        return None
    flags = [tag("li", tag("code", f"{flag} {value}".strip())) for flag, value in given.items()]
    return tag("details", tag("summary", "Budget flags as given"), tag("ul", *flags, class_="flags"))


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
