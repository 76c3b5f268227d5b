"""Read the configuration again when asked to, off the event loop: its file may lie where reads hang."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from budget_exporter import registries
from budget_exporter.config import Config
from budget_exporter.errors import ConfigError
from budget_exporter.facts.ledger import RegistryEntry

__all__ = ["Reload"]

TIME = 10.0
"""Seconds the files may take to be read."""
_LOG = logging.getLogger("budget_exporter")


class Reload:
    """
    The last reload and the next one; ``take`` is given each configuration that is right, with its registries.

    What is asked for while a reload goes on is done once more after it, so that the newest file is the one in force.
    """

    def __init__(self, take: Callable[[Config, tuple[RegistryEntry, ...]], None], clock: Callable[[], float]) -> None:
        self.successful = True
        self.at = clock()
        """Unix time of the last successful one, at first of the start."""
        self._take = take
        self._clock = clock
        self._asked: Callable[[], Config] | None = None
        self._task: asyncio.Task[None] | None = None

    def ask(self, read: Callable[[], Config]) -> None:
        """Have the configuration that ``read`` returns taken; called in the event loop."""
        self._asked = read
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="reload")

    async def _run(self) -> None:
        while self._asked is not None:
            read, self._asked = self._asked, None
            try:
                config, registry = await asyncio.wait_for(asyncio.to_thread(_read, read), TIME)
                self._take(config, registry)
            except ConfigError as error:
                self._failed(str(error))
            except TimeoutError:
                self._failed(f"its files cannot be read within {TIME:.0f} s")
            except Exception as error:  # noqa: BLE001 - whatever it is, the old configuration is in force
                self._failed(f"{type(error).__name__}: {error}")
            else:
                self.successful, self.at = True, self._clock()
                _LOG.info("configuration reloaded")

    def _failed(self, why: str) -> None:
        self.successful = False
        _LOG.error("configuration not reloaded, the old one stays: %s", why)


def _read(read: Callable[[], Config]) -> tuple[Config, tuple[RegistryEntry, ...]]:
    config = read()
    return config, registries.load(config)
