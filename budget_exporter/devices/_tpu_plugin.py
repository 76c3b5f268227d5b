"""
The TPU device plugin of a Kubernetes node, which publishes each chip's memory for Prometheus on port 2112.

Source: GKE's page on TPU metrics and public scrapes of it (tpu7x): ``memory_total`` and ``memory_used`` in bytes with
``accelerator_id`` (ends in ``-`` and the chip's number) for chips that a pod holds, the same with ``_node`` for all.
"""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from budget_exporter.devices._tpu_runtime import ChipMemory
from budget_exporter.errors import SourceError

__all__ = ["ask", "parsed"]

_SERIES = {
    # of both, what is told of a pod's chip goes before what is told of the node's
    "memory_total": ("size", 0),
    "memory_used": ("used", 0),
    "memory_total_node": ("size", 1),
    "memory_used_node": ("used", 1),
}
_CHIP = re.compile(r"(?:.*-)?([0-9]{1,4})")
_MOST = 1 << 20
_LARGEST = 1 << 53
"""Up to here a figure of the exposition, which is a double, is exact."""


async def ask(address: str, limit: float) -> str | None:
    """
    Return what ``http://address/metrics`` says, None where nobody listens.

    ``limit`` is in seconds. Raise SourceError where somebody does and gives no answer.
    """
    import aiohttp  # noqa: PLC0415 - its client costs nothing where there is no TPU

    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=limit)) as session,
            session.get(f"http://{address}/metrics", allow_redirects=False) as response,
        ):
            if response.status != 200:  # noqa: PLR2004 - the one status with an answer
                raise SourceError(f"{address}: HTTP status {response.status}")
            body = await response.content.read(_MOST)
            while not response.content.at_eof() and len(body) < _MOST:
                body += await response.content.read(_MOST - len(body))
    except aiohttp.ClientConnectorError:
        return None
    except TimeoutError:
        raise SourceError(f"{address}: no answer within {limit:g} s") from None
    except (aiohttp.ClientError, ValueError) as error:
        raise SourceError(f"{address}: {type(error).__name__}") from error
    return body.decode("utf-8", "replace")


def parsed(address: str, text: str) -> tuple[list[ChipMemory], list[str]]:
    """
    Return the chips of an exposition by number, and a sentence for each figure that cannot be one.

    Both are empty where the text is no device plugin's. Raise SourceError where it is no exposition at all.
    """
    figures: dict[tuple[int, str], tuple[int, int | None]] = {}
    faults: list[str] = []
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except Exception as error:
        raise SourceError(f"{address}: not an exposition: {type(error).__name__}") from error
    for sample in samples:
        if sample.name not in _SERIES or "accelerator_id" not in sample.labels:
            continue
        what, rank = _SERIES[sample.name]
        match = _CHIP.fullmatch(sample.labels["accelerator_id"])
        if match is None:
            faults.append(f"{address}: accelerator_id without a number: {sample.labels['accelerator_id'][:24]!r}")
            continue
        number, figure = int(match[1]), _bytes(sample.value)
        if figure is None:
            faults.append(f"{address}: chip {number}: {what}: not a number of bytes: {sample.value}")
        before = figures.get((number, what))
        if before is not None and before[0] == rank and before[1] != figure:
            faults.append(f"{address}: chip {number}: {what}: told twice")
            figures[number, what] = (rank, None)
        elif before is None or rank < before[0]:
            figures[number, what] = (rank, figure)
    return _chips(address, figures, faults), faults


def _chips(address: str, figures: dict[tuple[int, str], tuple[int, int | None]], faults: list[str]) -> list[ChipMemory]:
    chips = []
    for number, what in sorted(figures):
        if what != "used":
            continue
        used, size = figures[number, "used"][1], figures.get((number, "size"), (0, None))[1]
        if used is None:
            continue
        if not size:
            faults.append(f"{address}: chip {number}: no size")
            continue
        chips.append(ChipMemory(number, size, used))
    return chips


def _bytes(value: float) -> int | None:
    return int(value) if float(value).is_integer() and 0 <= value <= _LARGEST else None
