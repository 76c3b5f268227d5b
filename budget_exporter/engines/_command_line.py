"""
Split a vLLM command line the way its parser does, without judging any value.

Source: vLLM 0.32 ``utils/argparse_utils.py`` (``FlexibleArgumentParser``) on top of Python's ``argparse``: names with
``_`` or ``-``, unique prefixes, ``-O3``, dotted JSON keys, ``--config FILE`` put in right after the model.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from budget_exporter.engines._config_file import config_arguments
from budget_exporter.engines._flag_table import OPTIONS, Option
from budget_exporter.errors import SourceError
from budget_exporter.units import human_int

__all__ = ["CommandLine", "Given", "split"]

_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_LEVELS = ("0", "1", "2", "3")


@dataclass(frozen=True, slots=True)
class Given:
    """One flag as it was typed: the values that follow it, none for a switch."""

    name: str
    values: tuple[str, ...] = ()
    negative: bool = False


@dataclass(slots=True)
class CommandLine:
    """Flags in the order in which they count (the last one wins), the model, and what the parser would not accept."""

    flags: list[Given] = field(default_factory=list)
    model: str | None = None
    faults: list[str] = field(default_factory=list)


def split(args: Sequence[str], read_config: Callable[[str], str] | None) -> CommandLine:
    """
    Return the flags of ``args``, which begin with ``serve`` where the ``vllm`` program was started.

    ``read_config`` returns the text of the file after ``--config``; None where files cannot be read.
    """
    line = CommandLine()
    serve = bool(args) and args[0] == "serve"
    rest = list(args[1:] if serve else args)
    if serve:
        rest = _model_to_the_front(rest, line)
    rest = _with_config(rest, serve, read_config, line)
    positionals = _parse(_merge_dotted(_normalise(rest), line), line)
    flagged = next((g.values[-1] for g in reversed(line.flags) if g.name == "model" and g.values), None)
    # The API server module knows the positional model too, and does not look at it.
    line.model = positionals[0] if serve and positionals else flagged
    if len(positionals) > 1:
        line.faults.append(f"{len(positionals) - 1} argument(s) that belong to no flag")
    return line


def _model_to_the_front(rest: list[str], line: CommandLine) -> list[str]:
    """``vllm serve`` takes ``--model M`` as if M had been typed first."""
    for at, arg in enumerate(rest):
        if arg.startswith("--model=") and len(arg) > len("--model="):
            return [arg.partition("=")[2], *rest[:at], *rest[at + 1 :]]
        if arg == "--model":
            if at + 1 == len(rest):
                line.faults.append("--model: no value follows it")
                return rest[:at]
            return [rest[at + 1], *rest[:at], *rest[at + 2 :]]
    return rest


def _with_config(
    rest: list[str], serve: bool, read_config: Callable[[str], str] | None, line: CommandLine
) -> list[str]:
    """Put the file's flags where the command line still wins over them; ``--config=FILE`` is ignored, as vLLM does."""
    if "--config" not in rest:
        return rest
    at = rest.index("--config")
    if rest.count("--config") > 1 or at + 1 == len(rest):
        line.faults.append("--config: given more than once, or without a file")
        return [arg for i, arg in enumerate(rest) if arg != "--config" and (i == 0 or rest[i - 1] != "--config")]
    path, rest = rest[at + 1], rest[:at] + rest[at + 2 :]
    if read_config is None:
        line.faults.append(f"--config {path}: not read; the flags it sets are unknown")
        return rest
    try:
        inserted = config_arguments(path, read_config(path))
    except (OSError, SourceError, ValueError) as error:
        line.faults.append(f"--config {path}: {error}; the flags it sets are unknown")
        return rest
    front = 1 if serve and rest and not rest[0].startswith("-") else 0
    return rest[:front] + inserted + rest[front:]


def _normalise(rest: Sequence[str]) -> list[str]:
    """Turn ``_`` into ``-`` in names up to the first dot, and ``-O3`` into its long form."""
    done: list[str] = []
    for at, arg in enumerate(rest):
        if arg.startswith("--"):
            key, equals, value = arg.partition("=")
            name, dot, path = key.partition(".")
            done.append(name.replace("_", "-") + dot + path + equals + value)
        elif arg.startswith("-O") and arg != "-O":
            done += ["--optimization-level", arg[3:] if arg[2] == "=" else arg[2:]]
        elif arg == "-O" and rest[at + 1 : at + 2] and rest[at + 1] in _LEVELS:
            done.append("--optimization-level")
        else:
            done.append(arg)
    return done


def _merge_dotted(args: Sequence[str], line: CommandLine) -> list[str]:
    """Take ``-cc.mode=3`` and ``--hf-overrides.x 1`` out and put ``-cc {"mode": 3}`` last, as the engine does."""
    kept: list[str] = []
    dotted: dict[str, dict[str, object]] = {}
    rest: Iterator[str] = iter(args)
    for arg in rest:
        key, equals, value = arg.partition("=")
        if not arg.startswith("-") or "." not in key:
            kept.append(arg)
            continue
        follows = value if equals else next(rest, None)
        if follows is None:
            line.faults.append(f"{key}: no value follows it")
        elif _NEGATIVE_NUMBER.fullmatch(key):
            line.faults.append(f"{key}: read as a flag with a dotted key")
        else:
            flag, _, path = key.partition(".")
            # Deeper paths say nothing about memory: their own dots stay in the name.
            dotted.setdefault(flag, {})[path] = _value(follows)
    for key, values in dotted.items():
        kept += [key, json.dumps(values)]
    return kept


def _value(text: str) -> object:
    """Return the value of a dotted key: a JSON scalar, else a number as people write it, else the text."""
    for read in (json.loads, human_int):
        with contextlib.suppress(ValueError, OverflowError, RecursionError):
            value: object = read(text)
            return text if isinstance(value, (dict, list)) else value
    return text


def _parse(args: Sequence[str], line: CommandLine) -> list[str]:
    """Append the flags of ``args`` to ``line`` and return the positional arguments."""
    positionals: list[str] = []
    at = 0
    while at < len(args):
        arg = args[at]
        if arg == "--":
            positionals += args[at + 1 :]
            break
        if not _is_option(arg):
            positionals.append(arg)
            at += 1
            continue
        end = at + 1
        while end < len(args) and not _is_option(args[end]):
            end += 1
        at += 1 + _take(arg, args[at + 1 : end], line)
    return positionals


def _is_option(arg: str) -> bool:
    """Argparse takes for an option what it knows, or what starts with a dash, has no blank and is no number."""
    if not arg.startswith("-") or arg == "-":
        return False
    if _matches(arg):
        return True
    return _NEGATIVE_NUMBER.fullmatch(arg) is None and " " not in arg


def _matches(arg: str) -> list[tuple[str, Option, str | None]]:
    """Return what ``arg`` may stand for: the option string, the option, and the value glued to it."""
    if arg in OPTIONS:
        return [(arg, OPTIONS[arg], None)]
    name, equals, value = arg.partition("=")
    glued = value if equals else None
    found: list[tuple[str, Option, str | None]]
    if equals and name in OPTIONS:
        return [(name, OPTIONS[name], glued)]
    if arg.startswith("--"):
        found = [(text, option, glued) for text, option in OPTIONS.items() if text.startswith(name)]
        return [match for match in found if not match[1].retired] or found
    found = [(text, option, None) for text, option in OPTIONS.items() if text.startswith(arg)]
    if arg[:2] in OPTIONS:
        found.append((arg[:2], OPTIONS[arg[:2]], arg[2:]))
    return found


def _take(arg: str, values: Sequence[str], line: CommandLine) -> int:
    """Read the flag ``arg`` with what it takes of the ``values`` behind it; return how many it took."""
    typed = arg.partition("=")[0]
    matches = _matches(arg)
    if len(matches) != 1:
        names = ", ".join(sorted(text for text, _, _ in matches))
        why = f"ambiguous, could be {names}" if matches else "not a flag of vLLM 0.8.5 to 0.33 that we know"
        line.faults.append(f"{typed}: {why}; ignored")
        return len(values)
    _, option, glued = matches[0]
    if option.kind in ("switch", "mark"):
        if glued is not None:
            line.faults.append(f"{typed}: takes no value; ignored")
        else:
            line.flags.append(Given(option.name, negative=option.negative))
        return 0
    if glued is not None:
        line.flags.append(Given(option.name, (glued,)))
        return 0
    wanted = len(values) if option.kind == "list" else 1
    if option.kind != "maybe" and not values:
        line.faults.append(f"{typed}: no value follows it")
        return 0
    line.flags.append(Given(option.name, tuple(values[:wanted])))
    return min(wanted, len(values))
