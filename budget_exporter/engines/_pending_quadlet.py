"""
Tell from a quadlet (``NAME.container``) what its next start runs, whether or not the generator has run again.

Source: podman 4.4 to 5 ``podman-systemd.unit(5)``.
"""

from __future__ import annotations

from budget_exporter.engines._container_run import given_environment
from budget_exporter.engines._plan import Plan, Trail, UnresolvedError
from budget_exporter.engines._unit_files import QUADLETS, UnitFile, load, specifiers
from budget_exporter.engines._words import expanded, specified, systemd_words

__all__ = ["planned_by_quadlet", "quadlet_of"]

_SUFFIX = ".container"


def quadlet_of(trail: Trail, service: str, unit: UnitFile | None) -> str | None:
    """Return the path of the quadlet that the service was, or will be, made of; None where it is of none."""
    source = unit.last("Unit", "SourcePath") if unit is not None else None
    if source is not None and source.endswith(_SUFFIX):
        return source
    if unit is not None:
        return None
    name = service.removesuffix(".service") + _SUFFIX
    return next((f"{folder}/{name}" for folder in QUADLETS if name in trail.names(folder)), None)


def planned_by_quadlet(trail: Trail, path: str) -> Plan:
    """Return what the container starts; raise UnresolvedError where the image decides that, SourceError as Trail."""
    folder, _, name = path.rpartition("/")
    quadlet = load(trail, (folder, *(other for other in QUADLETS if other != folder)), name)
    if quadlet is None:
        raise UnresolvedError("the quadlet is not there")
    known = specifiers(name.removesuffix(_SUFFIX) + ".service")
    options: list[tuple[str, str]] = []
    for line in quadlet.all("Container", "Environment"):
        options += [("--env", specified(word, known)) for word in systemd_words(line)]
    for value in quadlet.all("Container", "EnvironmentFile"):
        file = specified(value, known)
        options.append(("--env-file", file if file.startswith("/") else f"{folder}/{file}"))
    for line in quadlet.all("Container", "PodmanArgs"):
        words = [specified(word, known) for word in systemd_words(line)]
        options += _environment_options(words)
    command = quadlet.last("Container", "Exec")
    entrypoint = quadlet.last("Container", "Entrypoint")
    if command is None and entrypoint is None:
        raise UnresolvedError("the image decides what runs: the quadlet has no Exec")
    words = [specified(word, known) for word in systemd_words(command or "")]
    words = expanded(words, _service_variables(quadlet, known))
    environ = given_environment(options, trail)
    cwd = quadlet.last("Container", "WorkingDir")
    if entrypoint is not None:
        return Plan((specified(entrypoint, known), *words), environ, cwd)
    return Plan(tuple(words), environ, cwd, image=True)


def _environment_options(words: list[str]) -> list[tuple[str, str]]:
    """Return the variables that PodmanArgs sets; the other options are none of ours."""
    found: list[tuple[str, str]] = []
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in ("--env", "-e", "--env-file"):
            found.append((name, value if equals else " ".join(words[at + 1 : at + 2])))
    return found


def _service_variables(quadlet: UnitFile, known: dict[str, str]) -> dict[str, str]:
    """Return what systemd puts in for ``${NAME}`` in Exec: the variables of the service, not of the container."""
    found: dict[str, str] = {}
    for line in quadlet.all("Service", "Environment"):
        for word in systemd_words(line):
            name, equals, value = specified(word, known).partition("=")
            found |= {name: value} if equals else {}
    return found
