"""
Compare two command lines of a vLLM server by what they mean: which budget flags differ.

Source: the defaults of vLLM 0.8.5 to 0.33 ``engine/arg_utils.py`` and ``config``, where they are the same for every
model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from budget_exporter.engines._allowed import ENVIRON_ALLOWED, GIVEN_ALLOWED
from budget_exporter.engines._command_line import Given, split
from budget_exporter.engines._flag_table import OPTIONS
from budget_exporter.engines._flag_values import NOTHING, dictionary, typed
from budget_exporter.engines._flag_versions import Version, release
from budget_exporter.engines._plan import UnresolvedError

__all__ = ["NAMES", "Settings", "differing", "settings"]

_JSON = frozenset(
    {
        *("additional-config", "compilation-config", "hf-overrides", "kv-events-config", "kv-transfer-config"),
        *("override-neuron-config", "speculative-config"),
    }
)
_OTHERS = frozenset({"disable-sliding-window", "hf-config-path", "kv-cache-dtype-skip-layers", "spec-model"})
_NO_BUDGET = frozenset({"port", "data-parallel-backend", "distributed-executor-backend", "headless", "load-format"})
FLAGS = (GIVEN_ALLOWED - _NO_BUDGET) | _JSON | _OTHERS | {"model"}
_NO_BUDGET_VARIABLES = (
    # An image or the container's runtime sets these, whatever the configuration of the container says.
    "AMD_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES",
    "NO_COLOR PODMAN_SYSTEMD_UNIT PROMETHEUS_MULTIPROC_DIR VLLM_CACHE_ROOT VLLM_CONFIGURE_LOGGING",
    "VLLM_LOGGING_COLOR VLLM_LOGGING_CONFIG_PATH VLLM_LOGGING_LEVEL VLLM_LOGGING_PREFIX VLLM_LOGGING_STREAM",
    "VLLM_PROCESS_NAME_PREFIX VLLM_SERVER_DEV_MODE",
)
VARIABLES = ENVIRON_ALLOWED - {name for line in _NO_BUDGET_VARIABLES for name in line.split()}
NAMES = FLAGS | VARIABLES
"""Everything that can be told to be pending; a name says nothing of the value."""
_DEFAULTS: dict[str, object] = {
    **dict.fromkeys(("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "nnodes"), 1),
    **dict.fromkeys(("decode-context-parallel-size", "prefill-context-parallel-size"), 1),
    **dict.fromkeys(("dtype", "kv-cache-dtype", "mamba-cache-dtype", "mamba-ssm-cache-dtype"), "auto"),
    **dict.fromkeys(("cpu-offload-gb", "mm-ipc-gpu-memory-gb"), 0.0),
    **dict.fromkeys(("enforce-eager", "enable-expert-parallel", "enable-sleep-mode", "enable-lora"), False),
    **dict.fromkeys(("enable-expert-offload", "expert-precise-memory", "disable-sliding-window"), False),
    "node-rank": 0,
}
"""What a flag is where it is not given, whatever the model and the device."""
_UTILIZATION = ((0, 20), 0.9, 0.92)
"""The default utilization before and from 0.20 on. Source: ``config/cache.py``."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What one command line and environment mean; ``environ`` is None where it is not known."""

    flags: Mapping[str, object]
    environ: Mapping[str, str] | None


def settings(
    args: Sequence[str],
    environ: Mapping[str, str] | None,
    read_config: Callable[[str], str],
    version: str | None,
) -> Settings:
    """
    Return the budget flags that ``args`` (as of ``server_arguments``) give; one that stands for nothing is left out.

    Raise UnresolvedError where a file after ``--config`` cannot be read: any flag may stand in it.
    """
    rules = release(version)
    line = split(args, read_config, rules)
    if line.unread:
        raise UnresolvedError("the file after --config is not known as the engine reads it")
    last = {given.name: given for given in line.flags if given.name in FLAGS}
    flags = {name: _meaning(given, rules) for name, given in last.items()}
    flags["model"] = line.model
    kept = None if environ is None else {name: text for name, text in environ.items() if name in VARIABLES}
    return Settings({name: value for name, value in flags.items() if value is not None}, kept)


def _meaning(given: Given, version: Version | None) -> object:
    """Return what a flag stands for, the same for two spellings of it; what is wrong stands for itself."""
    if not given.values:
        return not given.negative
    try:
        if given.name in _JSON:
            found = dictionary(given.values[-1], suffixes=True)
            return json.dumps(found, sort_keys=True) if found else None
        if OPTIONS[f"--{given.name}"].kind == "list":
            return tuple(typed(given.name, text, version) for text in given.values)
        value = typed(given.name, given.values[-1], version)
    except (ValueError, OverflowError, RecursionError):
        return ("not accepted", *given.values)
    if value is None and given.name == "max-model-len":
        return "auto"
    return None if value in NOTHING else value


def differing(running: Settings, planned: Settings, version: str | None) -> tuple[str, ...]:
    """
    Return the names of flags and variables whose planned value is another than the running one, sorted.

    A variable that is not planned may come from the image or the manager: only those that are planned are compared.
    """
    rules = release(version)
    defaults = dict(_DEFAULTS)
    if rules is not None:
        since, before, after = _UTILIZATION
        defaults["gpu-memory-utilization"] = after if rules >= since else before
    names = {*running.flags, *planned.flags}
    changed = {
        name
        for name in names
        if running.flags.get(name, defaults.get(name)) != planned.flags.get(name, defaults.get(name))
    }
    if running.environ is not None and planned.environ is not None:
        changed |= {name for name, text in planned.environ.items() if running.environ.get(name) != text}
    return tuple(sorted(changed))


def planned_environment(environ: Mapping[str, str]) -> Settings:
    """Return settings of which only the environment is known."""
    return Settings({}, {name: text for name, text in environ.items() if name in VARIABLES})
