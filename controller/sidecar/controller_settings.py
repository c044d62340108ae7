"""Settings of the sidecar controller and its node part."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from pyvgpu import names

if TYPE_CHECKING:
    from pyvgpu.controller.sidecar import marking

_PART = "[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(  # [registry/]path[:tag][@digest], by the rules of registries
    rf"([\w.\[\]:-]+/)?{_PART}(/{_PART})*(:\w[\w.-]{{0,127}})?(@\w+:[0-9a-f]{{32,}})?", re.ASCII
)
PATHS = ("stop", "hybrid", "swap")  # the allowed ways to end a sidecar: see how.Method


@dataclasses.dataclass(frozen=True, slots=True)
class FastExit:
    """The fast-exit image: its program exits with 0 at once, whatever its arguments."""

    image: str = "pyvgpu/fast-exit"
    program: str = names.FAST_EXIT_PROGRAM
    in_registry: bool = False  # every node can pull it, whatever a container's imagePullPolicy
    other_names: frozenset[str] = frozenset({"/bin/sh", "/bin/bash"})
    """Further paths of the program in the image, so that it can replace a container that starts
    one of them and was never transformed. Names without a path would depend on PATH."""


def is_image(name: str) -> bool:
    """Return whether *name* can be an image's: a node's runtime pulls no other."""
    return _IMAGE.fullmatch(name) is not None


@dataclasses.dataclass(frozen=True, slots=True)
class Virtual:
    """How virtual nodes, which have no container runtime of ours, are recognized."""

    labels: tuple[tuple[str, str], ...] = (
        ("type", "virtual-kubelet"),
        ("eks.amazonaws.com/compute-type", "fargate"),
    )
    taint_prefixes: tuple[str, ...] = ("virtual-kubelet.io/",)
    pulls: bool = True  # the provider can pull the fast-exit image


@dataclasses.dataclass(frozen=True, slots=True)
class SidecarSettings:
    """All settings; times in seconds."""

    policies: tuple[marking.MarkingPolicy, ...] = ()
    protected: tuple[str, ...] = ()  # namespaces whose pods are left alone
    fast_exit: FastExit = dataclasses.field(default_factory=FastExit)
    virtual: Virtual = dataclasses.field(default_factory=Virtual)
    paths: frozenset[str] = frozenset(PATHS)
    """The allowed paths. A sidecar that only another path would end is left running."""
    raise_backoff_limit: bool = True
    """Raise the backoffLimit of a Job by the restarts of swapped sidecars if those alone would
    reach it. Off: such a sidecar is left running."""
    insist: bool = False
    """If nothing else is possible, stop a sidecar that is not known to exit with 0, although the
    pod then ends Failed. Off: it is left running, and an event says what would help."""
    most_writes: int = 2
    """Writes to a pod; the second takes the next path for a sidecar that did not end in time."""
    lease_seconds: float = 180  # maximum age of a live node part's lease, which renews it thrice
    margin_seconds: float = 5  # after a grace period, before the next path
    pull_seconds: float = 30  # for a changed image to be pulled and started
    provider_seconds: float = 60  # for a provider to end the containers that its own switch names
    recheck_seconds: float = 300  # between rechecks of sidecars that nothing can end
    sweep_seconds: float = 300  # between sweeps for pods without our label; 0: never
    writes_per_second: float = 200  # of pods, Jobs and events together
    workers: int = 4  # pods processed concurrently
