"""What is the same in every panel: the datasource, units, legends and colours."""

from __future__ import annotations

from collections.abc import Mapping

from grafana_foundation_sdk.models.dashboard import DataSourceRef

__all__ = ["BYTES", "COMPONENT_COLOURS", "COUNT", "DATASOURCE", "LINE_STYLES", "RANK", "TEXT"]

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
BYTES = "bytes"
"""Grafana's id of IEC bytes: it prints GiB, not GB."""
COUNT = "locale"
"""Whole figures with every digit: 200,704 tokens, not 201 K."""
TEXT = "string"
"""Labels: a figure in a label is shown as it was typed."""
RANK = "rank {{rank}} on {{instance}}"
"""Legend of a rank; what differs comes first, since Grafana cuts the end off."""

COMPONENT_COLOURS: Mapping[str, str] = {
    "weights": "#3274D9",
    "consumed": "#1F60C4",
    "multimodal": "#8AB8FF",
    "activation": "#B877D9",
    "non_torch": "#6E7687",
    "runtime_overhead": "#E0B400",
    "graph_reserve": "#FFB357",
    "cuda_graphs": "#FF780A",
    "headroom": "#FFEE52",
    "dummy_block": "#C4C7D0",
    "kv_reserve": "#56A64B",
    "kv_pool": "#37872D",
    "arena": "#5BB8C9",
}
"""Every component of the catalogue and the two pools, each in one colour wherever it is drawn, in stack order."""

LINE_STYLES: Mapping[str, tuple[str, bool]] = {
    "critical floor": ("red", True),
    "warning floor": ("orange", True),
    "size": ("#8E8E8E", True),
    "requested": ("purple", True),
    "limit": ("red", True),
    "contract": ("orange", True),
    "minimum": ("red", True),
    "suggested": ("red", True),
    "model": ("blue", False),
    "engine": ("green", False),
    "charge": ("orange", False),
    "capture": ("blue", False),
    "drift": ("purple", False),
    "high water": ("blue", False),
    "peak": ("yellow", False),
    "predicted": ("blue", False),
    "gap": ("purple", False),
}
"""
First words of a legend that mean the same in every panel, to (colour, dashed).

Dashes are limits, whole lines are found or reckoned. Ranks and hosts are shades of the colour.
"""
