"""Find and read the config.json that an engine read: through its own root, never from the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from budget_exporter.engines._config_reader import FileMissingError, Text, is_directory, read_text
from budget_exporter.engines.model_config import parse
from budget_exporter.engines.model_wanted import Wanted, caches, folder, is_commit
from budget_exporter.errors import LawError, SourceError
from budget_exporter.facts.model import ModelConfig, ModelFiles

__all__ = ["SETTLED", "View", "find"]

CONFIG = "config.json"
MISTRAL = "params.json"
SETTLED = 600.0
"""Seconds after its start in which an engine has read, or fetched and read, its model's config."""


@dataclass(frozen=True, slots=True)
class View:
    """The files of one process as it sees them; ``cwd`` is its working directory, None where that is unknown."""

    procfs: Path
    pid: int
    cwd: str | None
    started_at: float
    """Unix time of its start: what was written long after it is not what it read."""

    def text(self, path: str) -> Text:
        """
        Return a file's text.

        Raise FileMissingError where there is none, SourceError where it cannot be read, SourceDenied where it may not
        be, and SourceError where it was changed after the process had read it.
        """
        text = read_text(self.procfs, self.pid, self.cwd, path)
        if text.changed > self.started_at + SETTLED:
            raise SourceError("changed since the engine started: it may have read another")
        return text

    def is_directory(self, path: str) -> bool:
        """Return whether there is a directory; False also where that cannot be told."""
        return is_directory(self.procfs, self.pid, self.cwd, path)


def find(view: View, wanted: Wanted, environ: Mapping[str, str] | None) -> ModelFiles:
    """
    Return what the model's files say; what cannot be found, read or understood is a note.

    ``environ`` holds the variables that say where models lie, None where the environment may not be read.
    """
    notes: list[str] = []

    def read(source: str | None, revision: str, overrides: Mapping[str, object], whose: str) -> ModelConfig | None:
        try:
            return parse(_locate(view, source, revision, wanted.download, environ), overrides)
        except (LawError, SourceError) as error:
            text = str(error)
            notes.append(f"{whose}'s {text if text.startswith(CONFIG) else f'{CONFIG}: {text}'}")
            return None

    if wanted.config_format not in ("auto", "hf"):
        notes.append(f"the model: --config-format {wanted.config_format[:40]} is not read here, only {CONFIG}")
        return ModelFiles(notes=tuple(notes))
    source = wanted.model if wanted.config is None else wanted.config
    config = read(source, wanted.revision, wanted.overrides, "the model")
    draft = None if wanted.draft is None else read(wanted.draft, wanted.draft_revision, {}, "the draft model")
    notes += [wanted.draft_note] if wanted.draft_note else []
    return ModelFiles(config, draft, wanted.applied if config is not None else (), tuple(notes))


def _locate(
    view: View, source: str | None, revision: str, download: str | None, environ: Mapping[str, str] | None
) -> str:
    """
    Return the text of the config.json of ``source``: a directory, else a name of the hub's in its cache.

    Source: Transformers 4 and 5 ``utils/hub.py`` ``cached_file``; vLLM 0.32 ``transformers_utils/config.py``.
    """
    if source is None:
        raise SourceError("the flags name no model")
    if "://" in source:
        raise SourceError("the model is in an object store, which is not asked")
    if environ is not None and environ.get("VLLM_MODEL_REDIRECT_PATH"):
        raise SourceError("VLLM_MODEL_REDIRECT_PATH may put another model in place of the one named")
    try:
        return view.text(f"{source}/{CONFIG}").text
    except FileMissingError:
        if view.is_directory(source):
            raise SourceError(_other(view.text, f"{source}/{MISTRAL}")) from None
    if ":" in source or source.lower().endswith(".gguf"):
        raise SourceError("a GGUF file describes its model itself, which is not read here")
    name = folder(source)
    if name is None:
        raise SourceError("there is no such directory, and it is no name of the hub's")
    if environ is None:
        raise SourceError("the environment, which says where the hub's cache is, may not be read")
    if environ.get("VLLM_USE_MODELSCOPE", "").lower() in ("1", "true"):
        raise SourceError("ModelScope's cache is not read here")
    return _cached(view, [f"{cache}/{name}" for cache in caches(environ, download)], revision)


def _cached(view: View, folders: list[str], revision: str) -> str:
    """Return the one text that the caches hold of a revision: two that differ leave open which was read."""
    found: dict[str, None] = {}
    other = ""
    for place in folders:
        try:
            snapshot = f"{place}/snapshots/{_commit(view.text, place, revision)}"
        except FileMissingError:
            continue
        try:
            found[view.text(f"{snapshot}/{CONFIG}").text] = None
        except FileMissingError:
            other = _other(view.text, f"{snapshot}/{MISTRAL}")
    if not found:
        raise SourceError(other or "the hub's cache does not hold it, and the network is not asked")
    if len(found) > 1:
        raise SourceError("two caches of the hub hold different ones")
    return next(iter(found))


def _commit(text: Callable[[str], Text], place: str, revision: str) -> str:
    """Return the commit that a revision stands for."""
    if is_commit(revision):
        return revision
    if ".." in revision.split("/"):
        raise SourceError("--revision is no name of a branch or tag")
    commit = text(f"{place}/refs/{revision}").text.strip()
    if not is_commit(commit):
        raise SourceError("the hub's cache names no commit for the revision")
    return commit


def _other(text: Callable[[str], Text], path: str) -> str:
    """Return why there is nothing to read where there is no config.json."""
    try:
        text(path)
    except SourceError:
        return "not there"
    return f"not there, and {MISTRAL} (Mistral's own format) is not read here"
