"""
Take the command line of ``podman run`` or ``docker run`` apart: what the container is given, and what it runs.

Source: ``podman-run(1)`` 4.3 to 5 and ``docker run --help`` 20 to 27 for the options that take no value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from budget_exporter.engines._environment_files import plain_environment
from budget_exporter.engines._plan import Plan, Trail, UnresolvedError

__all__ = ["container_run", "given_environment"]

_PROGRAMS = ("podman", "docker")
_NO_VALUE = """
    --detach --env-host --help --http-proxy --init --interactive --no-healthcheck --no-hostname --no-hosts
    --oom-kill-disable --passwd --privileged --publish-all --quiet --read-only --read-only-tmpfs --replace --rm --rmi
    --rootfs --sig-proxy --tls-verify --tty --unsetenv-all --disable-content-trust --use-api-socket
""".split()  # noqa: SIM905 - a table
_SHORT_NO_VALUE = re.compile(r"-[diPqt]+")
_SHORT_GLUED = re.compile(r"-[acehlmpuvw].+", re.DOTALL)
_GLOBAL_VALUE = """
    --cgroup-manager --config --connection --context --host --identity --log-level --root --runroot --runtime
    --storage-driver --storage-opt --url --tmpdir --volumepath -c -H -l
""".split()  # noqa: SIM905 - a table


def container_run(words: Sequence[str], trail: Trail) -> Plan | None:
    """
    Return what the container of ``podman run ... IMAGE ARGUMENTS`` starts, None for any other program.

    Raise UnresolvedError where another command than ``run`` starts it, and where its environment cannot be told.
    """
    if not words or words[0].rpartition("/")[2] not in _PROGRAMS:
        return None
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in _GLOBAL_VALUE else 1
    verb = list(words[at : at + 1])
    if verb == ["container"]:
        at += 1
        verb = list(words[at : at + 1])
    if verb != ["run"]:
        raise UnresolvedError("a container that exists already is started: its command line is in no file")
    options, rest = _options(words[at + 1 :])
    entrypoint = next((value for name, value in reversed(options) if name == "--entrypoint"), None)
    image_args = tuple(rest[1:])
    if not rest:
        raise UnresolvedError("no image is named")
    environ = given_environment(options, trail)
    cwd = next((value for name, value in reversed(options) if name in ("-w", "--workdir")), None)
    if entrypoint:
        return Plan((entrypoint, *image_args), environ, cwd)
    return Plan(image_args, environ, cwd, image=True)


def _options(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the options with their values, and the image with what follows it."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        name, equals, value = word.partition("=")
        if word == "--":
            return found, list(words[at + 1 :])
        if word.startswith("--") and equals:
            found.append((name, value))
            at += 1
        elif name in _NO_VALUE or _SHORT_NO_VALUE.fullmatch(word):
            at += 1
        elif not word.startswith("--") and _SHORT_GLUED.fullmatch(word):
            found.append((word[:2], word[2:].removeprefix("=")))
            at += 1
        else:
            found.append((word, words[at + 1] if at + 1 < len(words) else ""))
            at += 2
    return found, list(words[at:])


def given_environment(options: Sequence[tuple[str, str]], trail: Trail) -> dict[str, str]:
    """Return the variables that ``-e``, ``--env`` and ``--env-file`` set: files first, as podman and docker do."""
    environ: dict[str, str] = {}
    for path in (value for name, value in options if name == "--env-file"):
        text = trail.text(path) if path.startswith("/") else None
        if text is None:
            raise UnresolvedError("a file of --env-file is not there")
        environ |= plain_environment(text)
    for value in (value for name, value in options if name in ("-e", "--env")):
        name, equals, setting = value.partition("=")
        environ |= {name: setting} if equals else {}
    return environ
