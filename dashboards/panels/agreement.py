"""Does the model agree with the engine?"""

from __future__ import annotations

from dashboards.expressions import SHAPE, SHAPE_LABELS
from dashboards.palette import BYTES, COUNT, RANK
from dashboards.parts import Q, Row, lines, stat
from dashboards.tables import stack, table

__all__ = ["ledger", "row"]


def ledger() -> str:
    """
    Return every part of the request by (place, component): the charges, and the arena or else the KV pool.

    With an expert-offload engine the KV pool is allocated out of kv_reserve and is no part of its own.
    """
    arena = f"budget_model_arena_bytes{{{SHAPE}}}"
    pool = f"budget_model_kv_pool_bytes{{{SHAPE}}} unless on ({SHAPE_LABELS}) {arena}"
    parts = (
        f"budget_model_charge_bytes{{{SHAPE}}}"
        f' or label_replace({arena}, "component", "arena", "", "")'
        f' or label_replace({pool}, "component", "kv_pool", "", "")'
    )
    return f'label_join(max by (instance, rank, component) ({parts}), "place", " rank ", "instance", "rank")'


def row() -> Row:
    """Show the budget law's figures beside the engine's own and the device's."""
    # The info is the many side: a component that is made of two terms has two sources.
    model_charge = (
        f"budget_model_charge_info{{{SHAPE}}}"
        f" * on ({SHAPE_LABELS}, component) group_left () budget_model_charge_bytes{{{SHAPE}}}"
    )
    graphs = f'{{{SHAPE}, component="cuda_graphs"}}'
    return Row(
        "Does the model agree with the engine?",
        [
            stack(
                "Ledger: the request and its parts",
                "What each rank's flags request, split by the budget law; the parts sum to the request. Too little "
                "room: the widest part that has a lever is the one to turn. A bar that ends short of its neighbours "
                "has a part that nobody knows yet.",
                Q(ledger()),
                span=12,
            ),
            table(
                "Charges: model and engine",
                "The law's charge beside the engine's own figure, and where the model's came from. They differ by more "
                "than rounding: distrust the margin until the registry or the flags explain it. Source 'log' means "
                "that the model took the engine's word, so agreement proves nothing.",
                {
                    "instance": "Instance",
                    "rank": "Rank",
                    "component": "Component",
                    "source": "Source",
                    "Value #A": "Model",
                    "Value #B": "Engine",
                },
                [
                    Q(f"max by (instance, rank, component, source) ({model_charge})"),
                    # Where the engine said nothing a query without an answer would take the other's column along.
                    Q(
                        f"max by (instance, rank, component) (budget_reported_charge_bytes{{{SHAPE}}})"
                        f" or NaN * max by (instance, rank, component) (budget_model_charge_bytes{{{SHAPE}}})"
                    ),
                ],
                units={"Model": BYTES, "Engine": BYTES},
                span=12,
                height=9,
                sort=("Model", True),
            ),
            lines(
                "Graph charge and capture",
                "What the budget charges for graphs, what capture took, and the drift between them. Drift above zero "
                "comes out of the margin: raise the charge to the suggested one. Far below zero: the charge holds "
                "memory that could be pool. Negative captures are real.",
                [
                    Q(f"budget_model_charge_bytes{graphs}", f"charge {RANK}"),
                    Q(f"budget_reported_graph_capture_bytes{{{SHAPE}}}", f"capture {RANK}"),
                    Q(f"budget_graph_drift_bytes{{{SHAPE}}}", f"drift {RANK}"),
                    Q(
                        f"max by (instance) (budget_engine_graph_charge_suggested_bytes{{{SHAPE}}})",
                        "suggested {{instance}}",
                    ),
                ],
                unit=BYTES,
                span=8,
                steps=True,
            ),
            lines(
                "KV pool against contract",
                "Tokens the KV pool holds by the engine's and the model's figure, what the operator promised, and what "
                "the engine needs to start. Below contract: users queue or are preempted. Near the minimum: the next "
                "start may be refused.",
                [
                    Q(f"budget_reported_kv_pool_tokens{{{SHAPE}}}", "engine {{instance}}"),
                    Q(f"budget_model_kv_pool_tokens{{{SHAPE}}}", "model {{instance}}"),
                    Q(f"budget_kv_contract_tokens{{{SHAPE}}}", "contract {{instance}}"),
                    Q(f"budget_kv_min_tokens{{{SHAPE}}}", "minimum {{instance}}"),
                ],
                unit=COUNT,
                span=8,
                steps=True,
            ),
            lines(
                "Predicted margin and estimator gap",
                "Margin the law predicts, and measured free memory minus the plan's. A negative margin does not fit on "
                "paper. A gap that stays below zero is memory no flag reaches (driver, context): plan with it.",
                [
                    Q(f"budget_model_margin_bytes{{{SHAPE}}}", f"predicted {RANK}"),
                    Q(f"budget_estimator_gap_bytes{{{SHAPE}}}", f"gap {RANK}"),
                ],
                unit=BYTES,
                span=8,
            ),
            lines(
                "Utilization against its limit",
                "Share of the device that the flags request, and the largest share the law lets them. Above the limit: "
                "the engine refuses to start, now or at the next restart. Lower utilization below the dashed line.",
                [
                    Q(f"budget_engine_memory_utilization_ratio{{{SHAPE}}}", RANK),
                    Q(f"budget_law_utilization_limit_ratio{{{SHAPE}}}", f"limit {RANK}"),
                ],
                unit="percentunit",
                span=8,
                soft_max=1,
                steps=True,
            ),
            lines(
                "Arena slots",
                "Whole experts that fit the arena, by the model and by the engine (expert-offload engines only). More "
                "than a few slots apart: the registry's constants do not fit this release; re-fit before trusting the "
                "next shape's prediction.",
                [
                    Q(f"budget_model_arena_slots{{{SHAPE}}}", f"model {RANK}"),
                    Q(f"budget_reported_arena_slots{{{SHAPE}}}", f"engine {RANK}"),
                ],
                unit=COUNT,
                span=8,
                from_zero=False,
                steps=True,
            ),
            stat(
                "Price of a token",
                "Bytes of KV a token costs by where the figure comes from: registry, geometry, measured. Registry far "
                "from measured: the reserve is sized with a wrong price; correct the registry entry.",
                Q(f"max by (instance, source) (budget_kv_bytes_per_token{{{SHAPE}}})", "{{source}} on {{instance}}"),
                unit=BYTES,
                span=8,
                height=9,
                decimals=2,
                size=28,
            ),
        ],
    )
