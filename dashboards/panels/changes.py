"""What changed?"""

from __future__ import annotations

from dashboards.expressions import HOST, SHAPE, by_rank
from dashboards.palette import BYTES, COUNT, RANK
from dashboards.parts import Q, Row, lines
from dashboards.tables import table

__all__ = ["row"]

HOLDS = {1: ("holds", "red"), 0: ("no", "green")}
# A finding may be as harmless as a price that is known better by now: it asks to be read, not to be mended at once.
FOUND = {1: ("holds", "orange"), 0: ("no", "green")}


def row() -> Row:
    """Show restarts, deaths by cause, the flags in force and whatever holds of the engine."""
    flags = (
        "gpu_memory_utilization, kv_cache_dtype, block_size, max_model_len, max_num_seqs, tensor_parallel_size, "
        "kv_cache_memory_bytes"
    )
    return Row(
        "What changed?",
        [
            lines(
                "Restarts over time",
                "Restarts counted since the exporter first saw the engine; each step is one. Several steps in an hour: "
                "a crash loop. Stop it before it wears out the supervisor's limit, and read the last failure.",
                [Q(f"max by (instance) (budget_engine_restarts_total{{{SHAPE}}})", "restarts {{instance}}")],
                unit=COUNT,
                span=8,
                soft_max=4,
                steps=True,
            ),
            table(
                "Failures by cause",
                "Deaths of the engine by cause. Anything but not_memory is a budget that did not hold: the cause names "
                "the step that ran out, and the ledger shows which part of the request to lower.",
                {"instance": "Instance", "cause": "Cause", "Value": "Deaths"},
                [Q(f"max by (instance, cause) (budget_engine_failures_total{{{SHAPE}}})")],
                units={"Deaths": COUNT},
                span=8,
                height=9,
                sort=("Deaths", True),
            ),
            lines(
                "Free at init",
                "Free device memory at the engine's first snapshot, boot by boot, and whether it was printed or "
                "measured. A fall from boot to boot: something else holds the device (a zombie, another tenant), and "
                "the utilization limit falls with it.",
                [
                    Q(f"budget_engine_free_at_init_bytes{{{SHAPE}}}", f"{{{{source}}}} {RANK}"),
                    Q(by_rank(f"budget_device_memory_size_bytes{{{HOST}}}"), f"size {RANK}"),
                ],
                unit=BYTES,
                span=8,
                from_zero=False,
                steps=True,
            ),
            table(
                "Flags in force",
                "Budget flags of the running process as given; an empty cell is the engine's default. Not what the "
                "unit or compose file says: somebody changed it, and the next restart brings another budget.",
                {
                    "instance": "Instance",
                    "gpu_memory_utilization": "Utilization",
                    "max_model_len": "Max model len",
                    "max_num_seqs": "Max seqs",
                    "kv_cache_dtype": "KV dtype",
                    "kv_cache_memory_bytes": "KV bytes",
                    "block_size": "Block",
                    "tensor_parallel_size": "TP",
                },
                [Q(f"max by (instance, {flags}) (budget_engine_flags_info{{{SHAPE}}})")],
                units={},
                span=14,
                height=5,
            ),
            table(
                "Law in force",
                "Budget law applied, and the engine's version it was chosen for. Assumed true: flavour or version is "
                "not known to the exporter, so every model figure is a guess; update the exporter or name the version.",
                {"instance": "Instance", "law": "Law", "version": "Version", "assumed": "Assumed"},
                [Q(f"max by (instance, law, version, assumed) (budget_law_info{{{SHAPE}}})")],
                units={},
                span=10,
                height=5,
            ),
            table(
                "Knife edge by reason",
                "Reasons for which the shape may not survive a request; a reason that cannot be evaluated is not "
                "listed. Red: each reason has its lever (utilization, contract, graph charge); turn that one.",
                {"instance": "Instance", "reason": "Reason", "Value": "State"},
                [Q(f"max by (instance, reason) (budget_engine_knife_edge{{{SHAPE}}})")],
                units={},
                span=8,
                height=8,
                sort=("State", True),
                words={"State": HOLDS},
            ),
            table(
                "Findings",
                "What plan, engine's words and measurement say when compared. Orange: the finding holds; the page of "
                "the exporter says it in a sentence with its figures, and the runbook of its alert says what to turn.",
                {"instance": "Instance", "finding": "Finding", "Value": "State"},
                [Q(f"max by (instance, finding) (budget_engine_finding{{{SHAPE}}})")],
                units={},
                span=8,
                height=8,
                sort=("State", True),
                words={"State": FOUND},
            ),
            table(
                "Last failure",
                "How the engine last died: phase, cause, what it tried to allocate and what was free. Tried far above "
                "free: the shape is too large. Tried of a few MiB with nothing free: no margin was left. Empty: it has "
                "not failed since the exporter first saw it.",
                {
                    "instance": "Instance",
                    "phase": "Phase",
                    "cause": "Cause",
                    "rank": "Rank",
                    "Value #B": "Tried",
                    "Value #C": "Free",
                    "Value #D": "When",
                },
                [
                    Q(f"max by (instance, phase, cause, rank) (budget_engine_last_failure_info{{{SHAPE}}})"),
                    Q(f"max by (instance) (budget_engine_last_failure_tried_bytes{{{SHAPE}}})"),
                    Q(f"max by (instance) (budget_engine_last_failure_free_bytes{{{SHAPE}}})"),
                    Q(f"1000 * max by (instance) (budget_engine_last_failure_timestamp_seconds{{{SHAPE}}})"),
                ],
                units={"Tried": BYTES, "Free": BYTES, "When": "dateTimeFromNow"},
                span=8,
                height=8,
            ),
        ],
    )
