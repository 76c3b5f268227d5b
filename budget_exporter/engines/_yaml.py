"""Load YAML that others wrote: aliases multiply, and a few lines of them can stand for gigabytes."""

from __future__ import annotations

from typing import Any

import yaml

__all__ = ["load"]

_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LARGEST = 2 << 20
"""Characters and nodes with every alias written out; twice what a file may have without any."""
_WITHIN = -1


def load(text: str) -> Any:
    """
    Return the one document in ``text``, None where there is none.

    Raise yaml.YAMLError for what is none, RecursionError where it is nested too deep, and ValueError where its aliases
    stand for too much or for themselves.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        # Before anything is made of it: merging mappings multiplies as well.
        _written_out(node, {})
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _written_out(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """Return the size of ``node`` without aliases; ``known`` are those of the nodes that were seen."""
    if isinstance(node, yaml.ScalarNode):
        return 1 + len(node.value)
    size = known.get(node)
    if size is None:
        known[node] = _WITHIN
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        size = known[node] = 1 + sum(_written_out(part, known) for part in parts)
    if size == _WITHIN:
        raise ValueError("an alias within itself")
    if size > _LARGEST:
        raise ValueError("aliases that stand for too much")
    return size
