"""Which model files an engine's command line names, and where the hub's cache lies for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from budget_exporter.engines._command_line import split
from budget_exporter.errors import LawError

__all__ = ["ENVIRON", "Wanted", "caches", "folder", "is_commit", "wanted"]

ENVIRON = frozenset(
    {
        "HF_HOME",
        "HF_HUB_CACHE",
        "HOME",
        "HUGGINGFACE_HUB_CACHE",
        "TRANSFORMERS_CACHE",
        "VLLM_MODEL_REDIRECT_PATH",
        "VLLM_USE_MODELSCOPE",
        "XDG_CACHE_HOME",
    }
)
"""Variables that say where models lie; they are looked at where files are looked for, and kept nowhere."""
_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NOTHING = ("", "None", "null")
DEFAULT_REVISION = "main"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The flags that decide which files describe the model; None means not given."""

    model: str | None = None
    config: str | None = None
    """``--hf-config-path``: where the config is in place of the model."""
    revision: str = DEFAULT_REVISION
    overrides: Mapping[str, object] = field(default_factory=dict)
    config_format: str = "auto"
    download: str | None = None
    """``--download-dir``, where the hub's cache may be."""
    draft: str | None = None
    draft_revision: str = DEFAULT_REVISION
    draft_note: str = ""
    """Why the model that drafts is not looked for."""
    applied: tuple[str, ...] = ()
    """Flags with a value that is looked at here."""


def wanted(args: Sequence[str], read_config: Callable[[str], str]) -> Wanted:
    """
    Return the files that a server's arguments name; ``read_config`` returns the text of the file after ``--config``.

    Raise LawError, naming the flag, for a value that is no JSON object where there must be one, or that leaves open
    which file is meant.
    """
    line = split(args, read_config)
    broken = next((fault for fault in line.faults if fault.startswith("--config ")), None)
    if broken is not None:
        raise LawError(broken)
    given = {flag.name: flag.values[-1] for flag in line.flags if flag.values and flag.values[-1] not in _NOTHING}
    overrides = _object(given, "hf-overrides")
    speculation = _object(given, "speculative-config")
    draft, note = _drafting(given, speculation, line.model)
    return Wanted(
        model=line.model,
        config=given.get("hf-config-path"),
        revision=given.get("revision", DEFAULT_REVISION),
        overrides=overrides,
        config_format=given.get("config-format", "auto"),
        download=given.get("download-dir"),
        draft=draft,
        draft_revision=_text(speculation.get("revision")) or DEFAULT_REVISION,
        draft_note=note,
        applied=tuple(name for name in ("hf-config-path", "hf-overrides") if name in given),
    )


def _object(given: Mapping[str, str], name: str) -> Mapping[str, object]:
    if name not in given:
        return {}
    try:
        value = json.loads(given[name])
    except (ValueError, RecursionError) as error:
        raise LawError(f"--{name}: not JSON") from error
    if not isinstance(value, dict):
        raise LawError(f"--{name}: not a JSON object")
    return value


def _drafting(given: Mapping[str, str], speculation: Mapping[str, object], model: str | None) -> tuple[str | None, str]:
    """Return the model that drafts; None where its layers are the target's own, where there is none, or why not."""
    name = _text(speculation.get("model", given.get("spec-model")))
    method = _text(speculation.get("method", given.get("spec-method"))) or ""
    if name is None or name == model or method.endswith("mtp"):
        return None, ""
    tensor = speculation.get("draft_tensor_parallel_size")
    if tensor is not None and str(tensor) != given.get("tensor-parallel-size", "1"):
        return None, "draft_tensor_parallel_size is another than the model's: how the draft is divided is not known"
    return name, ""


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value not in _NOTHING else None


def folder(name: str) -> str | None:
    """
    Return the folder of the hub's cache that holds the model ``name``, None where that is no name of the hub's.

    Source: huggingface_hub 0.34 and 1.0 ``repo_folder_name``.
    """
    if not _NAME.fullmatch(name) or ".." in name or "--" in name:
        return None
    return f"models--{name.replace('/', '--')}"


def is_commit(revision: str) -> bool:
    """Return whether a revision is a commit itself: the name of its snapshot."""
    return _COMMIT.fullmatch(revision) is not None


def caches(environ: Mapping[str, str], download: str | None) -> list[str]:
    """
    Return where the hub's cache may be, each to be asked.

    TRANSFORMERS_CACHE (which newer Transformers ignore), HF_HUB_CACHE or its older name or ``HF_HOME/hub``, and
    ``download``, to which the engine fetches the weights. Raise LawError where the environment leaves that open.

    Source: huggingface_hub 0.34 and 1.0 ``constants.py``; Transformers 4 ``utils/hub.py``.
    """
    home = environ.get("HF_HOME")
    if not home:
        base = environ.get("XDG_CACHE_HOME") or "~/.cache"
        home = f"{base}/huggingface"
    hub = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    found = [environ.get("TRANSFORMERS_CACHE"), hub, download]
    return list(dict.fromkeys(_expanded(path, environ) for path in found if path))


def _expanded(path: str, environ: Mapping[str, str]) -> str:
    if "$" in path:
        raise LawError("where the hub's cache lies is not known: its path holds a variable")
    if not path.startswith("~"):
        return path
    user, slash, rest = path.partition("/")
    if user != "~" or not environ.get("HOME"):
        raise LawError("where the hub's cache lies is not known: the environment names no HOME")
    return f"{environ['HOME']}{slash}{rest}"
