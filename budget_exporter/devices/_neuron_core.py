"""One physical core of a Neuron device: its kept-open counters, and whether they can still be believed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from budget_exporter.devices._sysfs import CounterMissingError, CounterRangeError, KeptCounter, read_count
from budget_exporter.errors import SourceError
from budget_exporter.facts.device import CoreMemory

__all__ = ["CoreRead", "NeuronCore"]

_MEMORY = "stats/memory_usage/device_mem"
_CLEARED = "somebody cleared it, and until the driver is loaded anew it says nothing"


@dataclass(frozen=True, slots=True)
class CoreRead:
    """One read of a core; ``reached`` is a use that was certainly reached, at Unix time ``reached_at`` or later."""

    memory: CoreMemory
    reached: int | None = None
    reached_at: float | None = None


class NeuronCore:
    """
    One ``neuron_core`` directory.

    ``total`` is the gauge and ``peak`` its largest value; ``present`` is the size of the last allocation or release and
    tells nothing. Anybody with write access zeroes a counter by writing to it; what is released later then takes it
    below zero, and once it has been there its figure is short for good, however large it grows again.
    Source: aws-neuronx-dkms 2.24.7.0 ``neuron_sysfs_metrics.c``.
    """

    def __init__(self, directory: Path, number: int, largest: int) -> None:
        self.number = number
        self._directory = directory / _MEMORY
        self._largest = largest
        self._total = KeptCounter(self._directory / "total")
        self._peak = KeptCounter(self._directory / "peak")
        self._key: tuple[int, int] | None = None
        self._forget()

    def _forget(self) -> None:
        self._short = False
        self._last_peak: tuple[int, float] | None = None
        self._parts: tuple[tuple[str, int], ...] = ()
        self._excess: int | None = None
        self.has_peak: bool | None = None
        """Whether the driver keeps a peak, None before the first read."""

    def refresh(self, directory: Path) -> None:
        """Let go of descriptors that no longer lead to the core's files."""
        self._directory = directory / _MEMORY
        self._total.check(self._directory / "total")
        self._peak.check(self._directory / "peak")

    def close(self) -> None:
        """Release the descriptors; what is read later may be another driver's."""
        self._total.close()
        self._peak.close()
        self._key = None
        self._forget()

    def read(self, at: float, faults: list[str]) -> CoreRead:
        """
        Return the core's memory at Unix time ``at``; append a sentence to ``faults`` for a peak that cannot be right.

        Raise SourceError that names the file for everything else: a use that cannot be right is none.
        """
        used = self._read_total()
        peak = self._read_peak(faults)
        memory = CoreMemory(self.number, used, peak, self._parts)
        before = self._last_peak
        if peak is None:
            return CoreRead(memory)
        self._last_peak = (peak, at)
        # A peak from before the first read is nobody's that we know of. One that has changed was set since the read
        # before: it moves upwards, and begins at zero after a clear.
        return CoreRead(memory, peak, before[1]) if before is not None and before[0] != peak else CoreRead(memory)

    def read_parts(self, faults: list[str]) -> None:
        """
        Read the categories, which are shown with every read until the next time.

        They lie inside the total. Where they come to more than it twice in a row, by the same bytes, the total was
        cleared and is short. A category the driver does not have is absent, one that cannot be read is a fault.
        """
        found: dict[str, int] = {}
        try:
            names = sorted(entry.name for entry in self._directory.iterdir() if entry.is_dir())
        except OSError:
            names = []  # the total says what is wrong
        for name in names:
            try:
                found[name] = read_count(self._directory / name / "total")
            except FileNotFoundError:
                continue
            except ValueError as error:
                faults.append(f"{name}/total: {error}")
            except OSError as error:
                faults.append(f"{name}/total: {error.strerror}")
        self._parts = tuple((name, count) for name, count in found.items() if count <= self._largest)
        self._hold_against_total(sum(count for _, count in self._parts))

    def _hold_against_total(self, parts: int) -> None:
        try:
            excess = parts - self._total.read()
        except SourceError:
            return  # said by the next read
        self._short = self._short or (excess > 0 and excess == self._excess)
        self._excess = excess

    def _read_total(self) -> int:
        try:
            used = self._total.read()
        except CounterRangeError as error:
            self._notice_file()
            self._short = True
            raise SourceError(f"{error} (went below zero: {_CLEARED})") from error
        self._notice_file()
        if self._short:
            raise SourceError(f"total: {_CLEARED}")
        if used > self._largest:
            raise SourceError(f"total: {used} bytes, more than the {self._largest} of its bank")
        return used

    def _notice_file(self) -> None:
        """Forget what was known of a counter where its file is another one: the driver was loaded anew."""
        if self._total.key != self._key:
            if self._key is not None:
                self._forget()
            self._key = self._total.key

    def _read_peak(self, faults: list[str]) -> int | None:
        peak: int | None = None
        try:
            peak = self._peak.read()
        except CounterMissingError:
            pass
        except SourceError as error:
            faults.append(str(error))
        self.has_peak = self.has_peak or peak is not None
        if peak is not None and peak > self._largest:
            faults.append(f"peak: {peak} bytes, more than the {self._largest} of its bank")
            return None
        return peak
