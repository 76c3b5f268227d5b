"""Tell a vLLM server's own command line from its wrappers, and find where its arguments begin."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["server_arguments"]

_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_MODULES = (
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.openai.rpc.api_server",
    "vllm.entrypoints.api_server",
    "vllm.entrypoints.grpc_server",
    "vllm.entrypoints.launchers.grpc_server",
    "vllm.entrypoints.launchers.api_server.entry",
)
"""Modules that serve when run, all with the flags of an engine; looked up in vLLM 0.9, 0.10.1 and 0.32."""
_MAIN_MODULES = ("vllm", "vllm.entrypoints.cli.main", "vllm.scripts")
_SCRIPTS = tuple(f"{module.replace('.', '/')}.py" for module in _MODULES)
_MAIN_SCRIPTS = ("vllm/entrypoints/cli/main.py", "vllm/__main__.py", "vllm/scripts.py")
_MODULE_OR_CODE = re.compile(r"-[bBdEiIOPqRsSuvx]*([mc])(.*)", re.DOTALL)
_TAKE_A_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Options of the Python interpreter whose value may be an argument of its own."""
_NOT_SERVING = frozenset({"-h", "--help", "-v", "--version"})


def server_arguments(argv: Sequence[str]) -> tuple[str, ...] | None:
    """
    Return the arguments of the vLLM server that ``argv`` starts, or None where it starts none.

    The first of them is ``serve`` where the ``vllm`` program was used. Only a Python interpreter running vLLM, or the
    program ``vllm`` itself, counts: a shell, ``uv run``, ``podman run`` or ``grep`` with the same words in its
    arguments is a wrapper or a bystander, and what it starts is a process of its own.
    """
    program = _program(argv)
    if program is None:
        return None
    name, rest = program
    if name == "main" and rest[:1] != ("serve",):
        return None
    asked = {a.partition("=")[0] for a in rest}
    return None if asked & _NOT_SERVING else rest


def _program(argv: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """Return which of vLLM's programs runs (``main`` with subcommands, or ``server``) and its arguments."""
    if not argv:
        return None
    first = _basename(argv[0])
    if first == "vllm":
        return "main", tuple(argv[1:])
    if not _PYTHON.fullmatch(first):
        return None
    at = 1
    while at < len(argv) and argv[at].startswith("-") and not _MODULE_OR_CODE.fullmatch(argv[at]):
        at += 2 if argv[at] in _TAKE_A_VALUE else 1
    return _python_program(argv[at:])


def _python_program(args: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    if not args:
        return None
    kind: str | None = None
    if option := _MODULE_OR_CODE.fullmatch(args[0]):
        module, rest = (option[2], args[1:]) if option[2] else (args[1] if len(args) > 1 else "", args[2:])
        if option[1] == "m":
            kind = "server" if module in _MODULES else "main" if module in _MAIN_MODULES else None
    else:
        script, rest = args[0], args[1:]
        if script.endswith(_SCRIPTS):
            kind = "server"
        elif _basename(script) == "vllm" or script.endswith(_MAIN_SCRIPTS):
            kind = "main"
    return None if kind is None else (kind, tuple(rest))


def _basename(path: str) -> str:
    return path.rpartition("/")[2]
