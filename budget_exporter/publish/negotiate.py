"""Choose format and encoding from a request's Accept headers; whatever they hold, something is chosen."""

from __future__ import annotations

from typing import Literal

__all__ = ["Format", "format_for", "gzip_wanted"]

Format = Literal["text", "openmetrics"]

_OPENMETRICS = "application/openmetrics-text"
_OPENMETRICS_VERSION = "1.0.0"


def format_for(accept: str) -> Format:
    """
    Return the exposition format for an ``Accept`` header.

    OpenMetrics only where 1.0.0 is asked for by name with at least the weight of text: ``*/*`` is a browser or curl.
    Text is also the answer to a header that accepts neither, as with every exporter.
    """
    openmetrics = 0.0
    text: dict[str, float] = {}
    for media, parameters in _items(accept):
        weight = _weight(parameters)
        if media == _OPENMETRICS:
            if parameters.get("version", _OPENMETRICS_VERSION) == _OPENMETRICS_VERSION:
                openmetrics = max(openmetrics, weight)
        elif media in {"text/plain", "text/*", "*/*"}:
            text[media] = max(text.get(media, 0.0), weight)
    # The most specific range speaks for text.
    plain = next((text[media] for media in ("text/plain", "text/*", "*/*") if media in text), 0.0)
    return "openmetrics" if openmetrics > 0 and openmetrics >= plain else "text"


def gzip_wanted(accept_encoding: str) -> bool:
    """Return whether an ``Accept-Encoding`` header accepts gzip, by name or by ``*``."""
    weights = {coding: _weight(parameters) for coding, parameters in _items(accept_encoding)}
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _items(header: str) -> list[tuple[str, dict[str, str]]]:
    """Split a header into (name, parameters), lower-cased; parts without a value are left out."""
    items = []
    for item in header.lower().split(","):
        name, *rest = (part.strip() for part in item.split(";"))
        pairs = (part.partition("=") for part in rest)
        items.append((name, {key.strip(): value.strip().strip('"') for key, sep, value in pairs if sep}))
    return items


def _weight(parameters: dict[str, str]) -> float:
    """Return the q-value between 0 and 1; 1 where there is none, 0 where it is no number."""
    try:
        weight = float(parameters.get("q", "1"))
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0
