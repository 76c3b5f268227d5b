"""
Publish what the Neuron runtime says of its memory, from inside vLLM's workers.

vLLM calls ``register`` in every process it has. Nothing happens unless BUDGET_NEURON_HOOK_DIR names a folder; then each
worker on a Neuron device writes one small file there, from the time its warm-up has ended. The runtime's ledger can be
asked only by the process that owns the core, so this cannot be done from outside.
"""

from __future__ import annotations

import logging
import os
from functools import partial

__all__ = ["FOLDER", "INTERVAL", "register"]

FOLDER = "BUDGET_NEURON_HOOK_DIR"
"""Environment variable: the folder to write to. Without it the hook is off."""
INTERVAL = "BUDGET_NEURON_HOOK_INTERVAL"
"""Environment variable: seconds between two samples."""
SHORTEST, LONGEST = 10.0, 300.0
"""Nobody has told whether the call is safe beside execution, so it is made seldom."""
_NOT_ON_DEVICE = ("VLLM_NEURON_CPU_MODE", "VLLM_NEURON_CPU_COMPILE")
_LOG = logging.getLogger(__name__)


def register() -> None:
    """Wait for the end of the worker's warm-up; called by vLLM, in each process once or more often. Never raises."""
    try:
        folder = os.environ.get(FOLDER, "")
        if not folder or any(_is_true(os.environ.get(name, "")) for name in _NOT_ON_DEVICE):
            return
        # Only now: a process without the hook pays for nothing but this function.
        from budget_exporter_neuron_hook import _publish, _warm_up  # noqa: PLC0415

        _warm_up.after(partial(_publish.start, folder, _interval(os.environ.get(INTERVAL, ""))))
    except Exception:  # noqa: BLE001 - the engine comes first
        _LOG.debug("the hook stays off", exc_info=True)


def _interval(text: str) -> float:
    try:
        seconds = float(text or SHORTEST)
    except ValueError:
        return SHORTEST
    return min(max(seconds, SHORTEST), LONGEST) if seconds == seconds else SHORTEST  # noqa: PLR0124 - not a NaN


def _is_true(text: str) -> bool:
    return text.strip().lower() not in ("", "0", "false", "no", "off")
