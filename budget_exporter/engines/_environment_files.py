"""
Read files of variables: systemd's EnvironmentFile=, podman's and docker's --env-file, compose's .env.

Sources: systemd 252 ``systemd.exec(5)``; docker 24 and podman 4 ``run --env-file`` (a line is taken as it stands);
the Compose specification, "Env_file format".
"""

from __future__ import annotations

import re

__all__ = ["dotenv", "plain_environment", "systemd_environment"]

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=[ \t]*(.*)", re.DOTALL)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"')
_COMMENT = re.compile(r"\s#.*$")


def systemd_environment(text: str) -> dict[str, str]:
    """Return the variables: quotes taken off, lines that end in a backslash joined, ``#`` and ``;`` begin comments."""
    found: dict[str, str] = {}
    for line in text.replace("\\\n", "").splitlines():
        match = _LINE.fullmatch(line)
        if match and not line.lstrip().startswith(("#", ";")):
            found[match[1]] = _unquoted(match[2].strip())
    return found


def plain_environment(text: str) -> dict[str, str]:
    """Return the variables, each value as it stands; a name alone is taken from who starts it, and left out."""
    matches = (_ASSIGNED.fullmatch(line.lstrip()) for line in text.splitlines())
    return {match[1]: match[2] for match in matches if match}


def dotenv(text: str) -> dict[str, str]:
    """Return the variables: quotes taken off, a comment behind a blank cut off."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = None if line.lstrip().startswith("#") else _LINE.fullmatch(line)
        if match:
            value = match[2].strip()
            found[match[1]] = _unquoted(value) if value[:1] in ("'", '"') else _COMMENT.sub("", value)
    return found


def _unquoted(value: str) -> str:
    if value.startswith("'") and value.endswith("'") and len(value) > 1:
        return value[1:-1]
    double = _DOUBLE.match(value)
    return re.sub(r"\\(.)", r"\1", double[1]) if double else value
