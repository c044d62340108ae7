"""What whoever runs the controller can choose."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import names

if TYPE_CHECKING:
    from pyvgpu.controller.sidecar import marking

PATHS = ("stop", "hybrid", "swap")  # by which a sidecar may be ended: see how.Path


@dataclasses.dataclass(frozen=True, slots=True)
class FastExit:
    """The image that ends at once with 0, whatever its arguments."""

    image: str = "pyvgpu/fast-exit"
    program: str = names.FAST_EXIT_PROGRAM
    in_registry: bool = False  # every node can pull it, whatever a container's imagePullPolicy
    other_names: frozenset[str] = frozenset({"/bin/sh", "/bin/bash"})
    """Paths at which the image has its program too, so that it takes the place of a container that
    starts by one of them and was never transformed. Names without a path would depend on PATH."""


@dataclasses.dataclass(frozen=True, slots=True)
class Virtual:
    """How nodes without a machine of ours behind them are known."""

    labels: tuple[tuple[str, str], ...] = (
        ("type", "virtual-kubelet"),
        ("eks.amazonaws.com/compute-type", "fargate"),
    )
    taint_prefixes: tuple[str, ...] = ("virtual-kubelet.io/",)
    pulls: bool = True  # such a provider can pull the fast-exit image


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """All of it; times in seconds."""

    policies: tuple[marking.Policy, ...] = ()
    fast_exit: FastExit = dataclasses.field(default_factory=FastExit)
    virtual: Virtual = dataclasses.field(default_factory=Virtual)
    paths: frozenset[str] = frozenset(PATHS)
    """What may be done to a sidecar. One that only another path would end is left running."""
    raise_backoff_limit: bool = True
    """Raise the backoffLimit of a Job by the restarts of swapped sidecars, where those alone would
    reach it. Off: such a sidecar is left running."""
    insist: bool = False
    """Stop what is not known to end with 0, though the pod then ends Failed, where nothing else
    is possible. Off: such a sidecar is left running, and an event says what would help."""
    most_writes: int = 2
    """Writes to a pod: the second is the next path, for a sidecar that did not end in time."""
    lease_seconds: float = 40  # how old the lease of a live node part may be
    margin_seconds: float = 5  # beyond a grace period, before we do something else
    pull_seconds: float = 30  # for a changed image to be there and started
    provider_seconds: float = 60  # for a provider to end what its own switch names
    recheck_seconds: float = 300  # between looks at what we can do nothing for
    sweep_seconds: float = 300  # between looks for pods without our label; 0: never
    writes_per_second: float = 200  # of pods, Jobs and events together
    workers: int = 4  # pods that are looked at at the same time
