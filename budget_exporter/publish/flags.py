"""Flags as they may be shown: by one name each, and never one that could hold a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["by_label", "shown"]

# Readers keep allow-listed names only; this is the second line, at the border. ``tokens`` are counts, ``token`` is one.
_SECRET = re.compile(
    r"(?:^|[-_])(?:key|keys|keyfile|token|password|passwd|secret|secrets|credential|credentials|header|headers|auth\w*)"
    r"(?:$|[-_])",
    re.IGNORECASE,
)


def shown(given: Mapping[str, str]) -> dict[str, str]:
    """Return the flags and environment names of ``given`` whose name tells of no secret."""
    return {name: text for name, text in given.items() if not _SECRET.search(name)}


def by_label(given: Mapping[str, str]) -> dict[str, str]:
    """Return the flags of ``given`` by label name: ``--max-model-len`` and ``max_model_len`` are one."""
    return {name.lstrip("-").replace("-", "_"): text for name, text in shown(given).items()}
