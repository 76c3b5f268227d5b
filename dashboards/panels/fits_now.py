"""Does it fit now?"""

from __future__ import annotations

from dashboards.expressions import HOST, SHAPE, by_rank, floor, margin_now, state
from dashboards.palette import BYTES, RANK
from dashboards.parts import Q, Row, lines, stat, states

__all__ = ["FIT_WORDS", "FLOORS", "row"]

FIT_WORDS = {0: ("fits", "green"), 1: ("below warning", "orange"), 2: ("below critical", "red")}
FLOORS = Q(f"max by (instance, severity) ({floor()})", "{{severity}} floor {{instance}}")


def row() -> Row:
    """Show what is left on each rank's device at the newest sample, and what the engine is doing."""
    return Row(
        "Does it fit now?",
        [
            states(
                "Fits now",
                "Margin of the newest sample against the engine's floors. Red: the next allocation outside the KV pool "
                "is likely to fail. Take load off, then lower utilization, max_num_seqs or max_model_len; look below "
                "for which part of the request is too large.",
                Q(state(margin_now()), RANK),
                FIT_WORDS,
                span=6,
            ),
            stat(
                "Margin now",
                "Bytes left on the rank's device at the newest sample, whoever holds the rest. Below a floor: see "
                "'Fits now'. Far from the margin at high water: the peak is over but will come again.",
                Q(margin_now(), RANK),
                unit=BYTES,
                span=6,
                spark=True,
                decimals=2,
            ),
            states(
                "Engine",
                "Whether an expected engine has a running main process. Red: look at 'What changed?' for phase and "
                "cause of the last failure, then at the engine's own log. No data: the engine is not expected to run.",
                Q(f"max by (instance) (budget_engine_up{{{SHAPE}}})", "{{instance}}"),
                {1: ("up", "green"), 0: ("down", "red")},
                span=3,
            ),
            stat(
                "Phase",
                "What the engine is doing. A boot phase that lasts longer than usual is a start that hangs; failing "
                "means that the engine has printed a fatal memory error: read 'Last failure'.",
                Q(f"budget_engine_phase{{{SHAPE}}} == 1", "{{phase}} on {{instance}}"),
                unit="short",
                span=3,
                names_only=True,
            ),
            states(
                "Knife edge",
                "Whether the shape boots but may not survive a request, by any reason. Red: 'What changed?' lists the "
                "reasons; give the shape more room before the next restart or the next long prompt does it for you.",
                Q(f"max by (instance) (budget_engine_knife_edge{{{SHAPE}}})", "{{instance}}"),
                {0: ("no", "green"), 1: ("knife edge", "red")},
                span=3,
            ),
            stat(
                "Restarts",
                "Restarts of the engine seen since the exporter first saw it, whatever the cause. A figure that grows "
                "while nobody deploys is a crash loop: read 'Last failure' before the log rotates.",
                Q(f"max by (instance) (budget_engine_restarts_total{{{SHAPE}}})", "{{instance}}"),
                unit="short",
                span=3,
                decimals=0,
            ),
            lines(
                "Margin over time",
                "Bytes left per rank, with the engine's floors as dashed lines. A line that nears a floor under load "
                "and stays there is a shape without room; one that falls slowly without load is a leak.",
                [Q(margin_now(), RANK), FLOORS],
                unit=BYTES,
                span=12,
            ),
            lines(
                "Device memory in use",
                "Use by all clients of the rank's device, what the flags request, and the size. Use above requested "
                "is memory that the budget does not know of: driver, context, graphs beyond their charge, other "
                "processes.",
                [
                    Q(by_rank(f"budget_device_memory_used_bytes{{{HOST}}}"), RANK),
                    Q(f"budget_model_requested_bytes{{{SHAPE}}}", f"requested {RANK}"),
                    Q(by_rank(f"budget_device_memory_size_bytes{{{HOST}}}"), f"size {RANK}"),
                ],
                unit=BYTES,
                span=12,
                from_zero=False,
            ),
            lines(
                "Whose memory it is",
                "What the rank's own processes hold of its device, what processes of no known engine hold, and what no "
                "visible process accounts for (the driver, mostly). The rank's own line rises while load does not: a "
                "leak. A foreign line above zero: the exporter's page names the processes; end them or give them room.",
                [
                    Q(f"budget_rank_memory_used_bytes{{{SHAPE}}}", f"own {RANK}"),
                    Q(by_rank(f"budget_device_foreign_memory_bytes{{{HOST}}}"), f"foreign {RANK}"),
                    Q(by_rank(f"budget_device_unattributed_memory_bytes{{{HOST}}}"), f"nobody's {RANK}"),
                ],
                unit=BYTES,
                span=24,
            ),
        ],
    )
