"""The figures of one boot, kept by the process that printed them until its rank is known."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from budget_exporter.evidence.arguments_line import without_credentials
from budget_exporter.evidence.derived import derived
from budget_exporter.evidence.records import Writer
from budget_exporter.evidence.statements import BootFact, PlanFact, RankFact, Statement
from budget_exporter.facts.boot import BootReport, Chips, GraphProfile, Plan, Printed, RankFacts

__all__ = ["Collected"]

_Value = Printed | int | float | GraphProfile
_RANK_FIELDS = frozenset(each.name for each in fields(RankFacts))
_NAMED = (
    "version",
    "release",
    "model",
    "architecture",
    "core",
    "device_type",
    "kv_tokens",
    "kv_concurrency",
    "max_model_len",
    "model_runner",
    "graphs",
    "prompt_buckets",
    "decode_buckets",
)
_CHIPS = ("limit", "requested", "used", "available")
_SMALLEST = ("kv_tokens", "kv_concurrency")
"""Printed once per worker up to vLLM 0.11.0, each with its own number: the smallest is what the engine has."""


@dataclass(slots=True)
class _Process:
    writer: Writer
    facts: dict[str, _Value] = field(default_factory=dict)
    plan: dict[str, _Value] = field(default_factory=dict)


@dataclass(slots=True)
class Collected:
    """
    Facts of one boot as they come in.

    ``base`` is what is already known of the same boot (kept across a restart of the exporter); new facts lie over it.
    """

    base: BootReport = field(default_factory=BootReport)
    said: dict[str, Any] = field(default_factory=dict)
    processes: dict[Hashable, _Process] = field(default_factory=dict)
    names: dict[int, Writer] = field(default_factory=dict)
    """Newest name by PID: a runtime's own lines have only the PID."""
    ranks: dict[int, int] = field(default_factory=dict)
    """Rank by PID, from the lines that state it: names change while an engine boots."""

    def add(self, writer: Writer, statement: Statement) -> None:
        """Keep one statement of ``writer``."""
        if isinstance(statement, BootFact):
            self._boot_fact(statement)
        elif isinstance(statement, RankFact) and statement.name == "rank":
            if writer.pid is not None and isinstance(statement.value, int):
                self.ranks[writer.pid] = statement.value
        elif isinstance(statement, RankFact | PlanFact):
            self._figure(writer, statement)

    def seen(self, writer: Writer) -> None:
        """Remember the newest name of a process."""
        if writer.pid is not None and writer.process:
            self.names[writer.pid] = writer
            if writer.pid in self.processes:
                self.processes[writer.pid].writer = writer

    def forget_captures(self) -> None:
        """Drop graph captures: what was captured before the KV pool was sized was the profiler's (V2 runner, 0.29+)."""
        for process in self.processes.values():
            process.facts.pop("graph_capture", None)

    def forget_ranks(self) -> None:
        """Drop what the ranks said: their engine core was started anew within the boot."""
        self.processes.clear()
        self.ranks.clear()
        self.base = BootReport(version=self.base.version, release=self.base.release, args=self.base.args)
        for name in ("kv_tokens", "kv_concurrency", "graphs", "graph_charge_applied"):
            self.said.pop(name, None)

    def rank_of(self, writer: Writer) -> int | None:
        """Return the global rank of a process, or None where its name and lines do not tell."""
        if writer.pid in self.ranks:
            return self.ranks[writer.pid]
        if writer.rank is not None:
            return writer.rank
        if not writer.process and writer.pid in self.names:
            writer = self.names[writer.pid]
        groups = writer.groups
        if not groups.keys() & {"TP", "PP", "DP"} or groups.get("PCP"):
            return None
        if not writer.process.startswith(("Worker", "VllmWorker")) and any(
            "Worker" in process.writer.process for process in self.processes.values()
        ):
            return None
        return self._global_rank(groups)

    def _global_rank(self, groups: Mapping[str, int]) -> int | None:
        """Return ``(dp * pp_size + pp) * tp_size + tp`` (vLLM: TP is the fastest dimension); a part is named if > 1."""
        tensor = self._size("tp", "tensor_parallel_size") if "TP" in groups else 1
        pipeline = self._size("pp", "pipeline_parallel_size") if "PP" in groups else 1
        rank, outer = groups.get("TP", 0), groups.get("PP", 0)
        data = groups.get("DP", 0)
        if (outer and tensor is None) or (data and (tensor is None or pipeline is None)):
            return None
        return (data * (pipeline or 1) + outer) * (tensor or 1) + rank

    def _size(self, said: str, argument: str) -> int | None:
        if said in self.said:
            return int(self.said[said])
        args: Mapping[str, str] | None = self.said.get("args", self.base.args or None)
        if args is None:
            return None
        return int(args[argument]) if args.get(argument, "1").isdigit() and argument in args else 1

    def _boot_fact(self, fact: BootFact) -> None:
        known = self.said.get(fact.name)
        if fact.name in _SMALLEST and known is not None:
            self.said[fact.name] = min(known, fact.value)
        else:
            self.said[fact.name] = fact.value

    def _figure(self, writer: Writer, statement: RankFact | PlanFact) -> None:
        if isinstance(statement, RankFact) and statement.rank is not None:
            if self.rank_of(writer):
                # One of several processes with devices of its own: how many the others have is not known.
                return
            writer = Writer(rank=statement.rank)
        process = self._process(writer)
        known = process.plan if isinstance(statement, PlanFact) else process.facts
        known[statement.name] = _newer(known.get(statement.name), statement.value)

    def _process(self, writer: Writer) -> _Process:
        key: Hashable = writer.pid if writer.pid is not None else ("rank", self.rank_of(writer))
        return self.processes.setdefault(key, _Process(writer))

    def facts(self) -> tuple[RankFacts, dict[int, RankFacts]]:
        """Return the facts without a rank and those by rank; what two processes of a rank disagree on is dropped."""
        grouped: dict[int | None, list[_Process]] = {}
        for process in self.processes.values():
            grouped.setdefault(self.rank_of(process.writer), []).append(process)
        made = {rank: self._rank_facts(processes, self._known(rank)) for rank, processes in grouped.items()}
        common = made.pop(None, RankFacts()).over(self.base.common)
        ranks = {rank: facts for rank, facts in made.items() if rank is not None}
        for rank, facts in self.base.ranks.items():
            ranks[rank] = ranks[rank].over(facts) if rank in ranks else facts
        return common, ranks

    def _known(self, rank: int | None) -> RankFacts:
        """Return what was known of a rank before; of lines that named no rank what was known of those."""
        return self.base.common if rank is None else self.base.ranks.get(rank, RankFacts())

    def _rank_facts(self, processes: Iterable[_Process], known_before: RankFacts) -> RankFacts:
        found = list(processes)
        facts = _agreed([process.facts for process in found])
        plan = _agreed([process.plan for process in found])
        facts |= derived(facts)
        available = _kv_available(facts, known_before)
        if available is not None:
            facts["kv_available"] = available
        if "graph_capture" not in facts and "graph_pool" in facts:
            facts["graph_capture"] = facts["graph_pool"]
        activation = self._activation(facts)
        if activation is not None:
            facts["activation"] = activation
        known: dict[str, Any] = {name: value for name, value in facts.items() if name in _RANK_FIELDS}
        return RankFacts(**known, plan=Plan(**plan) if plan else None)  # type: ignore[arg-type]

    def _activation(self, facts: Mapping[str, _Value]) -> _Value | None:
        """
        Return the activation peak without the graph estimate.

        The suggestion line of vLLM 0.18 and of 0.27 and later prints the peak with the charged estimate in it
        (``compile_or_warm_up_model``); the other releases print the peak alone.
        """
        if "activation" in facts:
            return facts["activation"]
        old = str(self.said.get("version", "")).startswith("0.18.")
        if "activation_suggested" in facts and not old:
            return facts["activation_suggested"]
        printed = facts.get("activation_suggested" if old else "activation_and_estimate")
        if not self.said.get("graph_charge_applied") or printed is None:
            return printed
        estimate = facts.get("graph_estimate")
        if not isinstance(estimate, Printed) or not isinstance(printed, Printed):
            return None
        return Printed(printed.bytes - estimate.bytes, printed.rounding + estimate.rounding)

    def fields(self) -> dict[str, Any]:
        """Return the fields of a BootReport that belong to the engine as a whole."""
        args = {k: without_credentials(v) for k, v in (self.said.get("args") or self.base.args).items()}
        made: dict[str, Any] = {name: self.said.get(name, getattr(self.base, name)) for name in _NAMED}
        model = self.said.get("model") or args.get("model") or self.base.model
        made["model"] = None if model is None else without_credentials(model)
        for name in ("graph_charge_applied", "ple_locked", "ple_not_locked"):
            made[name] = self.said.get(name, getattr(self.base, name))
        made["args"] = args
        chips = {name: self.said["chips_" + name] for name in _CHIPS if "chips_" + name in self.said}
        made["chips"] = Chips(**chips) if chips else self.base.chips
        made["common"], made["ranks"] = self.facts()
        if made["graph_charge_applied"] is None and _plan_charges((made["common"], *made["ranks"].values())):
            made["graph_charge_applied"] = True
        return made


def _plan_charges(facts: Iterable[RankFacts]) -> bool:
    """Tell whether an expert-offload plan was printed with a graph row: the plan is the charge."""
    return any(each.plan is not None and each.plan.cuda_graphs is not None for each in facts)


def _kv_available(facts: Mapping[str, _Value], before: RankFacts) -> _Value | None:
    """
    Return the KV pool after what is reserved for multimodal decoding.

    The lines of what is available and of what is in use both tell the pool before it (vLLM 0.25 and later,
    ``determine_available_memory``); only the line of the reservation itself tells what is left.
    """
    if "kv_reduced" in facts:
        return facts["kv_reduced"]
    whole = facts.get("kv_available", facts.get("kv_in_use"))
    reserved = facts.get("multimodal", before.multimodal)
    if not isinstance(whole, Printed) or not isinstance(reserved, Printed):
        return whole
    return Printed(whole.bytes - reserved.bytes, whole.rounding + reserved.rounding)


def _compatible(one: _Value, other: _Value) -> bool:
    if isinstance(one, Printed) and isinstance(other, Printed):
        return abs(one.bytes - other.bytes) <= one.rounding + other.rounding
    return one == other


def _newer(known: _Value | None, new: _Value) -> _Value:
    """Return the newer of two values, or the finer where both round the same size."""
    if isinstance(known, Printed) and isinstance(new, Printed):
        return known if _compatible(known, new) and known.rounding < new.rounding else new
    return new


def _agreed(said: list[dict[str, _Value]]) -> dict[str, _Value]:
    agreed: dict[str, _Value] = {}
    refused: set[str] = set()
    for facts in said:
        for name, value in facts.items():
            if name in agreed and not _compatible(agreed[name], value):
                refused.add(name)
            agreed[name] = _newer(agreed.get(name), value)
    return {name: value for name, value in agreed.items() if name not in refused}
