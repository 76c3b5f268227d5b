"""Panels of instant figures: tables, and the ledger as stacked bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grafana_foundation_sdk.builders import (
    barchart,
    common as common_builder,
    table as table_builder,
)
from grafana_foundation_sdk.models import common, dashboard as model

from dashboards.palette import BYTES, COMPONENT_COLOURS, DATASOURCE, TEXT
from dashboards.parts import Q, fixed, target

__all__ = ["stack", "table"]


_UNKNOWN = model.DynamicConfigValue(
    id_val="mappings", value=[{"type": "special", "options": {"match": "nan", "result": {"text": "-"}}}]
)
"""A figure that nobody knows is a dash."""


def table(
    title: str,
    description: str,
    columns: Mapping[str, str],
    queries: Sequence[Q],
    *,
    units: Mapping[str, str],
    span: int,
    height: int = 7,
    sort: tuple[str, bool] | None = None,
    words: Mapping[str, Mapping[int, tuple[str, str]]] | None = None,
) -> table_builder.Panel:
    """
    Show instant queries as one table, a row for each set of labels they share.

    ``columns`` maps label or ``Value #A`` to its heading, in order; what it does not name is left out. Every figure has
    its unit in ``units`` or its words in ``words``, by heading; ``sort`` is (heading, descending).
    """
    panel = (
        table_builder.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(span)
        .height(height)
        .unit(TEXT)
        .no_value("-")
        .targets([target(query, number, "table") for number, query in enumerate(queries)])
        .with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            model.DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": list(columns)}})
        )
        .with_transformation(
            model.DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {},
                    "indexByName": {name: place for place, name in enumerate(columns)},
                    "renameByName": dict(columns),
                },
            )
        )
    )
    for heading, unit in units.items():
        panel = panel.override_by_name(heading, [model.DynamicConfigValue(id_val="unit", value=unit), _UNKNOWN])
    for heading, mapping in (words or {}).items():
        panel = panel.override_by_name(heading, _coloured(mapping))
    if sort:
        panel = panel.sort_by([common_builder.TableSortByFieldState().display_name(sort[0]).desc(sort[1])])
    return panel


def _coloured(words: Mapping[int, tuple[str, str]]) -> list[model.DynamicConfigValue]:
    options = {str(value): {"text": text, "color": colour} for value, (text, colour) in words.items()}
    return [
        model.DynamicConfigValue(id_val="mappings", value=[{"type": "value", "options": options}]),
        model.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}),
    ]


def stack(title: str, description: str, query: Q, *, span: int, height: int = 9) -> barchart.Panel:
    """
    Draw a bar per ``place``, stacked by ``component``.

    A bar chart and not a stack over time: on several hosts an engine's ranks share their labels but for the instance,
    and a stack over time would add them up to a figure that no device holds.
    """
    panel = (
        barchart.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(span)
        .height(height)
        .unit(BYTES)
        .decimals(2)
        .orientation(common.VizOrientation.HORIZONTAL)
        .stacking(common.StackingMode.NORMAL)
        .show_value(common.VisibilityMode.NEVER)
        .bar_width(0.8)
        .fill_opacity(85)
        .line_width(0)
        .legend(
            common_builder.VizLegendOptions()
            .show_legend(show_legend=True)
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .calcs(["lastNotNull"])
        )
        .tooltip(common_builder.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.NONE))
        .targets([target(query, 0, "table")])
        .with_transformation(
            model.DataTransformerConfig(
                id_val="groupingToMatrix",
                options={"columnField": "component", "rowField": "place", "valueField": "Value", "emptyValue": "null"},
            )
        )
        .with_transformation(
            model.DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {},
                    "indexByName": {name: place for place, name in enumerate(["place\\component", *COMPONENT_COLOURS])},
                    "renameByName": {},
                },
            )
        )
    )
    for component, colour in COMPONENT_COLOURS.items():
        panel = panel.override_by_name(component, [fixed(colour)])
    return panel
