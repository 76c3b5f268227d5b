"""The smallest HTML writer: every string is escaped unless this module made it."""

from __future__ import annotations

from html import escape

from budget_exporter.publish.text import presentable

__all__ = ["Html", "join", "tag"]

_VOID = frozenset({"meta", "link", "br"})


class Html(str):
    """Text that is markup already; only ``tag`` and ``join`` make it."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | None) -> Html:
    """
    Return an element; children that are no Html are escaped, None is left out.

    Attribute names lose a trailing underscore (``class_``) and take hyphens for the others (``http_equiv``).
    """
    pairs = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    head = " ".join([name, *(f'{key}="{escape(presentable(value))}"' for key, value in pairs)])
    return Html(f"<{head}>") if name in _VOID else Html(f"<{head}>{join(*children)}</{name}>")


def join(*parts: str | None) -> Html:
    """Return the parts one after the other, escaped unless they are Html."""
    return Html("".join(part if isinstance(part, Html) else escape(presentable(part)) for part in parts if part))
