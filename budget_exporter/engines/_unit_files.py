"""
Read unit files and their drop-ins, systemd's and quadlet's, as far as a service's command and environment need.

Sources: systemd 252 ``systemd.unit(5)`` (load path, drop-ins, templates) and ``systemd.syntax(7)``; podman 4.4 to 5
``podman-systemd.unit(5)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from budget_exporter.engines._plan import Trail, UnresolvedError

__all__ = ["QUADLETS", "UNITS", "UnitFile", "load", "specifiers"]

UNITS = (
    *("/etc/systemd/system.control", "/run/systemd/system.control", "/run/systemd/transient"),
    *("/etc/systemd/system", "/run/systemd/system", "/run/systemd/generator"),
    *("/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"),
    "/run/systemd/generator.late",
)
"""Where the system's units lie, the first that has one wins."""
QUADLETS = ("/run/containers/systemd", "/etc/containers/systemd", "/usr/share/containers/systemd")
"""Where podman's generator looks."""


@dataclass(slots=True)
class UnitFile:
    """The settings of a unit: each key's values in the order in which they count, an empty one having cleared them."""

    path: str = ""
    settings: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    dropped_in: set[tuple[str, str]] = field(default_factory=set)
    """Keys that a drop-in set."""

    def all(self, section: str, key: str) -> list[str]:
        """Return the values of ``key``."""
        return self.settings.get((section, key), [])

    def last(self, section: str, key: str) -> str | None:
        """Return the value that counts where only one does."""
        values = self.all(section, key)
        return values[-1] if values else None

    def take(self, text: str, *, dropped_in: bool) -> None:
        """Add what ``text`` sets."""
        section = ""
        for line in _logical_lines(text):
            if line.startswith("[") and line.endswith("]"):
                section = line[1:-1]
                continue
            key, equals, value = line.partition("=")
            if not equals:
                continue
            where = (section, key.strip())
            if dropped_in:
                self.dropped_in.add(where)
            if value.strip():
                self.settings.setdefault(where, []).append(value.strip())
            else:
                self.settings[where] = []


def _logical_lines(text: str) -> list[str]:
    """Return lines without comments, those that end in a backslash joined with the next."""
    lines: list[str] = []
    begun = ""
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith(("#", ";")) or (not bare and not begun):
            continue
        if bare.endswith("\\"):
            begun += bare[:-1] + " "
            continue
        lines.append(begun + bare)
        begun = ""
    return [*lines, begun] if begun else lines


def load(trail: Trail, folders: Sequence[str], name: str) -> UnitFile | None:
    """
    Return the unit ``name`` with its drop-ins, None where no folder has it.

    Raise UnresolvedError for one that is masked, SourceError for a file that cannot be read.
    """
    found = UnitFile()
    for candidate in dict.fromkeys((name, template(name))):
        for folder in folders:
            text = trail.text(f"{folder}/{candidate}")
            if text is not None:
                found.path = f"{folder}/{candidate}"
                found.take(text, dropped_in=False)
                break
        if found.path:
            break
    else:
        return None
    for path in _drop_ins(trail, folders, name):
        found.take(trail.text(path) or "", dropped_in=True)
    return found


def template(name: str) -> str:
    """Return ``vllm@.service`` for ``vllm@qwen.service``, the name itself for what is no instance."""
    stem, dot, suffix = name.rpartition(".")
    before, at, _ = stem.partition("@")
    return f"{before}@{dot}{suffix}" if at else name


def _drop_ins(trail: Trail, folders: Sequence[str], name: str) -> list[str]:
    """Return the drop-ins in the order in which they are read: by file name; of two of a name the nearer one counts."""
    stem, dot, suffix = name.rpartition(".")
    kinds = [name, template(name)]
    parts = stem.partition("@")[0].split("-")
    kinds += [f"{'-'.join(parts[:count])}-{dot}{suffix}" for count in range(len(parts) - 1, 0, -1)]
    kinds.append(suffix)
    found: dict[str, str] = {}
    for kind in dict.fromkeys(kinds):
        for folder in folders:
            for file in trail.names(f"{folder}/{kind}.d"):
                if file.endswith(".conf"):
                    found.setdefault(file, f"{folder}/{kind}.d/{file}")
    return [found[file] for file in sorted(found)]


def specifiers(name: str) -> dict[str, str]:
    """Return what the specifiers of a system unit stand for, those that need the running system left out."""
    stem = name.rpartition(".")[0]
    prefix, at, instance = stem.partition("@")
    known = {"n": name, "N": stem, "p": prefix, "P": _unescaped(prefix), "j": prefix.rpartition("-")[2]}
    known |= {"i": instance if at else "", "I": _unescaped(instance)}
    known |= {
        "t": "/run",
        "S": "/var/lib",
        "C": "/var/cache",
        "L": "/var/log",
        "E": "/etc",
    }
    return known | {"u": "root", "U": "0", "g": "root", "G": "0", "h": "/root"}


def _unescaped(text: str) -> str:
    """Undo systemd-escape: a dash is a slash, a backslash with x2d a dash."""
    parts = text.replace("-", "/").split("\\x")
    try:
        return parts[0] + "".join(chr(int(part[:2], 16)) + part[2:] for part in parts[1:])
    except ValueError as error:
        raise UnresolvedError("the unit's name is not escaped as systemd does") from error
