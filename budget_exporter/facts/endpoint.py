"""What the engine's own endpoint says: whether it is well, and the KV cache as its metrics have it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from budget_exporter.facts.boot import BootReport

HealthState = Literal["ok", "unavailable", "refused", "timeout", "unknown"]
HEALTH_STATES: tuple[HealthState, ...] = ("ok", "unavailable", "refused", "timeout", "unknown")


@dataclass(frozen=True, slots=True)
class Answer:
    """
    One answer of ``/health``.

    ``unavailable`` is the engine's own word that its core is dead behind a server that still answers, ``refused`` that
    nobody listens, ``timeout`` that nobody answered in time. Where none of them can be told it is ``unknown`` and
    ``why`` says so.
    """

    health: HealthState = "unknown"
    why: str = ""


@dataclass(frozen=True, slots=True)
class EndpointFacts:
    """
    What the engine's metrics and its list of models say; None where they do not.

    With data parallelism each replica is an engine of its own in the metrics. Tokens, concurrency and bytes are those
    of one replica (the smallest), blocks those of all of them together.
    """

    replicas: int = 0
    """How many engines the metrics tell of."""
    version: str | None = None
    max_model_len: int | None = None
    kv_blocks: int | None = None
    kv_tokens: int | None = None
    kv_concurrency: float | None = None
    kv_bytes: int | None = None
    """Size of the KV pool per rank, where it was given and not measured."""
    block_size: int | None = None
    kv_usage: float | None = None
    """Used share of the KV pool of the fullest replica."""
    running: int | None = None
    """Requests being worked on, of all replicas."""
    waiting: int | None = None
    asleep: bool | None = None

    @property
    def complete(self) -> bool:
        """Return whether all is known that does not change while the engine runs."""
        return self.kv_blocks is not None and self.version is not None

    def quiet(self) -> EndpointFacts:
        """Return these facts without those that change while the engine runs."""
        return replace(self, kv_usage=None, running=None, waiting=None, asleep=None)


@dataclass(frozen=True, slots=True)
class EndpointState:
    """What is known of an engine's endpoint now."""

    health: HealthState = "unknown"
    why: str = ""
    since: float | None = None
    """Unix time since which ``health`` is what it is; None where nobody has asked."""
    facts: EndpointFacts | None = None
    told_at: float | None = None
    """Unix time of the newest ``facts``."""


def heard(report: BootReport | None, facts: EndpointFacts | None) -> BootReport | None:
    """
    Return ``report`` with what the endpoint knows as well or better.

    Of the pool the endpoint has whole numbers where the log may be cut, rounded or of another start; of the version the
    log knows more, since a fork prints its own there.
    """
    if facts is None:
        return report
    base = report or BootReport()
    return replace(
        base,
        version=base.version or facts.version,
        kv_tokens=base.kv_tokens if facts.kv_tokens is None else facts.kv_tokens,
        kv_concurrency=base.kv_concurrency if facts.kv_concurrency is None else facts.kv_concurrency,
        max_model_len=base.max_model_len if facts.max_model_len is None else facts.max_model_len,
    )


def disagreements(report: BootReport | None, facts: EndpointFacts | None) -> tuple[str, ...]:
    """Return a sentence for each figure of which the engine's log and its endpoint say different things."""
    if report is None or facts is None:
        return ()
    pairs = (
        ("tokens in the KV pool", report.kv_tokens, facts.kv_tokens),
        ("tokens in the longest sequence", report.max_model_len, facts.max_model_len),
    )
    return tuple(
        f"{what}: {there:,} by the engine's endpoint, {printed:,} by its log"
        for what, printed, there in pairs
        if printed is not None and there is not None and printed != there
    )
