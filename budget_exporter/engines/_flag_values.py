"""
Read the value of a flag as vLLM's parser does.

Source: vLLM 0.32 ``engine/arg_utils.py`` (``get_kwargs``, ``optional_type``, ``union_dict_and_str``) and
``utils/argparse_utils.py`` (``human_readable_int``), compared with that parser's answers; what was otherwise before is
in ``_flag_versions.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from budget_exporter.engines._flag_versions import AUTO_LENGTH, CHOICES, CHOICES_OF, HUMAN, TERA, Version
from budget_exporter.units import human_int

__all__ = ["NOTHING", "dictionary", "typed"]

NOTHING = ("", "None")
"""What vLLM's optional types read as not given."""
_WHOLE = """
    api-server-count block-size cudagraph-capture-sizes data-parallel-rank data-parallel-size data-parallel-size-local
    data-parallel-start-rank decode-context-parallel-size max-cudagraph-capture-size max-lora-rank max-loras
    max-num-prefill-seqs max-num-seqs max-seq-len-to-capture nnodes node-rank pipeline-parallel-size port
    prefill-context-parallel-size spec-tokens tensor-parallel-size
"""
_REAL = "cpu-offload-gb gpu-memory-utilization mm-ipc-gpu-memory-gb mm-processor-cache-gb swap-space"
_OPTIONAL_WHOLE = "mamba-block-size num-gpu-blocks-override"
_OPTIONAL_REAL = "kv-offloading-size"
_OPTIONAL_TEXT = "distributed-executor-backend quantization spec-method"
_OBJECTS = "additional-config hf-overrides"
_SUFFIXED = re.compile(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b")
_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*")')
_BRACES = re.compile(r"\s*\{.*\}\s*", re.DOTALL)
_PLAIN: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(_WHOLE.split(), int),
    **dict.fromkeys(_REAL.split(), float),
}
_OPTIONAL: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(_OPTIONAL_WHOLE.split(), int),
    **dict.fromkeys(_OPTIONAL_REAL.split(), float),
    **dict.fromkeys(_OPTIONAL_TEXT.split(), str),
}


def typed(name: str, text: str, version: Version | None) -> Any:
    """
    Return the value the parser makes of ``text`` for the flag ``name``; None where that stands for not given.

    Raise ValueError, or OverflowError, where it would refuse it. A closed list is judged for the one release it was
    read from. ``auto`` and -1 for ``--max-model-len`` let the engine choose: None, since then only the engine knows.
    """
    if name in HUMAN:
        return _human(name, text, version)
    if name in _OPTIONAL:
        value = None if text in NOTHING else _OPTIONAL[name](text)
    elif name in _OBJECTS.split() and _BRACES.fullmatch(text):
        value = dictionary(text)
    else:
        value = _PLAIN.get(name, str)(text)
    closed = CHOICES.get(name) if version is not None and version[:2] == CHOICES_OF else None
    if closed is not None and value is not None and str(value) not in closed:
        raise ValueError("not one of its values")
    return value


def _human(name: str, text: str, version: Version | None) -> int | None:
    """Return tokens or bytes, with a suffix where ``version`` takes one."""
    if name == "kv-cache-memory-bytes" and text in NOTHING:
        return None
    if name == "max-model-len" and (version is None or version >= AUTO_LENGTH):
        word = text.strip()
        if word == "-1" or word.lower() == "auto":
            return None
    if version is not None and version < HUMAN[name]:
        return int(text)
    if version is not None and version < TERA and text.strip()[-1:] in ("t", "T"):
        raise ValueError("this release knows no suffix t or T")
    return human_int(text)


def dictionary(text: str, *, suffixes: bool = False) -> dict[str, Any] | None:
    """
    Return a JSON object, None for null; raise ValueError for what is no JSON. What is no object is an empty one.

    ``suffixes`` are the ``1k`` and ``1K`` that vLLM takes for numbers in the JSON of its own configurations.
    """
    if suffixes:
        parts = _QUOTED.split(text)
        parts[::2] = [_SUFFIXED.sub(lambda m: str(human_int(m[0])), part) for part in parts[::2]]
        text = "".join(parts)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError("not JSON") from error
    return value if value is None or isinstance(value, dict) else {}
