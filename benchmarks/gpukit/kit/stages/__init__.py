"""The stages, in order of value: what each measures, and how long it may take."""

import dataclasses

# What a machine may not have that others have: see main.obstacles.
QUOTA = "quota"  # `pyvgpu run` on this device, as a whole
SEVERAL = "several"  # contexts of several processes at once
ROOM = 6 << 30  # bytes of the device that stages with QUOTA need


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """One stage is the module of its name here, run as a process of its own."""

    name: str
    answers: str
    seconds: int  # after which it is killed
    least: int  # with less left it is not begun
    needs: tuple[str, ...] = ()  # QUOTA, SEVERAL


STAGES = (
    Stage("facts", "what machine, driver and limits of the host these are", 30, 5),
    Stage("symbols", "whether cuGetProcAddress and dlsym name the same functions", 60, 5),
    Stage("memory", "what contexts and allocations take of the device", 60, 15),
    Stage("contexts", "what contexts, stacks, heaps and cuBLAS take of the device", 90, 20),
    Stage("pools", "how pools grow and shrink", 60, 10),
    Stage("events", "what events cost, and what their times mean", 60, 10),
    Stage("slices", "turns of processes: how long, what a switch costs", 60, 20, (SEVERAL,)),
    Stage("queue", "at which depth launches block, and what they block", 60, 10),
    Stage("fork", "when memory of a killed process is free; beside a forked child",
          90, 20, (SEVERAL,)),
    Stage("nvml", "how late NVML shows memory, processes and utilization", 60, 25, (SEVERAL,)),
    Stage("capture", "which calls of other threads fail during a capture", 30, 10),
    Stage("descriptors", "exported memory: descriptors, locks, process charged by NVML",
          60, 15, (SEVERAL,)),
    Stage("offers", "memory limits, checkpoints, time slices of driver and kernel",
          60, 15, (SEVERAL,)),
    Stage("doctor", "what pyvgpu doctor finds, and its proof of a quota", 120, 15, (QUOTA,)),
    Stage("quota", "memory under the shim: what is shown, and what is refused", 300, 30, (QUOTA,)),
    Stage("shared", "memory that processes share: charged once, exporter killed",
          90, 20, (QUOTA, SEVERAL)),
    Stage("forked", "programs that fork and are killed: what they leave charged",
          90, 20, (QUOTA, SEVERAL)),
    Stage("suspend", "suspended runs: bytes, times, NVML, what is refused",
          300, 40, (QUOTA, SEVERAL)),
    Stage("mig", "MIG profiles and devices of all GPUs, a quota on a MIG device", 60, 5),
    Stage("workers", "data loaders: forked workers, one of them killed", 180, 20, (QUOTA,)),
    Stage("runtime", "clients of the CUDA runtime, static and shared", 120, 20, (QUOTA,)),
    Stage("compiled", "the kit's programs by this machine's own compiler", 120, 20, (QUOTA,)),
    Stage("tools", "nvidia-smi, nvitop, ncu, compute-sanitizer, cuda-gdb with a quota",
          300, 60, (QUOTA,)),
    Stage("nccl", "NCCL on one device: one rank and two", 180, 30, (QUOTA, SEVERAL)),
    Stage("programs", "frameworks: same results with a quota, quota shown and held",
          420, 60, (QUOTA,)),
    Stage("overhead", "what the shim adds to calls", 90, 20, (QUOTA,)),
    Stage("launches", "what the shim adds to launches: threads, streams, graphs",
          120, 30, (QUOTA,)),
    Stage("alone", "shares of time, alone", 120, 30, (QUOTA,)),
    Stage("patterns", "launch patterns of real programs, with a share and without",
          180, 60, (QUOTA,)),
    Stage("tenants", "shares of time beside one and two tenants", 120, 30, (QUOTA, SEVERAL)),
    Stage("training", "a small GPT with shares of time, against its speed alone",
          240, 60, (QUOTA,)),
    Stage("sharing", "two tenants: by turns of the driver, under MPS, under pyvgpu",
          150, 50, (QUOTA, SEVERAL)),
    Stage("mps", "quotas beside MPS, by a daemon of our own", 120, 40, (QUOTA,)),
)  # fmt: skip

BY_NAME = {stage.name: stage for stage in STAGES}
