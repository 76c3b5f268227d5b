"""The host's devices and the exporter's sources."""

from __future__ import annotations

from budget_exporter.facts.snapshot import DeviceState
from budget_exporter.facts.source import SourceHealth
from budget_exporter.publish.page.figures import age, count, gib
from budget_exporter.publish.page.html import Html, tag

__all__ = ["devices", "sources"]

_BAR_WIDTH = 1000
_PERIODS_UNTIL_LATE = 3
_LATE_S = 10.0


def devices(states: tuple[DeviceState, ...]) -> Html:
    """Return the table of devices in GiB."""
    title = tag("h2", "Devices", tag("small", "GiB"))
    if not states:
        return tag("section", title, tag("p", "No device has answered.", class_="quiet"))
    head = tag("tr", *(tag("th", text, scope="col") for text in ("size", "used", "high water", "least left", "GTT")))
    bodies = [_device(state) for state in states]
    return tag("section", title, tag("table", tag("thead", head), *bodies, class_="devices"))


def _device(state: DeviceState) -> Html:
    identity, memory, mark = state.identity, state.memory, state.high_water
    what = " \N{MIDDLE DOT} ".join(part for part in (identity.model, identity.driver, identity.sampler) if part)
    shared = tag("small", "shares the host's memory") if identity.integrated else None
    holders = [tag("small", sentence) for sentence in _holders(state)]
    name = tag("th", identity.device, tag("small", what), shared, _bar(state), *holders, scope="rowgroup", colspan="5")
    figures = (memory.size, memory.used, mark.used, memory.size - mark.used, memory.gtt_used)
    return tag("tbody", tag("tr", name), tag("tr", *(tag("td", gib(figure)) for figure in figures)))


def _holders(state: DeviceState) -> list[str]:
    """Return what is held by no known engine, and what no process accounts for; nothing where nobody lists holders."""
    owned = state.ownership
    if owned is None:
        return []
    said = []
    if owned.foreign:
        names = ", ".join(f"{process.name or 'process'} (PID {process.pid})" for process in owned.foreign)
        said.append(f"{gib(owned.foreign_bytes)} held by no known engine: {names}")
    if owned.unattributed is not None:
        said.append(f"{gib(owned.unattributed)} that no process accounts for")
    if owned.evicted:
        said.append(f"{gib(owned.evicted)} moved to system memory")
    return said


def _bar(state: DeviceState) -> Html | None:
    """Return use as a bar with a mark at high water; none where a figure is beyond the device and cannot be drawn."""
    size, used, high = state.memory.size, state.memory.used, state.high_water.used
    if not 0 <= used <= size or not 0 <= high <= size or size == 0:
        return None
    use = tag("rect", class_="used", width=f"{used / size * _BAR_WIDTH:.1f}", height="20")
    mark = tag("rect", class_="mark", x=f"{high / size * _BAR_WIDTH - 3:.1f}", width="6", height="20")
    box = {"viewBox": f"0 0 {_BAR_WIDTH} 20", "preserveAspectRatio": "none"}
    return tag("svg", use, mark, class_="bar thin", role="img", aria_label="Use, and its high-water mark", **box)


def sources(healths: tuple[SourceHealth, ...], *, now: float) -> Html:
    """
    Return the list of sources, folded where all of them are well; ``now`` is the Unix time ages are counted to.

    Those that are not well come first: a host has a dozen, and most of them have nothing to tell there.
    """
    troubled = [health for health in healths if _state(health, now)[0] != "good"]
    well = [health for health in healths if _state(health, now)[0] == "good"]
    told = f"{len(troubled)} of {len(healths)} not well" if troubled else f"{len(healths)}, all well"
    title = tag("summary", "Sources", tag("small", told))
    rows = [_source(health, now) for health in (*troubled, *well)]
    table = tag("table", tag("tbody", *rows))
    return tag("section", tag("details", title, table, open="" if troubled else None), class_="sources")


def _source(health: SourceHealth, now: float) -> Html:
    kind, word = _state(health, now)
    last = "no success yet" if health.last_success is None else f"last success {age(now - health.last_success)} ago"
    took = f"took {health.duration * 1000:.1f} ms" if health.runs else ""
    counts = f"{count(health.runs)} runs, {count(health.failures)} failed"
    details = " \N{MIDDLE DOT} ".join(part for part in (f"every {health.interval:g} s", last, took, counts) if part)
    error = tag("small", health.error, class_="error") if health.error else None
    name = tag("th", health.name, tag("small", details), error, scope="row")
    return tag("tr", name, tag("td", tag("span", word, class_=f"pill {kind}")))


def _state(health: SourceHealth, now: float) -> tuple[str, str]:
    if not health.settled and not health.runs:
        return "phase", "waiting"
    if not health.success:
        return "bad", "failing"
    late = max(_LATE_S, _PERIODS_UNTIL_LATE * health.interval)
    if health.last_success is not None and now - health.last_success > late:
        return "warn", "late"
    return "good", "ok"
