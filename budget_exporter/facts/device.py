"""What the hardware says: one device, one sample, one window of samples."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """
    Name one physical memory domain.

    ``device`` is its key: the PCI address for a card. Index numbers (cardN, HIP, rocm-smi) disagree with each other,
    so none of them is a key; ``order`` is only the place the compute runtime gives the device before any
    ``*_VISIBLE_DEVICES``.
    """

    device: str
    platform: str
    model: str
    driver: str
    sampler: str
    """Which counters ``used`` comes from: ``amdgpu_vram``, or ``amdgpu_gtt`` where the memory is the host's."""
    uuid: str | None = None
    """The card itself, where it says so: another card in the same slot is another device to the mark."""
    order: int | None = None
    """Index in the compute runtime's own order; None where the runtime cannot open the device."""
    integrated: bool = False
    """True for an iGPU or APU, whose memory is the host's."""
    high_water_source: str = "sampled"
    """Where the high-water mark comes from: ``sampled`` here, ``driver`` where the driver keeps a peak of its own."""
    cpus: str = ""
    """The CPUs of a NUMA node as the kernel lists them (``0-31,64-95``); empty where unknown or no node."""
    partitions: int = 1
    """Into how many devices the runtime takes the card apart, all with the one memory (MI300)."""

    @property
    def of_everybody(self) -> bool:
        """Return whether ``used`` is what all programs of the host hold: a NUMA node, or a chip without a counter."""
        return self.platform == "host" or self.sampler == "meminfo"


@dataclass(frozen=True, slots=True)
class CoreMemory:
    """What is charged to one physical core of a device, in bytes (Neuron)."""

    core: int
    used: int
    peak: int | None = None
    """The largest use the driver has seen since it was loaded, or since somebody cleared the counter."""
    parts: tuple[tuple[str, int], ...] = ()
    """The driver's own categories, which lie inside ``used``; they are read less often."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """One device's memory at one instant, in bytes; None where the driver has no such counter."""

    at: float
    """Unix time in seconds."""
    size: int
    used: int
    gtt_size: int | None = None
    gtt_used: int | None = None
    reserved: int | None = None
    """What the driver keeps for itself, where it says so apart from ``used`` (NVML v2)."""
    allocator_used: int | None = None
    """Use inside the framework's own pool, where that is published beside the driver's figure (Gaudi)."""
    evicted: int | None = None
    """Device-preferred memory that the driver has moved to system memory."""
    driver_peak: int | None = None
    """The largest use the driver itself has seen since its own counter was cleared (Neuron)."""
    cores: tuple[CoreMemory, ...] = ()
    """The physical cores whose memory this is, where the driver counts by core (Neuron)."""
    reached: int | None = None
    """A use that was certainly reached since the sample before, where the driver's own peak tells it."""
    reached_at: float | None = None
    """The earliest Unix time at which that may have been: the sample's before."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """What one process holds on one device, in bytes; None where its driver has no such counter."""

    pid: int
    used: int | None
    gtt_used: int | None = None
    evicted: int | None = None
    evicted_seconds: float | None = None
    """Time its queues were stopped because their memory was moved away."""
    name: str = ""
    """The process's own short name, for people; empty where it may not be read."""
    state: str = ""
    """The letter of /proc/PID/stat; ``Z`` is a process that ended and whose parent has not noticed."""


@dataclass(frozen=True, slots=True)
class Holders:
    """
    The processes that hold memory of one device, each with the PID by which finders know it.

    ``complete`` where the driver lists every process of the host: only then is what belongs to no engine foreign, and
    what no process accounts for unattributed.
    """

    device: str
    at: float
    processes: tuple[ProcessMemory, ...]
    complete: bool = False


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """Another reader's figure for the used bytes of one device, at one instant."""

    device: str
    at: float
    used: int


@dataclass(frozen=True, slots=True)
class RuntimeMemory:
    """What a runtime's own ledger said inside the worker with this PID, in bytes (Neuron's VNC memory statistics)."""

    pid: int
    at: float
    used: int
    limit: int | None = None
    rank: int | None = None
    """The rank inside its engine, and inside its replica where there are several."""
    replica: int | None = None
    """Its place among the data-parallel replicas; 0 where there is one."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The bytes of host memory that its container lets the process with this PID have."""

    pid: int
    at: float
    limit: int


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """A device and what its counters said."""

    identity: DeviceIdentity
    memory: MemorySample


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """
    One run of a device source: what answered, and one sentence for each that did not.

    A source tells of devices, or of the processes that hold the devices of another source (``holders``), or checks
    another source's figures (``cross_checks``), or hands on what runtimes say inside the engines (``runtime``) or what
    containers let them have (``limits``).
    """

    devices: tuple[DeviceSample, ...] = ()
    faults: tuple[str, ...] = ()
    holders: tuple[Holders, ...] = ()
    cross_checks: tuple[CrossCheck, ...] = ()
    runtime: tuple[RuntimeMemory, ...] = ()
    limits: tuple[MemoryLimit, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceWindow:
    """Newest, smallest and largest use of one device between two hand-overs of its sampler."""

    identity: DeviceIdentity
    newest: MemorySample
    used_min: int
    used_max: int
    used_max_at: float
    samples: int
    began: float = 0.0
    """Unix time of its first sample."""
    gap: float = 0.0
    """The longest time between two of its samples, in seconds: a use that was shorter may have been missed."""


@dataclass(frozen=True, slots=True)
class HighWater:
    """
    What is remembered of one device's use.

    ``epoch`` names the newest engine on the device (``name@start``), None before any engine was seen. ``window`` holds
    (unix second, largest use in it) for the last 60 s.
    """

    device: str
    uuid: str | None
    epoch: str | None
    used: int
    at: float
    since: float
    all_time: int
    baseline: int | None = None
    window: tuple[tuple[float, int], ...] = ()
    size: int | None = None
    """Size of the card the mark is of: where the card has no ``uuid``, another size is another card."""
