"""Turn the YAML file of ``vllm serve --config FILE`` into the arguments vLLM makes of it."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

__all__ = ["config_arguments"]

_ALIASES_ALLOWED = 16
"""YAML aliases multiply: a few lines of them can stand for gigabytes of text."""


def config_arguments(path: str, text: str) -> list[str]:
    """
    Return the arguments of ``text``: booleans become switches, lists many values, mappings an (empty) JSON object.

    ``path`` is only looked at for its ending. Raise ValueError where vLLM would refuse the file.
    Source: vLLM 0.32 ``utils/argparse_utils.py`` ``load_config_file``.
    """
    if path.rpartition(".")[2] not in ("yaml", "yml"):
        raise ValueError("not a .yaml or .yml file")
    try:
        aliases = sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader))
        if aliases > _ALIASES_ALLOWED:
            raise ValueError(f"{aliases} YAML aliases")
        config = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        # The parser's own message quotes the file, which may hold an API key.
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"not YAML, line {mark.line + 1}" if mark else "not YAML") from error
    if not isinstance(config, Mapping):
        raise ValueError("not a mapping of flags")  # noqa: TRY004 - the file is wrong, not a type of ours
    args: list[str] = []
    for key, value in config.items():
        args += _arguments(f"--{key}", value)
    return args


def _arguments(flag: str, value: object) -> list[str]:
    if isinstance(value, bool):
        # vLLM asks the parser of `vllm`, not that of `serve`, whether --no-KEY exists, so a false is mostly dropped;
        # for the flags read here, off is the default as well.
        return [flag] if value else []
    if isinstance(value, list):
        return [flag, *map(_text, value)] if value else []
    return [flag, _text(value)]


def _text(value: object) -> str:
    """Return a scalar as vLLM writes it; of a mapping only that it is one matters."""
    return "{}" if isinstance(value, Mapping | list | set | tuple) else str(value)
