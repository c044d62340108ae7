"""Laws (timing parameters) of the device: `today`, `slices`, `events`, measured `h100`, or drawn.

The governor must not depend on one device's timing, so the same rows are played under several
laws. `device` has the parameters of the simulated device; `priorities` are those of the programs'
streams, in the order in which a program creates them. The simulator has no context priorities.

    law = named("drawn", seed=7)
    stage.play(dataclasses.replace(scene, law=law), cache)
"""

from __future__ import annotations

import dataclasses
import random

from pyvgpu import errors
from pyvgpu.simulation import simulator

US = 1_000
DRAWN = "drawn"
STREAMS = 8  # whose priorities are drawn; a program with more begins again at the first
HIGHEST = -5  # as cuCtxGetStreamPriorityRange says; 0 is the lowest, and the default


@dataclasses.dataclass(frozen=True, slots=True)
class Law:
    """How the device of a scene behaves in time, and the priorities of its programs' streams."""

    name: str
    device: simulator.Law
    priorities: tuple[int, ...] = (0,)
    seed: int | None = None  # of a drawn law

    @property
    def points(self) -> float:
        """Return how far off a share may be on average, percent of the device's time."""
        return 3.0 if self.name == DRAWN else 1.0

    def capacity(self, processes: int) -> float:
        """Return how much of the device so many processes can have together, percent."""
        lost = self.device.switch_ns if processes > 1 else 0
        return 100 * self.device.slice_ns / (self.device.slice_ns + lost)

    def __str__(self) -> str:
        figures = ", ".join(f"{k}={v}" for k, v in dataclasses.asdict(self.device).items())
        if self.seed is None:
            return f"{self.name}: {figures}"
        chosen = ",".join(map(str, self.priorities))
        return f"{self.name} from seed {self.seed}: {figures}, stream priorities {chosen}"


TODAY = Law("today", simulator.Law())
SLICES = Law("slices", simulator.Law(slice_ns=2_500 * US, switch_ns=100 * US))
EVENTS = Law("events", simulator.Law(event_ns=3 * US, event_late_ns=1_500))
# As measured: benchmarks/results/gpu/2026-11-26-nvidia-h100-80gb-hbm3.json
H100 = Law(
    "h100",
    simulator.Law(
        slice_ns=2_077 * US, switch_ns=182 * US, launch_ns=1_960, event_ns=1_232,
        event_late_ns=616, events_in_turn=True, queue_depth=1022,
    ),
)  # fmt: skip
FIXED = (TODAY, SLICES, EVENTS, H100)
NAMES = (*(law.name for law in FIXED), DRAWN)


def draw(seed: int) -> Law:
    """Return the law that belongs to *seed*, the same one each time."""
    chance = random.Random(seed)
    event_ns = chance.randint(0, 5 * US)
    device = simulator.Law(
        slice_ns=chance.randint(500 * US, 5_000 * US),
        switch_ns=chance.randint(0, 200 * US),
        event_ns=event_ns,
        event_late_ns=chance.randint(0, event_ns),
        queue_depth=chance.randint(256, 4096),
        launch_ns=chance.randint(0, 3 * US),
        events_in_turn=True,  # else each event costs two switches, which no measured GPU does
    )
    priorities = tuple(chance.randint(HIGHEST, 0) for _ in range(STREAMS))
    return Law(DRAWN, device, priorities, seed)


def named(name: str, seed: int = 0) -> Law:
    """Return the law *name*; *seed* is for the drawn one."""
    for law in FIXED:
        if law.name == name:
            return law
    if name == DRAWN:
        return draw(seed)
    raise errors.UsageError(f"law {name!r}: must be {', '.join(NAMES[:-1])} or {NAMES[-1]}")
