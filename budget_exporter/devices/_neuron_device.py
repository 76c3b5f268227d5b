"""One Neuron device: its physical cores, put together into the banks whose memory they share."""

from __future__ import annotations

import re
from pathlib import Path

from budget_exporter.devices._neuron_core import CoreRead, NeuronCore
from budget_exporter.devices._sysfs import read_text
from budget_exporter.errors import SourceError
from budget_exporter.facts.device import DeviceIdentity, DeviceSample, MemorySample
from budget_exporter.facts.neuron import PLATFORM_OF_NAME, PLATFORMS, Platform

__all__ = ["NeuronDevice"]

_CORE = re.compile(r"neuron_core([0-9]+)")
_SERIAL = re.compile(r"[0-9a-fA-F]{4,32}")


class NeuronDevice:
    """
    One ``neuron`` directory; kept while it is gone, until its source forgets it.

    A bank's use is the sum of what is charged to its cores. Cores 2k and 2k+1 of a trn2 or trn3 share bank k, and a
    runtime charges all tensors of a joined pair to the even one: a core's share of the bank means nothing by itself.
    How many cores make a logical one changes neither. The files do not tell the size; it comes from the platform's
    table, so that a device of another name has no figures.
    Source: aws-neuronx-dkms 2.24.7.0 ``ncdev_get_default_tpbs_for_hbm_v3``, ``neuron_sysfs_metrics.c``.
    """

    def __init__(self, number: int) -> None:
        self.key = f"nd{number}"
        self.gone_since: float | None = None
        """The monotonic time at which it was missed, None while it is listed."""
        self._number = number
        self._directory = Path()
        self._driver = ""
        self._model = ""
        self._serial: str | None = None
        self._platform: Platform | None = None
        self._fault = ""
        self._cores: dict[int, NeuronCore] = {}

    def refresh(self, directory: Path, driver: str) -> bool:
        """Take the device's place in the system as it is now; return whether it has cores that were not seen yet."""
        self.gone_since = None
        self._directory, self._driver, self._fault = directory, driver, ""
        self._identify()
        found = self._listed()
        if self._platform is None:
            return False
        for number in self._cores.keys() - found.keys():
            self._cores.pop(number).close()
        for number, where in found.items():
            if number in self._cores:
                self._cores[number].refresh(where)
        new = found.keys() - self._cores.keys()
        for number in new:
            self._cores[number] = NeuronCore(found[number], number, self._platform.bank)
        return bool(new)

    def lose(self, now: float) -> None:
        """Note that the device is no longer listed and let go of its files."""
        if self.gone_since is None:
            self.gone_since = now
            self.close()

    def close(self) -> None:
        """Release the descriptors; whatever is read later may be another device."""
        for core in self._cores.values():
            core.close()
        self._cores.clear()
        self._model, self._serial, self._platform = "", None, None

    def read_parts(self) -> list[str]:
        """Read the categories of every core; return a sentence for each that cannot be read."""
        faults: list[str] = []
        for core in self._cores.values():
            mine: list[str] = []
            core.read_parts(mine)
            faults += [f"{self.key}: neuron_core{core.number}: {fault}" for fault in mine]
        return faults

    def samples(self, at: float, faults: list[str]) -> list[DeviceSample]:
        """Return the banks that could be read at Unix time ``at``; append one sentence to ``faults`` for each other."""
        if self._fault or self._platform is None:
            faults.append(f"{self.key}: {self._fault}")
            return []
        found: list[DeviceSample] = []
        for bank in range(self._platform.banks):
            try:
                found.append(self._sample(self._platform, bank, at, faults))
            except SourceError as error:
                faults.append(f"{self.key}/hbm{bank}: {error}")
        return found

    def _sample(self, platform: Platform, bank: int, at: float, faults: list[str]) -> DeviceSample:
        share = platform.cores // platform.banks
        reads = [self._read(number, bank, at, faults) for number in range(bank * share, (bank + 1) * share)]
        used = sum(read.memory.used for read in reads)
        if used > platform.bank:
            # Charged to a core is what its runtime says, wherever it lies: such a sum is no bank's use.
            raise SourceError(f"its cores hold {used} bytes, more than its {platform.bank}")
        # Two cores peak at two times: the larger peak is certain to have been reached, their sum is not.
        most = max(reads, key=lambda read: read.reached or 0)
        memory = MemorySample(
            at=at,
            size=platform.bank,
            used=used,
            driver_peak=reads[0].memory.peak if share == 1 else None,
            cores=tuple(read.memory for read in reads),
            reached=most.reached,
            # The clock may have been set back since.
            reached_at=None if most.reached_at is None else min(most.reached_at, at),
        )
        return DeviceSample(self._identity(platform, bank), memory)

    def _read(self, number: int, bank: int, at: float, faults: list[str]) -> CoreRead:
        core = self._cores.get(number)
        if core is None:
            raise SourceError(f"neuron_core{number}: not there")
        mine: list[str] = []
        try:
            return core.read(at, mine)
        except SourceError as error:
            raise SourceError(f"neuron_core{number}: {error}") from error
        finally:
            faults += [f"{self.key}/hbm{bank}: neuron_core{number}: {fault}" for fault in mine]

    def _identity(self, platform: Platform, bank: int) -> DeviceIdentity:
        share = platform.cores // platform.banks
        core = self._cores[bank * share]
        return DeviceIdentity(
            device=f"{self.key}/hbm{bank}",
            platform="neuron",
            model=self._model,
            driver=self._driver,
            sampler="neuron_device_mem",
            uuid=f"{self._serial}/hbm{bank}" if self._serial else None,
            # Where cores can be joined the runtime numbers them by a table of its own, not along the directories.
            order=None if platform.joins_cores else self._number * platform.cores + bank,
            high_water_source="driver" if share == 1 and core.has_peak else "sampled",
        )

    def _identify(self) -> None:
        """Read once which device it is; a name that is not known yet is looked at again."""
        self._serial = self._serial or self._read_serial()
        if self._platform is not None:
            return
        try:
            self._model = read_text(self._directory / "info/architecture/device_name")
        except OSError as error:
            self._fault = f"info/architecture/device_name: {error.strerror}"
            return
        platform = PLATFORM_OF_NAME.get(self._model)
        if platform is None:
            self._fault = f"the size of a {self._model[:40]!r} is not known"
            return
        self._platform = PLATFORMS[platform]

    def _read_serial(self) -> str | None:
        try:
            text = read_text(self._directory / "info/serial_number").removeprefix("0x")
        except OSError:
            return None
        return text.lower() if _SERIAL.fullmatch(text) and text.strip("0") else None

    def _listed(self) -> dict[int, Path]:
        """Return the directories of the cores: their count stands in a file that older drivers show to root only."""
        try:
            entries = list(self._directory.iterdir())
        except OSError as error:
            self._fault = f"{self._directory.name}: {error.strerror}"
            return {}
        found = {int(match[1]): entry for entry in entries if (match := _CORE.fullmatch(entry.name))}
        if self._platform is not None and found and max(found) >= self._platform.cores:
            self._fault = f"neuron_core{max(found)}: a {self._model} has {self._platform.cores} cores"
        return found
