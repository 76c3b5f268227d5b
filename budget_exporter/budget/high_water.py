"""The high-water mark of one card under one engine epoch, and the largest use of the last minute."""

from __future__ import annotations

import math

from budget_exporter.facts.device import DeviceWindow, HighWater

__all__ = ["START_SLACK", "WINDOW", "fold"]

WINDOW = 61.0
"""Seconds a second's largest use is kept: 60, and one more because it is filed under the beginning of its second."""
START_SLACK = 1.0
"""Seconds by which a start time may be early: procfs counts from a boot time that is known to the second."""


def fold(
    mark: HighWater | None,
    window: DeviceWindow,
    epoch: str | None,
    epoch_started: float | None,
    *,
    engines_known: bool = True,
) -> HighWater:
    """
    Return ``mark`` with one window of samples taken in.

    ``epoch`` names the newest engine on the device (``name@start``) and ``epoch_started`` is its start in Unix seconds;
    both are None while no engine holds it, and then the last epoch's mark goes on. A new epoch begins a new mark, from
    the samples that are certainly its own: those after its start, and of a window that straddles the start only the
    newest sample, since the window's largest may be of the engine that just died. Another card begins everything anew:
    another UUID, or another size where one of the two has no UUID.

    ``engines_known`` is False for as long as no engine finder has run: without it an engine that nobody has seen yet
    would be taken for the baseline.

    Sizes are bytes, times Unix seconds by the sampler's clock. The mark never falls within an epoch, whatever the clock
    does; after a step back the last minute's entries move back with it, after a longer one they are dropped.
    """
    previous = mark if mark is not None and _same_card(mark, window) else None
    past = _last_minute(previous, window)
    used, at, since = _peak(previous, past, window, epoch, epoch_started)
    kept_epoch, kept_uuid, all_time, baseline = (
        (None, None, window.used_max, None)
        if previous is None
        else (previous.epoch, previous.uuid, max(previous.all_time, window.used_max), previous.baseline)
    )
    if epoch is None and engines_known:
        baseline = window.used_min if baseline is None else min(baseline, window.used_min)
    return HighWater(
        device=window.identity.device,
        uuid=window.identity.uuid or kept_uuid,
        epoch=kept_epoch if epoch is None else epoch,
        used=used,
        at=at,
        since=since,
        all_time=all_time,
        baseline=baseline,
        window=_with(past, window),
        size=window.newest.size,
    )


def _same_card(mark: HighWater, window: DeviceWindow) -> bool:
    identity = window.identity
    if mark.device != identity.device:
        return False
    if mark.uuid is not None and identity.uuid is not None:
        return mark.uuid == identity.uuid
    return mark.size is None or mark.size == window.newest.size


def _last_minute(previous: HighWater | None, window: DeviceWindow) -> tuple[tuple[float, int], ...]:
    """Return the kept entries by the clock as it is now, without those that are too old."""
    if previous is None or not previous.window:
        return ()
    now = window.newest.at
    ahead = max(at for at, _ in previous.window) - math.floor(now)
    if ahead > WINDOW:
        return ()
    back = max(ahead, 0.0)
    return tuple((at - back, used) for at, used in previous.window if at - back > now - WINDOW)


def _with(past: tuple[tuple[float, int], ...], window: DeviceWindow) -> tuple[tuple[float, int], ...]:
    """Return the last minute with ``window`` added: (second, largest use in it), oldest first."""
    now = window.newest.at
    seconds = dict(past)
    for at, used in ((min(window.used_max_at, now), window.used_max), (now, window.newest.used)):
        second = float(math.floor(at))
        if second > now - WINDOW:
            seconds[second] = max(seconds.get(second, used), used)
    return tuple(sorted(seconds.items()))


def _peak(
    previous: HighWater | None,
    past: tuple[tuple[float, int], ...],
    window: DeviceWindow,
    epoch: str | None,
    started: float | None,
) -> tuple[int, float, float]:
    """Return the mark, when it was set, and since when it covers every sample."""
    if epoch is not None and (previous is None or epoch != previous.epoch):
        return _first(previous, past, window, started)
    if previous is None:
        return window.used_max, window.used_max_at, min(window.used_max_at, window.newest.at)
    if window.used_max > previous.used:
        return window.used_max, window.used_max_at, previous.since
    return previous.used, previous.at, previous.since


def _first(
    previous: HighWater | None,
    past: tuple[tuple[float, int], ...],
    window: DeviceWindow,
    started: float | None,
) -> tuple[int, float, float]:
    """Return the first mark of a new epoch: the largest sample that is certainly the new engine's own."""
    now = window.newest.at
    own = [(window.newest.used, now, now)]
    # An engine older than the last mark comes back to the fore when a newer one dies: that one held what came before.
    returning = previous is not None and previous.epoch is not None and (started is None or started <= previous.since)
    if started is not None and not returning:
        begin = started + START_SLACK
        own += [(used, at, min(at + 1.0, now)) for at, used in past if at >= begin]
        if window.used_max_at >= begin:
            own.append((window.used_max, window.used_max_at, min(window.used_max_at, now)))
    used, at, _ = max(own, key=lambda sample: (sample[0], -sample[1]))
    return used, at, min(since for _, _, since in own)
