"""Tell the release of vLLM from the package its program was installed as: known before the first line of any log."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from budget_exporter.engines._config_reader import inside
from budget_exporter.errors import SourceError

__all__ = ["installed_version"]

_PACKAGE = re.compile(r"vllm-([0-9][\w.+!-]*)\.(?:dist|egg)-info")
_PYTHON = re.compile(r"python3\.\d+")
_LIBRARIES = ("lib", "lib64")
_PACKAGES = ("site-packages", "dist-packages")


def installed_version(procfs: Path, pid: int, argv: Sequence[str]) -> str | None:
    """
    Return the version in the name of the ``vllm-*.dist-info`` beside the program that ``argv`` starts.

    None where that cannot be told: the program is not named by its path, nothing may be read, or there are several.
    Source: the recording of installed projects by Python's packaging tools, and the layout of its prefixes.
    """
    root = f"{procfs}/{pid}/root"
    for prefix in dict.fromkeys(_prefixes(argv)):
        found = {match[1] for name in _names(root, prefix) if (match := _PACKAGE.fullmatch(name))}
        if found:
            return found.pop() if len(found) == 1 else None
    return None


def _prefixes(argv: Sequence[str]) -> Iterator[str]:
    """Yield ``/opt/venv`` for ``/opt/venv/bin/vllm``: the script first, it lies where the package does."""
    for word in (argv[1:2], argv[0:1]):
        for path in word:
            folder, _, _ = path.rpartition("/")
            if path.startswith("/") and folder.endswith("/bin"):
                yield folder[: -len("/bin")]


def _names(root: str, prefix: str) -> Iterator[str]:
    """Yield what lies in the package folders below ``prefix``, as the process sees it."""
    for library in _LIBRARIES:
        for python in _listed(root, f"{prefix}/{library}", _PYTHON.fullmatch):
            for packages in _PACKAGES:
                yield from _listed(root, f"{prefix}/{library}/{python}/{packages}", _PACKAGE.fullmatch)


def _listed(root: str, folder: str, wanted: Callable[[str], object]) -> list[str]:
    try:
        return sorted(name for name in os.listdir(inside(root, folder)) if wanted(name))  # noqa: PTH208 - names only
    except (OSError, SourceError, ValueError):
        return []
