"""argv into a command: the only place that reads it."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from budget_exporter import __version__
from budget_exporter.errors import ConfigError
from budget_exporter.logs import FORMATS, LEVELS
from budget_exporter.sources import OFF_BY_DEFAULT, WHAT

__all__ = ["main"]

COMMANDS = {
    "serve": "watch this host (the default)",
    "demo": "watch a synthetic host with two cards and one engine",
    "explain": "read an engine's log and say how each boot went",
}
SCENARIOS = ("healthy", "knife-edge", "crash-loop")


def main(argv: Sequence[str] | None = None) -> int:
    """Run what ``argv`` (sys.argv without it) asks for; return 2 where a file is wrong, else end the process."""
    # A reload may be asked for before there is anything to reload; unhandled, the signal would end us.
    signal.signal(signal.SIGHUP, lambda *_: None)
    words = list(sys.argv[1:] if argv is None else argv)
    command = words.pop(0) if words and words[0] in COMMANDS else "serve"
    try:
        if command == "explain":
            from budget_exporter.commands import explain  # noqa: PLC0415 - serve must not pay for it

            return explain.run(explain.parser().parse_args(words))
        options = _parser(command).parse_args(words)
        if command == "demo":
            from budget_exporter.commands import demo  # noqa: PLC0415 - serve must not pay for it

            status = demo.run(options)
        else:
            from budget_exporter.commands import serve  # noqa: PLC0415 - so that --help is quick

            status = serve.run(serve.settings(options))
    except ConfigError as error:
        print(f"budget-exporter: {error}", file=sys.stderr)  # noqa: T201 - logging is not set up yet
        return 2
    # A normal exit waits for threads, and one that hangs in the kernel never ends; all that matters is on disk by now.
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"budget-exporter {command}",
        usage="budget-exporter [serve | demo] [flags]\n       budget-exporter explain FILE",
        description="Export the device-memory budget of LLM engines: plan, the engine's own words, measurement.",
        epilog="commands: " + "; ".join(f"{name}: {text}" for name, text in COMMANDS.items()),
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--version", action="version", version=f"budget-exporter {__version__}")
    add("--config.file", dest="config", type=Path, metavar="FILE", help="YAML configuration")
    add(
        "--web.listen-address",
        dest="listen",
        action="append",
        metavar="[HOST]:PORT",
        help="default :19470; may be repeated",
    )
    add("--web.telemetry-path", dest="telemetry", default="/metrics", metavar="PATH", help="default %(default)s")
    add("--path.sysfs", dest="sysfs", type=Path, default=Path("/sys"), metavar="DIR", help="default %(default)s")
    add("--path.procfs", dest="procfs", type=Path, default=Path("/proc"), metavar="DIR", help="default %(default)s")
    add("--path.rootfs", dest="rootfs", type=Path, default=Path("/"), metavar="DIR", help="default %(default)s")
    add(
        "--path.container-socket",
        dest="container_sockets",
        type=Path,
        action="append",
        default=[],
        metavar="SOCKET",
        help="of podman or docker, beside the usual ones; may be repeated",
    )
    add(
        "--path.neuron-hook",
        dest="neuron_hook",
        type=Path,
        metavar="DIR",
        help="where hooks in engines on Neuron write, if their environment does not tell",
    )
    add("--state.file", dest="state", metavar="FILE", help="default $STATE_DIRECTORY/state.json; empty: keep no state")
    add("--log.level", dest="level", choices=LEVELS, default="info", help="default %(default)s")
    add("--log.format", dest="format", choices=FORMATS, default="logfmt", help="default %(default)s")
    if command == "demo":
        add("--scenario", choices=SCENARIOS, default="healthy", help="what the synthetic engine does")
        add(
            "--if-nothing-to-watch",
            dest="if_nothing",
            action="store_true",
            help="watch this host where it has a device or an engine, else the synthetic one",
        )
    _add_sources(parser)
    return parser


def _add_sources(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sources", "--no-source.NAME turns one off; each is quiet where there is no such")
    for name, what in WHAT.items():
        note = " (default off)" if name in OFF_BY_DEFAULT else ""
        to = f"source_{name}"
        group.add_argument(f"--source.{name}", dest=to, action="store_true", default=None, help=f"{what}{note}")
        group.add_argument(f"--no-source.{name}", dest=to, action="store_false", help=argparse.SUPPRESS)
