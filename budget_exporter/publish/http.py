"""
Serve Snapshots over HTTP: metrics, page, JSON, health.

Only GET and HEAD exist, nothing is read from a request but its path and its Accept headers, and nothing is fetched or
changed. Before the first Snapshot ``/metrics`` answers 200 with the exporter's own process figures: ``up`` in
Prometheus tells whether the exporter answers, and what it does not know yet has no series. ``/-/ready`` says the rest.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web

from budget_exporter.errors import ConfigError
from budget_exporter.facts.snapshot import Snapshot
from budget_exporter.publish import page
from budget_exporter.publish.api import snapshot_json
from budget_exporter.publish.exposition import CONTENT_TYPES, Exposition
from budget_exporter.publish.negotiate import format_for, gzip_wanted

__all__ = ["API_PATH", "HEALTHY_PATH", "READY_PATH", "application"]

HEALTHY_PATH = "/-/healthy"
READY_PATH = "/-/ready"
API_PATH = "/api/v1/snapshot"

_HEADERS = {
    "Server": "budget-exporter",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}

_GetSnapshot = Callable[[], Snapshot | None]
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(
    get_snapshot: _GetSnapshot,
    *,
    telemetry_path: str = "/metrics",
    exposition: Exposition | None = None,
    clock: Callable[[], float] = time.time,
) -> web.Application:
    """
    Return the exporter's HTTP application.

    ``get_snapshot`` returns the newest Snapshot or None before the first; ``exposition`` is the one the sidecar renders
    ahead with, ``clock`` the Unix time the page compares ages with. With ``telemetry_path`` ``/`` the metrics take the
    page's place. Raise ConfigError for a path that is no plain path or is already taken. Who runs the application turns
    the access log off: a line per scrape tells nobody anything.
    """
    _check(telemetry_path)
    renderer = Exposition() if exposition is None else exposition
    app = web.Application()
    app.on_response_prepare.append(_add_headers)
    app.router.add_get(HEALTHY_PATH, _healthy)
    app.router.add_get(READY_PATH, _ready(get_snapshot))
    app.router.add_get(API_PATH, _api(get_snapshot))
    app.router.add_get(telemetry_path, _metrics(get_snapshot, renderer))
    if telemetry_path != "/":
        app.router.add_get("/", _page(get_snapshot, telemetry_path, clock))
    return app


def _check(path: str) -> None:
    if not path.startswith("/") or any(c in "{}?#%\\" or c.isspace() or not c.isprintable() for c in path):
        raise ConfigError(f"--web.telemetry-path: not a plain absolute path: {path!r}")
    if path in {HEALTHY_PATH, READY_PATH, API_PATH}:
        raise ConfigError(f"--web.telemetry-path: {path} is taken")


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        # aiohttp's own Server header names versions; a page's own policy is stricter where it must be looser.
        if name == "Server" or name not in response.headers:
            response.headers[name] = value


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="healthy\n")


def _ready(get_snapshot: _GetSnapshot) -> _Handler:
    async def handle(_: web.Request) -> web.Response:
        snapshot = get_snapshot()
        if snapshot is not None and snapshot.ready:
            return web.Response(text="ready\n")
        return web.Response(status=503, text=f"not ready: {_missing(snapshot)}\n")

    return handle


def _missing(snapshot: Snapshot | None) -> str:
    waiting = [] if snapshot is None else [source.name for source in snapshot.sources if not source.settled]
    return f"waiting for the first run of {', '.join(waiting)}" if waiting else "waiting for the first full cycle"


def _api(get_snapshot: _GetSnapshot) -> _Handler:
    async def handle(_: web.Request) -> web.Response:
        snapshot = get_snapshot()
        if snapshot is None:
            return web.json_response({"error": "no snapshot yet"}, status=503)
        return web.Response(body=snapshot_json(snapshot), content_type="application/json", charset="utf-8")

    return handle


def _metrics(get_snapshot: _GetSnapshot, exposition: Exposition) -> _Handler:
    async def handle(request: web.Request) -> web.Response:
        # A repeated header is one list (RFC 9110 5.3); aiohttp's get() would see only its first line.
        accept = ",".join(request.headers.getall(hdrs.ACCEPT, ()))
        encodings = ",".join(request.headers.getall(hdrs.ACCEPT_ENCODING, ()))
        form, gzipped = format_for(accept), gzip_wanted(encodings)
        headers = {hdrs.CONTENT_TYPE: CONTENT_TYPES[form], hdrs.VARY: "Accept, Accept-Encoding"}
        if gzipped:
            headers[hdrs.CONTENT_ENCODING] = "gzip"
        body = exposition.render(get_snapshot()).body(form, gzipped=gzipped)
        return web.Response(body=body, headers=headers)

    return handle


def _page(get_snapshot: _GetSnapshot, telemetry_path: str, clock: Callable[[], float]) -> _Handler:
    links = page.Links(telemetry_path, API_PATH, HEALTHY_PATH, READY_PATH)

    async def handle(_: web.Request) -> web.Response:
        html = page.render(get_snapshot(), links=links, now=clock())
        headers = {
            hdrs.CONTENT_TYPE: "text/html; charset=utf-8",
            "Content-Security-Policy": page.CONTENT_SECURITY_POLICY,
        }
        return web.Response(body=html, headers=headers)

    return handle
