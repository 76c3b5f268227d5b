"""
The page at ``/``: what a person woken at three needs, on a phone, without a script or anything fetched.

It is made on the server from one Snapshot. What is wrong stands first, every figure that is unknown is a dash.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from importlib import resources

from budget_exporter.facts.snapshot import Snapshot
from budget_exporter.publish.page import engine, host
from budget_exporter.publish.page.figures import age, utc
from budget_exporter.publish.page.html import Html, tag

__all__ = ["CONTENT_SECURITY_POLICY", "Links", "render"]

_STYLE = resources.files(__name__).joinpath("style.css").read_text("utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing but the page's own style is allowed: markup that slipped in could neither run nor fetch."""

_REFRESH_S = 10
_STALE_S = 15.0
_TITLE = "budget exporter"


@dataclass(frozen=True, slots=True)
class Links:
    """Paths the page points to."""

    metrics: str
    api: str
    healthy: str
    ready: str


def render(snapshot: Snapshot | None, *, links: Links, now: float) -> bytes:
    """Return the page as UTF-8; ``snapshot`` is None before the first, ``now`` the Unix time ages are counted to."""
    body = tag("main", *(_starting() if snapshot is None else _content(snapshot, now)))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="refresh", content=str(_REFRESH_S)),
        tag("title", _title(snapshot)),
        tag("style", Html(_STYLE)),
    )
    document = tag("html", head, tag("body", _header(snapshot, links, now), body), lang="en")
    return f"<!doctype html>\n{document}\n".encode()


def _title(snapshot: Snapshot | None) -> str:
    """Return the tab's title: engines in trouble are counted where a tab shows them."""
    troubled = 0 if snapshot is None else sum(engine.is_troubled(state) for state in snapshot.engines)
    return f"({troubled}) {_TITLE}" if troubled else _TITLE


def _header(snapshot: Snapshot | None, links: Links, now: float) -> Html:
    version = None if snapshot is None else tag("small", snapshot.exporter.version)
    pages = (("metrics", links.metrics), ("JSON", links.api), ("healthy", links.healthy), ("ready", links.ready))
    nav = tag("nav", *(tag("a", text, href=path) for text, path in pages))
    when = (
        None
        if snapshot is None
        else tag("p", f"As of {utc(snapshot.at)}, {age(now - snapshot.at)} ago", class_="quiet")
    )
    return tag("header", tag("h1", _TITLE, version), nav, when)


def _starting() -> list[Html]:
    return [tag("p", "Starting: nothing has been read yet.", class_="banner")]


def _content(snapshot: Snapshot, now: float) -> list[Html]:
    troubled_first = sorted(snapshot.engines, key=lambda state: (not engine.is_troubled(state), state.name))
    engines = [engine.section(state, now=now) for state in troubled_first]
    if not engines:
        nothing = tag("p", "No engine is known here.", class_="quiet")
        engines = [tag("section", tag("h2", "Engines"), nothing)]
    return [
        *_banners(snapshot, now),
        *engines,
        host.devices(snapshot.devices),
        host.sources(snapshot.sources, now=now),
    ]


def _banners(snapshot: Snapshot, now: float) -> list[Html]:
    banners = []
    if snapshot.exporter.demo:
        banners.append(
            tag("p", tag("strong", "demo: synthetic host."), " No figure here is of this machine.", class_="banner")
        )
    if now - snapshot.at > _STALE_S:
        banners.append(
            tag("p", f"These figures are {age(now - snapshot.at)} old and are not renewed.", class_="banner bad")
        )
    if not snapshot.exporter.reload_successful:
        banners.append(
            tag("p", "The last reload of the configuration failed: the one before it holds.", class_="banner bad")
        )
    waiting = [source.name for source in snapshot.sources if not source.settled]
    if not snapshot.ready:
        text = f"Starting: waiting for {', '.join(waiting)}." if waiting else "Starting."
        banners.append(tag("p", text, class_="banner"))
    return banners
