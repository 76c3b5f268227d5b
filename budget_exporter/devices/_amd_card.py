"""One amdgpu card: its kept-open counters, its identity, and which of its counters are its memory."""

from __future__ import annotations

import re

from budget_exporter.devices._amd_kfd import KfdNode
from budget_exporter.devices._amd_listing import Listing
from budget_exporter.devices._amd_models import model_of
from budget_exporter.devices._sysfs import CounterMissingError, KeptCounter, read_text
from budget_exporter.errors import SourceError
from budget_exporter.facts.device import DeviceIdentity, DeviceSample, MemorySample
from budget_exporter.units import GIB

__all__ = ["AmdCard", "is_integrated", "is_unified"]

# The carve-out of an iGPU is 2 GiB or less unless the firmware was told otherwise; no card that runs an engine has
# less than 4 GiB.
_SMALLEST_DISCRETE = 4 * GIB
_VRAM_TOTAL, _VRAM_USED = "mem_info_vram_total", "mem_info_vram_used"
_GTT_TOTAL, _GTT_USED = "mem_info_gtt_total", "mem_info_gtt_used"


def is_integrated(vram: int, node: KfdNode | None) -> bool:
    """
    Say whether a card is part of a processor; any of three signs will do, since no single one always shows.

    ``vram`` is mem_info_vram_total in bytes. It is below 4 GiB (a default carve-out, also without KFD); or the KFD
    node holds CPU cores as well; or KFD promises the runtime clearly more device memory than the card has VRAM, which
    it only does for an APU whose allocations it redirects to system memory (kernel
    ``amdgpu_amdkfd_get_local_mem_info``; for a card both are ``real_vram_size``).
    """
    promised = 0 if node is None or node.memory is None else node.memory
    return vram < _SMALLEST_DISCRETE or (node is not None and node.holds_cpu) or promised > vram + vram // 8


def is_unified(vram: int, gtt: int | None, node: KfdNode | None) -> bool:
    """
    Say whether what is allocated on the card goes to system memory, so that the GTT counters are its memory.

    ``vram`` and ``gtt`` are the sizes in bytes. An APU's compute allocations go where there is more (kernel
    ``apu_prefer_gtt``).
    """
    return is_integrated(vram, node) and (gtt or 0) > vram


class AmdCard:
    """
    One card that was seen; kept while it is gone, until its source forgets it.

    ``gone_since`` is the monotonic time at which it was missed, None while it is listed.
    """

    def __init__(self, listing: Listing) -> None:
        self.pci = listing.pci
        self.gone_since: float | None = None
        self._listing = listing
        self._counters = {
            name: KeptCounter(listing.directory / name) for name in (_VRAM_TOTAL, _VRAM_USED, _GTT_TOTAL, _GTT_USED)
        }
        self._forget_identity()
        self._node: KfdNode | None = None
        self._order: int | None = None
        self._driver = ""

    def _forget_identity(self) -> None:
        self._key: tuple[int, int] | None = None
        self._model = ""
        self._uuid: str | None = None
        self._integrated = False
        self._unified = False
        self._judged_with_kfd: bool | None = None  # None: not judged yet
        self._identity: DeviceIdentity | None = None
        self._vram_size = 0
        self._gtt_size: int | None = None
        self._gtt_fault = ""

    def refresh(self, listing: Listing, node: KfdNode | None, driver: str) -> None:
        """Take the card's place in the system as it is now; sizes and identity are read again by the next sample."""
        self.gone_since = None
        self._listing = listing
        self._driver = driver
        self._order = None if node is None else node.order
        self._node = node
        for name, counter in self._counters.items():
            counter.check(listing.directory / name)
        self._identity = None

    def lose(self, now: float) -> None:
        """Note that the card is no longer listed and let go of its files."""
        if self.gone_since is None:
            self.gone_since = now
            self.close()

    def close(self) -> None:
        """Release the descriptors; whatever is read later may be another card."""
        for counter in self._counters.values():
            counter.close()
        self._forget_identity()

    def sample(self, at: float, faults: list[str]) -> DeviceSample | None:
        """
        Return the card's memory at Unix time ``at``, or None; append one sentence to ``faults`` for what failed.

        Never a figure that was not read: neither 0 for an unreadable counter nor the previous value.
        """
        try:
            used = self._counters[_VRAM_USED].read()
            identity = self._identify()
            gtt_used = self._read_gtt_used(faults)
            return DeviceSample(identity, self._memory(at, used, gtt_used))
        except SourceError as error:
            faults.append(f"{self.pci}: {error}")
            return None

    def _memory(self, at: float, vram_used: int, gtt_used: int | None) -> MemorySample:
        if self._unified and self._gtt_size is not None and gtt_used is not None:
            return MemorySample(at, self._gtt_size, gtt_used, self._gtt_size, gtt_used)
        if vram_used == 0:
            # The driver's own firmware reserve and page tables are in this figure, so it is never 0 once the memory
            # manager runs; a 0 is a card whose use is not being counted (start-up, some virtual functions).
            raise SourceError(f"{_VRAM_USED}: 0, which no running card reports")
        return MemorySample(at, self._vram_size, vram_used, self._gtt_size, gtt_used)

    def _read_gtt_used(self, faults: list[str]) -> int | None:
        """Return GTT use in bytes; None without such a counter, or, after a sentence, where VRAM is what counts."""
        if self._gtt_fault:
            faults.append(f"{self.pci}: {self._gtt_fault}")
        try:
            return self._counters[_GTT_USED].read()
        except CounterMissingError:
            if self._unified:
                raise
        except SourceError as error:
            if self._unified:
                raise
            faults.append(f"{self.pci}: {error}")
        return None

    def _identify(self) -> DeviceIdentity:
        """Return the identity; read it again after each refresh, and where the counter's file is another one."""
        key = self._counters[_VRAM_USED].key
        if self._identity is not None and key == self._key:
            return self._identity
        if key != self._key:
            self._forget_identity()
            self._model = self._read_model()
        self._vram_size = self._counters[_VRAM_TOTAL].read()
        if self._vram_size == 0:
            raise SourceError(f"{_VRAM_TOTAL}: 0, and no card has no memory")
        self._gtt_size = self._read_gtt_size()
        self._judge()
        self._uuid = self._uuid or self._read_uuid()
        self._identity = DeviceIdentity(
            device=self.pci,
            platform="amd",
            model=self._model,
            driver=self._driver,
            sampler="amdgpu_gtt" if self._unified else "amdgpu_vram",
            uuid=self._uuid,
            order=self._order,
            integrated=self._integrated,
            partitions=1 if self._node is None else self._node.partitions,
        )
        self._key = key
        return self._identity

    def _judge(self) -> None:
        """
        Decide once for this card whether it is integrated and whose counters are its memory.

        A size that fails or changes later must not make the card change sides; only a KFD node that was missing at
        first may.
        """
        if self._judged_with_kfd is None or (self._node is not None and not self._judged_with_kfd):
            self._integrated = is_integrated(self._vram_size, self._node)
            self._unified = is_unified(self._vram_size, self._gtt_size, self._node)
            self._judged_with_kfd = self._node is not None

    def _read_gtt_size(self) -> int | None:
        self._gtt_fault = ""
        try:
            return self._counters[_GTT_TOTAL].read()
        except CounterMissingError:
            if self._unified:
                raise
        except SourceError as error:
            # Without it an APU's counters cannot be chosen; a discrete card only lacks the figure.
            if self._unified or (self._judged_with_kfd is None and is_integrated(self._vram_size, self._node)):
                raise
            self._gtt_fault = str(error)
        return None

    def _read_uuid(self) -> str | None:
        """
        Return the card's own id as HIP spells it, ``GPU-`` and 16 hex digits.

        The driver refuses it (EPERM) during a reset and has none for older chips: then None, and it is tried again.
        """
        text = self._text("unique_id").lower().removeprefix("0x")
        return f"GPU-{int(text, 16):016x}" if re.fullmatch("[0-9a-f]{1,16}", text) and int(text, 16) else None

    def _read_model(self) -> str:
        return model_of(self._listing.pci_id, self._text("revision"), self._text("product_name"))

    def _text(self, name: str) -> str:
        try:
            return read_text(self._listing.directory / name)
        except OSError:
            return ""
