"""
Read what an engine on AWS Neuron is told to compile: its JSON options, and the older names in the environment.

Source: vLLM 0.8.5 to 0.10 ``platforms/neuron.py`` and ``model_executor/model_loader/neuron.py`` (``NEURON_*``,
``--override-neuron-config``), vllm-neuron 0.2 to 0.6 (``additional_config.override_neuron_config``), from 0.21
``model/neuron_config.py`` (``additional_config.neuron_config``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from budget_exporter.facts.neuron import NeuronFacts

__all__ = ["neuron_facts"]

ADDITIONAL = "additional-config"
OVERRIDE = "override-neuron-config"
_BELOW_ADDITIONAL = ("override_neuron_config", "override-neuron-config", "neuron_config")
_BUCKETS = (
    "context_encoding_buckets",
    "token_generation_buckets",
    "prefix_buckets",
    "num_batched_tokens_buckets",
    "num_seqs_buckets",
    "kv_segment_size_buckets",
    "decode_context_length_buckets",
)
_BUCKET_VARIABLES = ("NEURON_CONTEXT_LENGTH_BUCKETS", "NEURON_TOKEN_GEN_BUCKETS")
_WORD = re.compile(r"[\w.:/+-]{1,60}")
_MOST_BUCKETS = 1024
_LARGEST = 1 << 40
_T = TypeVar("_T")


def neuron_facts(
    options: Mapping[str, str],
    environ: Mapping[str, str],
    path: Callable[[str], str],
    faults: list[str],
) -> NeuronFacts | None:
    """
    Return the settings, None where none is given.

    ``options`` are the values of the two flags with JSON, where given; ``path`` makes a path presentable. What cannot
    be read is a sentence in ``faults`` and is left out.
    """
    found = _Reader(_merged(options, faults), faults)
    buckets = {name: sizes for name in _BUCKETS if (sizes := found.read(name, _sizes)) is not None}
    for name in _BUCKET_VARIABLES:
        if name in environ and (sizes := _guarded(name, environ[name], _comma_list, faults)) is not None:
            buckets[name] = sizes
    artifacts = environ.get("NEURON_COMPILED_ARTIFACTS")
    facts = NeuronFacts(
        buckets=buckets,
        enable_bucketing=found.read("enable_bucketing", _switch),
        is_block_kv_layout=found.read("is_block_kv_layout", _switch),
        is_prefix_caching=found.read("is_prefix_caching", _switch),
        pa_num_blocks=found.read("pa_num_blocks", _size),
        pa_block_size=found.read("pa_block_size", _size),
        quantization=found.read("quantization", _word),
        framework=_variable("VLLM_NEURON_FRAMEWORK", environ, faults),
        backend=_variable("VLLM_NEURON_BACKEND", environ, faults),
        compiled_artifacts=path(artifacts) if artifacts else None,
    )
    return None if facts == NeuronFacts() else facts


class _Reader:
    """The settings by name, and where to say that one is wrong."""

    def __init__(self, settings: Mapping[str, Any], faults: list[str]) -> None:
        self._settings = settings
        self._faults = faults

    def read(self, name: str, parse: Callable[[Any], _T]) -> _T | None:
        value = self._settings.get(name)
        return None if value is None else _guarded(name, value, parse, self._faults)


def _guarded(name: str, value: Any, parse: Callable[[Any], _T], faults: list[str]) -> _T | None:
    try:
        return parse(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        faults.append(f"{name}: {str(error)[:160]}")
        return None


def _merged(options: Mapping[str, str], faults: list[str]) -> dict[str, Any]:
    """Return the settings of both flags in one mapping; those below ``neuron_config`` win, being the newer name."""
    settings: dict[str, Any] = {}
    if OVERRIDE in options:
        settings |= _guarded(f"--{OVERRIDE}", options[OVERRIDE], _object, faults) or {}
    additional = _guarded(f"--{ADDITIONAL}", options.get(ADDITIONAL, "{}"), _object, faults) or {}
    for below in _BELOW_ADDITIONAL:
        # A dotted flag (``--additional-config.neuron_config.num_seqs_buckets``) arrives with the dots in its name.
        dotted = {name.partition(".")[2]: value for name, value in additional.items() if name.startswith(f"{below}.")}
        whole = additional.get(below)
        if whole is not None and not isinstance(whole, dict):
            faults.append(f"--{ADDITIONAL}: {below} is not an object")
            whole = None
        settings |= {**(whole or {}), **dotted}
    return settings


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError("not JSON") from error
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    return value


def _sizes(value: Any) -> tuple[int, ...]:
    """Return bucket sizes; a dotted flag brings a list as text."""
    listed = json.loads(value) if isinstance(value, str) else value
    if not isinstance(listed, list) or len(listed) > _MOST_BUCKETS:
        raise ValueError(f"must be a list of at most {_MOST_BUCKETS} sizes")
    return tuple(_size(each) for each in listed)


def _comma_list(text: str) -> tuple[int, ...]:
    return _sizes([int(each) for each in text.split(",")])


def _size(value: Any) -> int:
    if type(value) is not int or not 0 < value <= _LARGEST:
        raise ValueError(f"must be a whole number above 0, not {str(value)[:40]}")
    return value


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"must be true or false, not {str(value)[:40]}")
    return value


def _word(value: Any) -> str:
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        raise ValueError("not a name")
    return value


def _variable(name: str, environ: Mapping[str, str], faults: list[str]) -> str | None:
    return _guarded(name, environ[name], _word, faults) if environ.get(name) else None
