"""What an engine is, what supervises it, how it fared, and what it was given."""

from __future__ import annotations

from budget_exporter.facts.boot import Failure
from budget_exporter.facts.ledger import RankLedger
from budget_exporter.facts.snapshot import EngineState
from budget_exporter.publish.engine_metrics import model_name_of, version_of
from budget_exporter.publish.flags import shown
from budget_exporter.publish.model_metrics import utilization_of
from budget_exporter.publish.page import endpoint, findings, supervision
from budget_exporter.publish.page.figures import NOTHING, age, count, ratio, size_text, utc
from budget_exporter.publish.page.html import Html, join, tag
from budget_exporter.units import gib_text

__all__ = ["death", "flags", "rows"]


def rows(state: EngineState, now: float) -> Html:
    """Return the list of names and figures; ``now`` is the Unix time ages are counted to."""
    pairs: list[tuple[str, str | None]] = [
        ("model", model_name_of(state) or None),
        ("version", version_of(state) or None),
        ("law", _law(state)),
        ("supervised by", _supervision(state)),
        ("started", _moment(state.sighting.started_at, now) if state.up and state.sighting is not None else None),
        ("phase since", _moment(state.phase_since, now) if state.phase_since is not None else None),
        ("boots", supervision.booting(state, now)),
        ("health", endpoint.health(state, now)),
        ("restarts", f"{count(state.restarts)} seen"),
        ("deaths", _deaths(state)),
        ("last failure", death(state.last_failure, now) if state.last_failure is not None else None),
        ("KV pool", _kv_pool(state)),
        ("KV use", endpoint.use(state, now)),
        ("utilization", _utilization(state)),
        ("waits for a restart", _pending(state)),
        ("host memory", _host(state)),
        ("notes", _notes(state)),
    ]
    return tag("dl", *(join(tag("dt", name), tag("dd", text)) for name, text in pairs if text is not None))


def death(failure: Failure, now: float) -> str:
    """Return how an engine died: cause, phase, rank, when, and the sizes it printed."""
    rank = "" if failure.rank is None else f" on rank {failure.rank}"
    sizes = [
        "" if failure.tried is None else f"tried {size_text(failure.tried.bytes)}",
        "" if failure.free is None else f"{size_text(failure.free.bytes)} free",
    ]
    detail = ", ".join(size for size in sizes if size)
    text = f"{failure.cause} while {failure.phase}{rank}, {_moment(failure.at, now)}"
    return f"{text}: {detail}" if detail else text


def _law(state: EngineState) -> str:
    if state.ledger is not None:
        assumed = ", assumed" if state.ledger.assumed else ""
        return f"{state.ledger.law} {state.ledger.version}".strip() + assumed
    if state.shape is None:
        return "none: the engine has not been seen running"
    nowhere = next((place.why for place in state.placements if place.device is None and place.why), "")
    return f"none: {nowhere or 'the log of the exporter says why'}"


def _notes(state: EngineState) -> Html | None:
    """Return what the law has to say, where log and endpoint part, and the findings that explain and cost nothing."""
    notes = [tag("li", note) for note in (() if state.ledger is None else state.ledger.notes)]
    notes += [tag("li", sentence) for sentence in state.disagreements]
    held = [name for name, holds in state.verdict.findings.items() if holds and findings.harmless(name, state)]
    notes += [findings.item(name, state) for name in held]
    return tag("ul", *notes) if notes else None


def _supervision(state: EngineState) -> str:
    parts = [state.supervisor, state.unit]
    if state.supervision is not None:
        parts += [state.supervision.state, state.supervision.result]
        if state.supervision.nrestarts is not None:
            parts.append(f"its own count of restarts: {state.supervision.nrestarts}")
    return " \N{MIDDLE DOT} ".join(part for part in parts if part)


def _moment(at: float, now: float) -> str:
    return f"{age(now - at)} ago ({utc(at)})"


def _deaths(state: EngineState) -> str | None:
    return ", ".join(f"{cause} {count(number)}" for cause, number in state.failures.items() if number) or None


def _kv_pool(state: EngineState) -> str | None:
    law = None if state.ledger is None else state.ledger.kv_pool_tokens
    engine = None if state.report is None else state.report.kv_tokens
    if law is None and engine is None:
        return None
    told = (("law", law), ("engine", engine))
    text = ", ".join(f"{who} {count(tokens)} tokens" for who, tokens in told if tokens is not None)
    if state.report is not None and state.report.kv_concurrency is not None:
        text += f" ({state.report.kv_concurrency:.2f} of the longest request)"
    contract = state.verdict.contract_tokens
    return text if contract is None else f"{text}, contract {count(contract)}"


def _utilization(state: EngineState) -> str | None:
    """Return what is asked for and what may be; ranks that agree say it once."""
    ledger = state.ledger
    if ledger is None or not ledger.ranks:
        return None
    ranks = ledger.ranks.items()
    asked = _by_rank({name: _share(rank, ledger.utilization_ratio) for name, rank in ranks})
    default = ledger.utilization is not None and ledger.utilization.source == "default"
    told = f"{asked.strip()} (not given: the version's default)" if default else asked.strip()
    return f"{told}; limit{_by_rank({name: _limit(rank) for name, rank in ranks})}"


def _pending(state: EngineState) -> str | None:
    """Return which flags the next start would change; nothing where it would change none or that is not known."""
    flags = state.pending.flags if state.pending is not None else None
    return ", ".join(flags) if flags else None


def _by_rank(texts: dict[str, str]) -> str:
    first = next(iter(texts.values()))
    if all(text == first for text in texts.values()):
        return f" {first}"
    return ",".join(f" of rank {name}: {text}" for name, text in texts.items())


def _share(rank: RankLedger, asked: float | None) -> str:
    share = utilization_of(rank, asked)
    return NOTHING if share is None else ratio(share)


def _limit(rank: RankLedger) -> str:
    limit = rank.limit
    if limit is None:
        return "unknown"
    rounded = f" (printed: {ratio(limit.low)} to {ratio(limit.high)})" if limit.low < limit.high else ""
    return ratio(limit.ratio) + rounded


def _host(state: EngineState) -> str | None:
    terms = () if state.ledger is None else state.ledger.host
    return ", ".join(f"{term.name} {gib_text(term.bytes)} ({term.source})" for term in terms) or None


def flags(state: EngineState) -> Html | None:
    """Return the budget flags, and the environment that counts, as they were given; folded."""
    if state.shape is None:
        return None
    given = [_typed(flag, value) for flag, value in shown(state.shape.given).items()]
    given += [f"{name}={value}" for name, value in sorted(shown(state.shape.environ).items())]
    if not given:
        return None
    items = [tag("li", tag("code", text)) for text in given]
    return tag("details", tag("summary", "Budget flags and environment as given"), tag("ul", *items, class_="flags"))


def _typed(flag: str, value: str) -> str:
    """Return a flag so that it can be copied; of a switch only its word was kept."""
    if value in {"true", "false"}:
        return f"--{flag}" if value == "true" else f"--no-{flag}"
    return f"--{flag} {value}".strip()
