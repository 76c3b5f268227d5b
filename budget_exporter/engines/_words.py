"""
Take command lines of unit files and shells apart, and put variables in, where it is certain what comes out.

Sources: systemd 252 ``systemd.syntax(7)`` (quoting), ``systemd.service(5)`` (command lines), ``systemd.unit(5)``
(specifiers); POSIX 2.2 for what a shell leaves as it is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from budget_exporter.engines._plan import UnresolvedError

__all__ = ["expanded", "simple_shell", "specified", "systemd_words"]

_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " "}
_ESCAPES |= {"\\": "\\", '"': '"', "'": "'"}
_NUMBER = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})")
_BRACED = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)\}")
_BARE = re.compile(r"\$([A-Za-z_]\w*)")
_ANY = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_SPECIFIER = re.compile(r"%(.)", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_QUOTES = re.compile(r"['\"\\]")
_PATTERN = re.compile(r"[*?\[]")
_SHELLS_OWN = re.compile(r"[;&|<>()`*?\[\]#~!\n]|\$[^{A-Za-z_]|\$\{[^}]*[^}\w]")


def systemd_words(text: str) -> list[str]:
    """Return the words of a line of a unit file; raise UnresolvedError for a quote that does not end."""
    words: list[str] = []
    word: list[str] | None = None
    quote, at = "", 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\" and at < len(text):
            char, at = _escaped(text, at)
            word = [*(word or []), char]
        elif quote:
            quote, word = ("", word) if char == quote else (quote, [*(word or []), char])
        elif char in "'\"":
            quote, word = char, word or []
        elif char.isspace():
            words += ["".join(word)] if word is not None else []
            word = None
        else:
            word = [*(word or []), char]
    if quote:
        raise UnresolvedError("a quote does not end")
    return words + (["".join(word)] if word is not None else [])


def _escaped(text: str, at: int) -> tuple[str, int]:
    """Return what the escape at ``at`` (behind its backslash) stands for, and where it ends."""
    if text[at] in _ESCAPES:
        return _ESCAPES[text[at]], at + 1
    number = _NUMBER.match(text, at)
    if number is None:
        return "\\" + text[at], at + 1
    code = int(number[4], 8) if number[4] else int(next(group for group in number.groups()[:3] if group), 16)
    try:
        return chr(code), number.end()
    except (ValueError, OverflowError):
        return "\\" + text[at], at + 1


def specified(text: str, known: Mapping[str, str]) -> str:
    """Put in what ``%i`` and its like stand for; raise UnresolvedError for one that is not in ``known``."""

    def put(match: re.Match[str]) -> str:
        if match[1] == "%":
            return "%"
        if match[1] not in known:
            raise UnresolvedError(f"what the specifier %{match[1]} stands for is not known")
        return known[match[1]]

    return _SPECIFIER.sub(put, text)


def expanded(words: list[str], environ: Mapping[str, str]) -> list[str]:
    """
    Put variables in as systemd does: ``$NAME`` as a word of its own becomes many words, ``${NAME}`` stays one.

    Raise UnresolvedError for a variable that no file sets: the manager may have a value for it.
    """
    done: list[str] = []
    for word in words:
        bare = _BARE.fullmatch(word)
        if bare:
            done += _value(bare[1], environ).split()
        else:
            done.append(_BRACED.sub(lambda m: "$" if m[1] is None else _value(m[1], environ), word))
    return done


def _value(name: str, environ: Mapping[str, str]) -> str:
    if name not in environ:
        raise UnresolvedError(f"the value of ${name} is not known")
    return environ[name]


def simple_shell(script: str, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """
    Return the words of a script that is one plain command, and the variables set before it.

    Raise UnresolvedError for anything a shell would have to run: pipes, patterns, substitutions, several commands.
    """
    if _SHELLS_OWN.search(script.strip()):
        raise UnresolvedError("a shell script starts it")
    try:
        words = shlex.split(script) if "$" not in script else _split(script, environ)
    except ValueError as error:
        raise UnresolvedError("a shell script starts it, with a quote that does not end") from error
    variables: dict[str, str] = {}
    while words and (words[0] == "exec" or _ASSIGNMENT.match(words[0])):
        name, equals, value = words.pop(0).partition("=")
        variables |= {name: value} if equals else {}
    return words, variables


def _split(script: str, environ: Mapping[str, str]) -> list[str]:
    """Return the words of a script with variables but without quotes: a shell splits what it puts in."""
    if _QUOTES.search(script):
        raise UnresolvedError("a shell script starts it, with variables and quotes")
    words: list[str] = []
    for word in script.split():
        put_in = _ANY.sub(lambda m: _value(m[1] or m[2], environ), word)
        if put_in != word and _PATTERN.search(put_in):
            raise UnresolvedError("a shell script starts it, with a pattern in a variable")
        words += put_in.split()
    return words
