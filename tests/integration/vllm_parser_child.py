"""
Answer command lines with vLLM's own parser: run by the interpreter of a vLLM venv, never imported by a test.

A line of standard input is ``{"args": [...], "serve": bool}``; the answer is ``{"values": {...}}`` or
``{"error": text}``.
The first line of output holds the option strings, the defaults, and those of batches on 1 and 2 ranks.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from typing import Any


def main() -> None:
    """Read questions until the input ends."""
    # By name: vLLM is not installed where types are checked.
    parser_class = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    make = importlib.import_module("vllm.entrypoints.launchers.cli_args").make_arg_parser
    top = parser_class(prog="vllm")
    commands = top.add_subparsers(dest="subparser")
    serve = make(commands.add_parser("serve", usage="vllm serve"))
    module = make(parser_class(prog="api_server"))
    options = sorted(text for action in serve._actions for text in action.option_strings)
    engine, usage = importlib.import_module("vllm.engine.arg_utils"), importlib.import_module("vllm.usage.usage_lib")
    batches = [
        [table[usage.UsageContext.OPENAI_API_SERVER] for table in engine.EngineArgs.get_batch_defaults(ranks)]
        for ranks in (1, 2)
    ]
    _say({"options": options, "defaults": _values(top.parse_args(["serve"])), "batches": batches})
    for line in sys.stdin:
        asked = json.loads(line)
        _say(_answer(top if asked["serve"] else module, asked["args"]))


def _answer(parser: Any, args: list[str]) -> dict[str, Any]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return {"values": _values(parser.parse_args(args))}
    except SystemExit:
        return {"error": said.getvalue().strip()[-300:]}
    except Exception as error:  # noqa: BLE001 - whatever ends the engine here is its answer
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def _values(namespace: Any) -> dict[str, Any]:
    values = dict(vars(namespace))
    compilation = values.pop("compilation_config", None)
    for name in ("cudagraph_capture_sizes", "max_cudagraph_capture_size"):
        values[f"compilation_{name}"] = getattr(compilation, name, None)
    mode = getattr(compilation, "cudagraph_mode", None)
    values["compilation_cudagraph_mode"] = None if mode is None else mode.name
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return repr(value)  # NaN and infinity are no JSON
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else str(value)


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
