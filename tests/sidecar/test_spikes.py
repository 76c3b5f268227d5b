"""Short spikes of a card's use, by the real sampler in its thread: what must be in the largest use of the minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.bench_spikes import spikes


@pytest.mark.parametrize(("length", "gap"), [(0.25, 0.24), (0.12, 0.11)])
def test_a_spike_that_is_longer_than_any_gap_between_samples_is_in_the_largest_use_of_the_minute(
    tmp_path: Path, length: float, gap: float
) -> None:
    found = spikes(tmp_path, length, 12)
    judged = [spike for spike in found if spike.gap <= gap]
    print(f"{length * 1e3:.0f} ms: {sum(s.seen for s in found)} of {len(found)} seen, {len(judged)} judged")  # noqa: T201
    if not judged:
        pytest.skip("the machine is too busy to take a sample in time: nothing can be said of spikes")
    assert all(spike.seen for spike in judged)
