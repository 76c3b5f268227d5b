"""
Tell from a unit's files what its next start runs, whether or not systemd has read them again.

Source: systemd 252 ``systemd.service(5)`` and ``systemd.exec(5)``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from budget_exporter.engines._container_run import container_run
from budget_exporter.engines._environment_files import systemd_environment
from budget_exporter.engines._pending_quadlet import planned_by_quadlet, quadlet_of
from budget_exporter.engines._plan import Plan, Trail, UnresolvedError
from budget_exporter.engines._unit_files import UNITS, UnitFile, load, specifiers
from budget_exporter.engines._words import expanded, simple_shell, specified, systemd_words

__all__ = ["planned_by_unit", "service_environment", "unwrapped"]

_PREFIXES = re.compile(r"[-@:+!|]*")
_SHELLS = ("sh", "bash", "dash")
_COMMAND = re.compile(r"-[a-z]*c[a-z]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def planned_by_unit(trail: Trail, name: str) -> Plan:
    """
    Return what the service ``name`` starts; a unit that podman's generator made is read from its quadlet.

    Raise UnresolvedError where that cannot be told, SourceError for a file that cannot be read.
    """
    unit = load(trail, UNITS, name)
    quadlet = quadlet_of(trail, name, unit)
    if quadlet is not None and (unit is None or ("Service", "ExecStart") not in unit.dropped_in):
        return planned_by_quadlet(trail, quadlet)
    if unit is None:
        raise UnresolvedError("no file of the unit was found")
    commands = unit.all("Service", "ExecStart")
    if not commands:
        raise UnresolvedError("the unit has no ExecStart")
    known = specifiers(name)
    environ = service_environment(trail, unit, name)
    folder = unit.last("Service", "WorkingDirectory")
    cwd = None if folder is None else specified(folder.lstrip("-"), known).replace("~", "/root", 1)
    prefix = _PREFIXES.match(commands[-1])
    marks = prefix[0] if prefix else ""
    words = [specified(word, known) for word in systemd_words(commands[-1][len(marks) :])]
    words = words if ":" in marks else expanded(words, environ)
    if "@" in marks:
        del words[1:2]
    return unwrapped(words, environ, cwd, trail)


def service_environment(trail: Trail, unit: UnitFile, name: str) -> dict[str, str]:
    """Return the variables a service gets from its files: those of EnvironmentFile go before those of Environment."""
    known = specifiers(name)
    environ: dict[str, str] = {}
    for line in unit.all("Service", "Environment"):
        for word in systemd_words(line):
            match = _ASSIGNMENT.fullmatch(specified(word, known))
            environ |= {match[1]: match[2]} if match else {}
    for path in unit.all("Service", "EnvironmentFile"):
        where = specified(path.lstrip("-"), known)
        if any(mark in where for mark in "*?["):
            raise UnresolvedError("EnvironmentFile is a pattern")
        text = trail.text(where)
        if text is None and not path.startswith("-"):
            raise UnresolvedError("the file of EnvironmentFile is not there")
        environ |= systemd_environment(text or "")
    for line in unit.all("Service", "UnsetEnvironment"):
        for word in systemd_words(line):
            environ.pop(word.partition("=")[0], None)
    return environ


def unwrapped(words: Sequence[str], environ: dict[str, str], cwd: str | None, trail: Trail) -> Plan:
    """Return what a shell with one plain command, ``env``, or ``podman run`` and ``docker run`` start in the end."""
    words, environ = list(words), dict(environ)
    while words:
        program = words[0].rpartition("/")[2]
        if program in _SHELLS and len(words) > 2 and _COMMAND.fullmatch(words[1]):  # noqa: PLR2004 - sh -c SCRIPT
            words, variables = simple_shell(words[2], environ)
            environ |= variables
        elif program == "env" and len(words) > 1:
            # Its options take variables away: those that are left are not known.
            environ = {} if words[1].startswith("-") else environ
            words = words[1:]
            if words[0].startswith("-"):
                break
            while words and (match := _ASSIGNMENT.fullmatch(words[0])):
                environ[match[1]] = match[2]
                words = words[1:]
        else:
            break
    return container_run(words, trail) or Plan(tuple(words), environ, cwd)
