"""
Split a vLLM command line the way its parser does, without judging any value.

Source: vLLM 0.32 ``utils/argparse_utils.py`` (``FlexibleArgumentParser``) on top of Python's ``argparse``: names with
``_`` or ``-``, unique prefixes, ``-O3``, dotted JSON keys, ``--config FILE`` put in right after the model. What was
otherwise before is in ``_flag_versions.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from budget_exporter.engines._config_file import config_arguments
from budget_exporter.engines._dotted import merge_dotted
from budget_exporter.engines._flag_table import OPTIONS, Option, options
from budget_exporter.engines._flag_versions import LEVEL_FLAG, LEVEL_ONLY, NEWEST, Version
from budget_exporter.errors import SourceError

__all__ = ["CommandLine", "Given", "split"]

_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_LEVELS = ("0", "1", "2", "3")
_SERVED_NAME = re.compile(r"--served[-_]model[-_]name(=.+|$)", re.DOTALL)
_CONFIG = re.compile(r"--config(=.+|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Given:
    """One flag as it was typed: the values that follow it, none for a switch."""

    name: str
    values: tuple[str, ...] = ()
    negative: bool = False


@dataclass(slots=True)
class CommandLine:
    """Flags in the order in which they count (the last one wins), the model, and what the parser would not accept."""

    version: Version | None = None
    flags: list[Given] = field(default_factory=list)
    model: str | None = None
    faults: list[str] = field(default_factory=list)
    unread: bool = False
    """Whether the file after ``--config`` is missing in ``flags``."""


def split(args: Sequence[str], read_config: Callable[[str], str] | None, version: Version | None = None) -> CommandLine:
    """
    Return the flags of ``args``, which begin with ``serve`` where the ``vllm`` program was started.

    ``read_config`` returns the text of the file after ``--config``; None where files cannot be read. ``version`` is the
    engine's release; where that is None, what any release takes is taken.
    """
    line = CommandLine(version)
    serve = bool(args) and args[0] == "serve"
    rest = list(args[1:] if serve else args)
    if serve:
        rest = _model_to_the_front(rest, line)
        if rest and rest[0].startswith("-") and _any(_SERVED_NAME, rest) and not _any(_CONFIG, rest):
            line.faults.append("--served-model-name: the model must come first, or by --model")
    rest = _with_config(rest, serve, read_config, line)
    positionals = _parse(merge_dotted(_normalise(rest, version), line.faults), line)
    flagged = next((g.values[-1] for g in reversed(line.flags) if g.name == "model" and g.values), None)
    # The API server module knows the positional model too, and does not look at it.
    line.model = positionals[0] if serve and positionals else flagged
    if len(positionals) > 1:
        line.faults.append(f"{len(positionals) - 1} argument(s) that belong to no flag")
    return line


def _any(pattern: re.Pattern[str], args: Sequence[str]) -> bool:
    return any(pattern.match(arg) for arg in args)


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
    # Without a subcommand the engine takes whatever word comes first for one.
    front = 1 if at > 0 and not rest[0].startswith("-") else 0
    path, rest = rest[at + 1], rest[:at] + rest[at + 2 :]
    line.unread = True
    if read_config is None:
        line.faults.append(f"--config {path}: not read; the flags it sets are unknown")
        return rest
    # vLLM asks the parser of ``vllm``, not that of ``serve``, whether there is a --no-KEY: it knows none.
    known: Mapping[str, Option] = {} if serve else options(line.version)
    try:
        inserted = config_arguments(path, read_config(path), known, line.version)
    except (OSError, SourceError, ValueError) as error:
        line.faults.append(f"--config {path}: {error}; the flags it sets are unknown")
        return rest
    line.unread = False
    if serve and not front and "--model" not in inserted:
        line.faults.append(f"--config {path}: no model, neither in the file nor first on the command line")
    return rest[:front] + inserted + rest[front:]


def _normalise(rest: Sequence[str], version: Version | None) -> list[str]:
    """Turn ``_`` into ``-`` in names up to the first dot, and ``-O3`` into its long form."""
    done: list[str] = []
    for at, arg in enumerate(rest):
        if arg.startswith("--"):
            key, equals, value = arg.partition("=")
            name, dot, path = key.partition(".")
            done.append(name.replace("_", "-") + dot + path + equals + value)
        elif arg.startswith("-O") and arg != "-O":
            done += _level(arg, version)
        elif arg == "-O" and rest[at + 1 : at + 2] and rest[at + 1] in _LEVELS:
            done.append("-cc.level" if _before(version, LEVEL_FLAG) else "--optimization-level")
        else:
            done.append(arg)
    return done


def _level(arg: str, version: Version | None) -> list[str]:
    """Return what ``-O3``, ``-O=3`` or ``-O.level=3`` stands for."""
    if arg[2] == "." and (version is None or version < LEVEL_ONLY):
        return ["-cc" + arg[2:]]
    level = arg[3:] if arg[2] == "=" else arg[2:]
    return [f"-cc.level={level}"] if _before(version, LEVEL_FLAG) else ["--optimization-level", level]


def _before(version: Version | None, since: Version) -> bool:
    return version is not None and version < since


def _parse(args: Sequence[str], line: CommandLine) -> list[str]:
    """Append the flags of ``args`` to ``line`` and return the positional arguments."""
    positionals: list[str] = []
    at, last = 0, -1
    while at < len(args):
        arg = args[at]
        if arg == "--":
            if positionals and at - 1 != last:
                line.faults.append("--: stands behind the model")
            positionals += args[at + 1 :]
            break
        if not _is_option(arg, line.version):
            positionals.append(arg)
            last, at = at, at + 1
            continue
        end = at + 1
        while end < len(args) and not _is_option(args[end], line.version):
            end += 1
        at += 1 + _take(arg, args[at + 1 : end], line)
    return positionals


def _is_option(arg: str, version: Version | None) -> bool:
    """Argparse takes for an option what it knows, or what starts with a dash, has no blank and is no number."""
    if not arg.startswith("-") or arg == "-":
        return False
    if _matches(arg, version):
        return True
    return _NEGATIVE_NUMBER.fullmatch(arg) is None and " " not in arg


def _matches(arg: str, version: Version | None) -> list[tuple[str, Option, str | None]]:
    """Return what ``arg`` may stand for: the option string, the option, and the value glued to it."""
    known = options(version)
    if arg in known:
        return [(arg, known[arg], None)]
    name, equals, value = arg.partition("=")
    glued = value if equals else None
    found: list[tuple[str, Option, str | None]]
    if equals and name in known:
        return [(name, known[name], glued)]
    if arg.startswith("--"):
        found = [(text, option, glued) for text, option in known.items() if text.startswith(name)]
        newest = version or NEWEST
        return [match for match in found if not match[1].fork and match[1].in_(newest)] or found
    found = [(text, option, None) for text, option in known.items() if text.startswith(arg)]
    if arg[:2] in known:
        found.append((arg[:2], known[arg[:2]], arg[2:]))
    return found


def _take(arg: str, values: Sequence[str], line: CommandLine) -> int:
    """Read the flag ``arg`` with what it takes of the ``values`` behind it; return how many it took."""
    typed = arg.partition("=")[0]
    matches = _matches(arg, line.version)
    if len(matches) != 1:
        line.faults.append(f"{typed}: {_why(typed, matches, line.version)}; ignored")
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


def _why(typed: str, matches: Sequence[tuple[str, Option, str | None]], version: Version | None) -> str:
    if matches:
        return f"ambiguous, could be {', '.join(sorted(text for text, _, _ in matches))}"
    if version is not None and typed in OPTIONS:
        return f"not a flag of vLLM {'.'.join(map(str, version))}"
    return "not a flag of vLLM 0.8.5 to 0.33 that we know"
