"""Turn the YAML file of ``vllm serve --config FILE`` into the arguments vLLM makes of it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import yaml

from budget_exporter.engines._flag_versions import NESTED_CONFIG, Version
from budget_exporter.engines._yaml import load

__all__ = ["config_arguments"]

_ALIASES_ALLOWED = 16
"""YAML aliases multiply: a few lines of them can stand for gigabytes of text."""


def config_arguments(path: str, text: str, negatives: Collection[str], version: Version | None = None) -> list[str]:
    """
    Return the arguments of ``text``: booleans become switches, lists many values, mappings a JSON object.

    ``path`` is only looked at for its ending; a false becomes ``--no-KEY`` where ``negatives`` holds that. Raise
    ValueError where vLLM would refuse the file.
    Source: vLLM 0.32 ``utils/argparse_utils.py`` ``load_config_file``.
    """
    if path.rpartition(".")[2] not in ("yaml", "yml"):
        raise ValueError("not a .yaml or .yml file")
    try:
        aliases = sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader))
        if aliases > _ALIASES_ALLOWED:
            raise ValueError(f"{aliases} YAML aliases")
        config = load(text)
    except (yaml.YAMLError, RecursionError) as error:
        # The parser's own message quotes the file, which may hold an API key.
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"not YAML, line {mark.line + 1}" if mark else "not YAML") from error
    if not isinstance(config, Mapping):
        raise ValueError("not a mapping of flags")  # noqa: TRY004 - the file is wrong, not a type of ours
    args: list[str] = []
    for key, value in config.items():
        if not isinstance(key, str):
            raise ValueError("a key is no text")  # noqa: TRY004 - the file is wrong, not a type of ours
        args += _arguments(key, value, negatives, version)
    return args


def _arguments(key: str, value: object, negatives: Collection[str], version: Version | None) -> list[str]:
    if isinstance(value, bool):
        negative = f"--no-{key}"
        return [f"--{key}"] if value else [negative] if negative in negatives else []
    if isinstance(value, list):
        return [f"--{key}", *map(str, value)] if value else []
    if isinstance(value, Mapping) and (version is None or version >= NESTED_CONFIG):
        try:
            return [f"--{key}", json.dumps(value)]
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{key}: not to be written as JSON") from error
    return [f"--{key}", str(value)]
