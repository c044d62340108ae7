"""The stages, in order of value: what each answers, and how long it may take."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """One stage is the module of its name here, run as a process of its own."""

    name: str
    answers: str
    seconds: int  # after which it is killed
    least: int  # with less left it is not begun


STAGES = (
    Stage("facts", "what machine, driver and limits of the host these are", 30, 5),
    Stage("symbols", "whether cuGetProcAddress and dlsym name the same functions", 60, 5),
    Stage("memory", "what contexts and allocations take of the device", 60, 15),
    Stage("pools", "how pools grow and shrink", 60, 10),
    Stage("events", "what events cost, and what their times mean", 60, 10),
    Stage("slices", "turns of processes: how long, what a switch costs", 60, 20),
    Stage("queue", "at which depth launches block, and what they block", 60, 10),
    Stage("fork", "when memory of a killed process is free; beside a forked child", 90, 20),
    Stage("quota", "memory under the shim: what is shown, and what is refused", 90, 15),
    Stage("programs", "frameworks: same results with a quota, quota shown and held", 420, 60),
    Stage("overhead", "what the shim adds to calls", 90, 20),
    Stage("alone", "shares of time, alone", 120, 30),
    Stage("tenants", "shares of time beside one and two tenants", 120, 30),
)  # fmt: skip

BY_NAME = {stage.name: stage for stage in STAGES}
