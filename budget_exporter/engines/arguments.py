"""Read a vLLM server's command line and environment as vLLM reads them: the shape of its budget."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from budget_exporter.engines._allowed import ENVIRON_ALLOWED, GIVEN_ALLOWED
from budget_exporter.engines._command_line import Given, split
from budget_exporter.engines._compilation import Compilation, compilation
from budget_exporter.engines._flag_values import NOTHING, dictionary, typed
from budget_exporter.engines._flag_versions import Version, release
from budget_exporter.engines._launch import server_arguments
from budget_exporter.engines._neuron_options import neuron_facts
from budget_exporter.facts.engine import Shape

__all__ = ["ENVIRON_ALLOWED", "GIVEN_ALLOWED", "server_arguments", "shape"]

_LAYOUT = """
    disable-sliding-window hf-config-path hf-overrides kv-cache-dtype-skip-layers kv-events-config kv-transfer-config
    use-replayssm
"""
"""Flags that change the KV cache's layout; some hold addresses, so only their names are kept."""
_NEURON = ("additional-config", "override-neuron-config")
"""Flags with JSON of which only the settings that Neuron reads are kept."""
_JUDGED = GIVEN_ALLOWED | {"hf-overrides", "additional-config"}
"""Flags that are read for what the parser would refuse, though their value stays as it was typed."""
_CONFIGURATIONS = ("kv-events-config", "kv-transfer-config")
_DTYPE = re.compile(r"[a-z0-9_]{1,40}")
_USER = re.compile(r"(?<=://)[^/]*@")
_QUERY = re.compile(r"[?#].*", re.DOTALL)
_T = TypeVar("_T")


def shape(
    argv: Sequence[str],
    environ: Mapping[str, str] | None,
    read_config: Callable[[str], str] | None = None,
    version: str | None = None,
) -> Shape:
    """
    Return the budget flags of ``argv`` as vLLM understands them; never raise for what a command line may hold.

    ``argv`` is the main process's whole command line; ``environ`` its environment, None where that may not be read.
    ``read_config`` returns the text of the file after ``--config`` and raises SourceError or OSError where it cannot.
    ``version`` is the engine's, None where it is not known: then what any release from 0.8.5 to 0.33 takes is taken.
    What the engine would reject, and what we cannot understand, is a sentence in ``faults`` and leaves its field None.

    Source: vLLM 0.32 ``utils/argparse_utils.py`` and ``engine/arg_utils.py``, compared with that parser's answers.
    """
    args = server_arguments(argv)
    if args is None:
        return Shape(version=version, faults=("not the command line of a vLLM server",))
    rules = release(version)
    line = split(args, read_config, rules)
    flags = _Flags(line.flags, line.faults, rules)
    number = _environment(environ, line.faults)
    estimate = number("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")
    speculation = flags.read("speculative-config", lambda t: None if t in NOTHING else dictionary(t))
    # The short flags say the same: the engine takes one way or the other.
    method = (speculation or {}).get("method") or flags.typed("spec-method")
    drafts = (speculation or {}).get("num_speculative_tokens") or flags.typed("spec-tokens")
    compiled = flags.read("compilation-config", lambda t: compilation(t, rules)) or Compilation()
    for name in _CONFIGURATIONS:
        flags.read(name, lambda t: None if t in NOTHING else dictionary(t, suffixes=True))
    result = Shape(
        version=version,
        model=None if line.model is None else _without_credentials(line.model),
        served_model_name=flags.read("served-model-name", _without_credentials, at=0),
        port=flags.whole("port", high=65535),
        utilization=flags.within(
            "gpu-memory-utilization", lambda ratio: 0 < ratio <= 1, "must be above 0 and at most 1"
        ),
        kv_cache_memory_bytes=flags.whole("kv-cache-memory-bytes"),
        num_gpu_blocks_override=flags.whole("num-gpu-blocks-override"),
        max_model_len=flags.whole("max-model-len"),
        max_num_seqs=flags.whole("max-num-seqs"),
        max_num_batched_tokens=flags.whole("max-num-batched-tokens"),
        block_size=flags.whole("block-size"),
        kv_cache_dtype=flags.read("kv-cache-dtype", lambda t: _dtype(typed("kv-cache-dtype", t, rules))),
        tensor_parallel_size=flags.whole("tensor-parallel-size") or 1,
        pipeline_parallel_size=flags.whole("pipeline-parallel-size") or 1,
        data_parallel_size=flags.whole("data-parallel-size") or 1,
        enforce_eager=flags.on("enforce-eager"),
        optimization_level=_first(flags.level(), compiled.level),
        cudagraph_mode=compiled.mode,
        cudagraph_capture_sizes=_first(flags.sizes("cudagraph-capture-sizes"), compiled.sizes),
        max_cudagraph_capture_size=_first(flags.whole("max-cudagraph-capture-size", low=0), compiled.largest),
        speculative=speculation is not None
        or any(flags.read(f"spec-{part}", lambda t: t not in NOTHING) for part in ("method", "model", "tokens")),
        speculative_method=method if isinstance(method, str) and _DTYPE.fullmatch(method) else None,
        speculative_tokens=drafts if type(drafts) is int and drafts > 0 else None,
        expert_offload=flags.on("enable-expert-offload"),
        expert_precise_memory=flags.on("expert-precise-memory"),
        expert_offload_mem=flags.typed("expert-offload-mem"),
        expert_resident_layers=flags.typed("expert-resident-layers"),
        graph_base_mib=number("VLLM_CUDAGRAPH_MEM_BASE_MB"),
        graph_per_graph_mib=number("VLLM_CUDAGRAPH_MEM_PER_GRAPH_MB"),
        graph_estimate_mib=number("VLLM_CUDAGRAPH_MEM_ESTIMATE_MB"),
        estimate_graphs=None if estimate is None else bool(estimate),
        layout_flags=tuple(name for name in _LAYOUT.split() if flags.set(name)),
        neuron=neuron_facts(
            {name: text for name in _NEURON if (text := flags.last_text(name)) is not None},
            environ or {},
            _without_credentials,
            line.faults,
        ),
        given=flags.given(),
        environ={name: text for name, text in (environ or {}).items() if name in ENVIRON_ALLOWED},
    )
    flags.judge_the_rest()
    return replace(result, faults=tuple(line.faults))


@dataclass(slots=True)
class _Flags:
    """What was typed, by the rules of one release, and the faults found in reading it."""

    typed_flags: list[Given]
    faults: list[str]
    version: Version | None
    last: dict[str, Given] = field(init=False)
    seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.last = {given.name: given for given in self.typed_flags}

    def read(self, name: str, parse: Callable[[str], _T], at: int = -1) -> _T | None:
        """Return what ``parse`` makes of the last value; None where it is absent or wrong (then with a fault)."""
        value: _T | None = None
        told = name in self.seen
        self.seen.add(name)
        for text in (given.values[at] for given in self.typed_flags if given.name == name and given.values):
            try:
                value = parse(text)
            except (ValueError, OverflowError, RecursionError) as error:
                # An earlier value that is wrong ends the engine as well, though a later one would have won.
                if not told:
                    # What is not shown where it is right is not shown where it is wrong.
                    shown = f" {text[:60]}" if name in GIVEN_ALLOWED else ""
                    self.faults.append(f"--{name}{shown}: {str(error)[:160]}")
                value = None
        return value

    def typed(self, name: str) -> Any:
        """Return the value as the parser types it."""
        return self.read(name, lambda text: typed(name, text, self.version))

    def whole(self, name: str, low: int = 1, high: int | None = None) -> int | None:
        """Return a number from ``low`` to ``high``."""
        text = f"must be {low} to {high}" if high is not None else f"must be at least {low}"
        value: int | None = self.within(name, lambda found: low <= found and (high is None or found <= high), text)
        return value

    def within(self, name: str, holds: Callable[[Any], bool], otherwise: str) -> Any:
        """Return the last value, None (with a fault) where the engine's configuration would refuse it."""
        value: Any = self.typed(name)
        if value is None or holds(value):
            return value
        self.faults.append(f"--{name} {self.last[name].values[-1][:60]}: {otherwise}")
        return None

    def level(self) -> int | None:
        """Return the optimization level."""
        text = self.within("optimization-level", lambda level: level in ("0", "1", "2", "3"), "must be 0 to 3")
        return None if text is None else int(text)

    def sizes(self, name: str) -> tuple[int, ...] | None:
        """Return the last list of numbers."""
        self.seen.add(name)
        found: tuple[int, ...] | None = None
        for given in (given for given in self.typed_flags if given.name == name):
            try:
                found = tuple(int(text) for text in given.values)
            except ValueError as error:
                self.faults.append(f"--{name} {' '.join(given.values)[:60]}: {str(error)[:160]}")
                found = None
        return found

    def judge_the_rest(self) -> None:
        """Read the flags whose values are shown as typed for what the parser would refuse."""
        for name in sorted((self.last.keys() & _JUDGED) - self.seen):
            self.typed(name)

    def on(self, name: str) -> bool:
        given = self.last.get(name)
        return given is not None and not given.negative

    def set(self, name: str) -> bool:
        """Return whether a flag stands for something: not switched off, not null."""
        given = self.last.get(name)
        return given is not None and not given.negative and given.values not in (("",), ("None",), ("null",))

    def last_text(self, name: str) -> str | None:
        """Return the last value as typed, None where it stands for not given."""
        given = self.last.get(name)
        return None if given is None or not given.values or given.values[-1] in NOTHING else given.values[-1]

    def given(self) -> dict[str, str]:
        """Return the allow-listed flags as typed; ``true`` and ``false`` for a switch."""
        return {
            name: " ".join(g.values) if g.values else ("false" if g.negative else "true")
            for name, g in sorted(self.last.items())
            if name in GIVEN_ALLOWED
        }


def _first(flag: _T | None, compiled: _T | None) -> _T | None:
    """Return what a flag of its own says before what the JSON says; the engine refuses both at once."""
    return compiled if flag is None else flag


def _dtype(text: str) -> str:
    if not _DTYPE.fullmatch(text):
        raise ValueError("not the name of a type")
    return text


def _without_credentials(text: str) -> str:
    """Return ``text`` without user, password and query, should it be a URL: a model may be named by one."""
    return _QUERY.sub("", _USER.sub("", text)) if "://" in text else text


def _environment(environ: Mapping[str, str] | None, faults: list[str]) -> Callable[[str], int | None]:
    """
    Return a function from the name of a variable to its whole number, None where it is unset, unknown or wrong.

    Sources: VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS of vLLM 0.18 and later, ``envs.py``; the three sizes in MiB of
    the expert-offload fork's graph charge.
    """
    if environ is None:
        faults.append("the environment could not be read: the graph charge it may set is unknown")

    def number(name: str) -> int | None:
        text = None if environ is None else environ.get(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            value = -1
        if value >= 0:
            return value
        faults.append(f"{name}={text[:60]}: not a whole number")
        return None

    return number
