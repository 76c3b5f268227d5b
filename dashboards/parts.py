"""Panels as this project draws them: lines, figures and states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from grafana_foundation_sdk.builders import (
    barchart,
    common as common_builder,
    dashboard as dashboard_builder,
    prometheus,
    stat as stat_builder,
    table as table_builder,
    timeseries,
)
from grafana_foundation_sdk.models import common, dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.palette import DATASOURCE, LINE_STYLES

__all__ = ["Builder", "Q", "Row", "fixed", "lines", "stat", "states", "target"]

WIDE = 12
"""Columns from which a legend has room for more than the latest figure."""

Builder = dashboard_builder.Panel | stat_builder.Panel | timeseries.Panel | table_builder.Panel | barchart.Panel


@dataclass(frozen=True, slots=True)
class Q:
    """One query: PromQL, and the legend of its series (empty in tables)."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A question and the panels that answer it, in reading order."""

    question: str
    panels: Sequence[Builder]


def target(query: Q, number: int, form: Literal["range", "instant", "table"]) -> prometheus.Dataquery:
    """Build the query numbered ``number`` (0 is A) as a range, as the newest figures, or as rows of a table."""
    built = prometheus.Dataquery().expr(query.expr).ref_id(chr(ord("A") + number)).datasource(DATASOURCE)
    if query.legend:
        built = built.legend_format(query.legend)
    if form == "range":
        return built.range()
    return built.instant().format(PromQueryFormat.TABLE if form == "table" else PromQueryFormat.TIME_SERIES)


def fixed(colour: str) -> model.DynamicConfigValue:
    """Return the override that paints a field in one colour."""
    return model.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": colour})


def lines(
    title: str,
    description: str,
    queries: Sequence[Q],
    *,
    unit: str,
    span: int,
    height: int = 9,
    from_zero: bool = True,
    soft_max: float | None = None,
    steps: bool = False,
) -> timeseries.Panel:
    """
    Draw series over time, limits dashed, the latest and the extreme figures in the legend.

    ``from_zero`` keeps zero in view without hiding negative figures, ``soft_max`` is the least the axis spans;
    ``steps`` is for figures that hold until they change (a boot's own words, a counter).
    """
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(span)
        .height(height)
        .unit(unit)
        .color_scheme(dashboard_builder.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC))
        .line_width(2)
        .fill_opacity(0)
        .show_points(common.VisibilityMode.NEVER)
        .line_interpolation(common.LineInterpolation.STEP_AFTER if steps else common.LineInterpolation.LINEAR)
        .legend(
            common_builder.VizLegendOptions()
            .show_legend(show_legend=True)
            .display_mode(common.LegendDisplayMode.TABLE)
            .placement(common.LegendPlacement.BOTTOM)
            .calcs(["lastNotNull", "min", "max"] if span >= WIDE else ["lastNotNull"])
        )
        .tooltip(
            common_builder.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
        )
        .targets([target(query, number, "range") for number, query in enumerate(queries)])
    )
    if from_zero:
        panel = panel.axis_soft_min(0)
    if soft_max is not None:
        panel = panel.axis_soft_max(soft_max)
    for words, (colour, dashed) in LINE_STYLES.items():
        if not any(
            query.legend.startswith(words) or query.legend.startswith("{{severity}} floor") for query in queries
        ):
            continue
        style = [model.DynamicConfigValue(id_val="color", value={"mode": "shades", "fixedColor": colour})]
        if dashed:
            style.append(model.DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [8, 8]}))
            style.append(model.DynamicConfigValue(id_val="custom.lineWidth", value=1))
        panel = panel.override_by_regexp(f"/^{words}/", style)
    return panel


def stat(
    title: str,
    description: str,
    query: Q,
    *,
    unit: str,
    span: int,
    height: int = 4,
    colour: str = "text",
    spark: bool = False,
    decimals: int | None = None,
    names_only: bool = False,
    size: int | None = None,
) -> stat_builder.Panel:
    """
    Show the latest figure of each series in one plain colour; good or bad is said by ``states`` panels.

    ``names_only`` shows the legend in place of the figure, for series whose labels are the message; ``size`` is the
    figure's in points where it should not fill the panel.
    """
    text = common.BigValueTextMode.NAME if names_only else common.BigValueTextMode.VALUE_AND_NAME
    panel = (
        stat_builder.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(span)
        .height(height)
        .unit(unit)
        .color_scheme(dashboard_builder.FieldColor().mode(model.FieldColorModeId.FIXED).fixed_color(colour))
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.AREA if spark else common.BigValueGraphMode.NONE)
        .text_mode(text)
        .text(_sizes(12 if names_only else size))
        .reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(values=False))
        .no_value("unknown")
        .targets([target(query, 0, "range" if spark else "instant")])
    )
    return panel if decimals is None else panel.decimals(decimals)


def _sizes(value: int | None) -> common_builder.VizTextDisplayOptions:
    # Left to itself Grafana makes the host's name as small as it takes to fit on one line, which nobody can read.
    sizes = common_builder.VizTextDisplayOptions().title_size(11)
    return sizes if value is None else sizes.value_size(value)


def states(
    title: str,
    description: str,
    query: Q,
    words: Mapping[int, tuple[str, str]],
    *,
    span: int,
    height: int = 4,
) -> stat_builder.Panel:
    """Show a state as a word on its colour; ``words`` maps the figure to (word, colour)."""
    mapping = model.ValueMap(
        options={
            str(value): model.ValueMappingResult(text=text, color=colour, index=index)
            for index, (value, (text, colour)) in enumerate(words.items())
        }
    )
    return (
        stat(title, description, query, unit="short", span=span, height=height)
        .color_scheme(dashboard_builder.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
        .color_mode(common.BigValueColorMode.BACKGROUND)
        .text(_sizes(20))
        .thresholds(
            dashboard_builder.ThresholdsConfig()
            .mode(model.ThresholdsMode.ABSOLUTE)
            .steps([model.Threshold(value=None, color="text")])
        )
        .mappings([mapping])
    )
