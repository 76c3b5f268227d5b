"""Make text of the watched host fit to be shown: valid UTF-8, and no password in an URL."""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["presentable"]

# user:password@ before a host, and whatever follows the path: object stores and registries carry tokens in both.
_USERINFO = re.compile(r"(?<=://)[^/\s]*@")
# Matches without a query too: else a long text of many URLs would be searched to its end from each of them.
_QUERY = re.compile(r"(://[^\s?#]*)(?:[?#]\S*)?")


@lru_cache(maxsize=1024)  # the same few names, once a second
def presentable(text: str) -> str:
    """
    Return ``text`` as it may leave the process.

    Bytes that were no UTF-8 (lone surrogates, from ``os.fsdecode``) become ``?``: one of them would make a whole
    exposition unencodable. URLs lose user, password and query.
    """
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    if "://" in text:
        text = _QUERY.sub(r"\1", _USERINFO.sub("", text))
    return text
