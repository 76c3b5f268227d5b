"""Read a config.json's keys with the types they must have; what is wrong is an error that names the key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from budget_exporter.errors import LawError

__all__ = ["MOST_LAYERS", "Keys"]

MOST = 1 << 31
"""No count of a model comes near: more is a broken file, and what it would make us build has no end."""
MOST_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class Keys:
    """One object of a config.json; ``where`` is the path in front of its keys in a message."""

    values: Mapping[str, object]
    where: str = ""

    def count(self, *names: str, default: int | None = None) -> int:
        """
        Return the first of ``names`` that has a value: a whole number from 1 to 2**31.

        Raise LawError where there is none and no ``default``, or where it is no such number.
        """
        found = self.maybe(*names)
        if found is not None:
            return found
        if default is not None:
            return default
        raise LawError(f"config.json: {self.where}{names[0]} is missing")

    def maybe(self, *names: str) -> int | None:
        """Return the first of ``names`` that has a value, None where none has; raise LawError as ``count`` does."""
        for name, value in self._given(names):
            # A bool is an int to Python, and no count.
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MOST:
                raise LawError(
                    f"config.json: {self.where}{name} must be a whole number from 1 to {MOST}, not {_short(value)}"
                )
            return value
        return None

    def whole(self, name: str, default: int | None = None) -> int:
        """Return a whole number from 0 to 2**31; raise LawError as ``count`` does."""
        return 0 if type(self.values.get(name)) is int and self.values[name] == 0 else self.count(name, default=default)

    def text(self, *names: str) -> str | None:
        """Return the first of ``names`` that has a value: a string; None where none has, LawError for another type."""
        for name, value in self._given(names):
            if not isinstance(value, str):
                raise LawError(f"config.json: {self.where}{name} must be a string, not {_short(value)}")
            return value
        return None

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean, ``default`` where it is absent; raise LawError for another type."""
        for _, value in self._given((name,)):
            if not isinstance(value, bool):
                raise LawError(f"config.json: {self.where}{name} must be true or false, not {_short(value)}")
            return value
        return default

    def names(self, name: str, length: int) -> tuple[str, ...] | None:
        """Return a list of ``length`` strings, None where it is absent; raise LawError for anything else."""
        for _, value in self._given((name,)):
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise LawError(f"config.json: {self.where}{name} must be a list of strings, not {_short(value)}")
            if len(value) < length:
                raise LawError(f"config.json: {self.where}{name} names {len(value)} of {length} layers")
            # Multi-token-prediction layers may be named behind the model's own.
            return tuple(value[:length])
        return None

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """Return a list of whole numbers from 0, None where it is absent; raise LawError for anything else."""
        for _, value in self._given((name,)):
            if not isinstance(value, list) or not all(type(item) is int and 0 <= item <= MOST for item in value):
                raise LawError(f"config.json: {self.where}{name} must be a list of whole numbers, not {_short(value)}")
            return tuple(value)
        return None

    def nested(self, name: str) -> Keys | None:
        """Return a nested object, None where it is absent; raise LawError for another type."""
        for _, value in self._given((name,)):
            if not isinstance(value, dict):
                raise LawError(f"config.json: {self.where}{name} must be an object, not {_short(value)}")
            return Keys(value, f"{self.where}{name}.")
        return None

    def layers(self, *names: str, default: int | None = None) -> int:
        """Return the number of layers, which has its own bound: each becomes an object here."""
        number = self.count(*(names or ("num_hidden_layers", "n_layer", "num_layers", "n_layers")), default=default)
        if number > MOST_LAYERS:
            raise LawError(f"config.json: {self.where}{names[0] if names else 'num_hidden_layers'} is {number}")
        return number

    def _given(self, names: tuple[str, ...]) -> Iterator[tuple[str, object]]:
        """Yield the keys that have a value; null is the same as absent."""
        for name in names:
            value = self.values.get(name)
            if value is not None:
                yield name, value


def _short(value: object) -> str:
    return repr(value)[:60]
