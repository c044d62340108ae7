"""Resources shared by all xdist workers: pytest creates them once before the workers start.

A worker finds a resource by an environment variable. Without workers (``-n 0``) there is none, and
a test's fixtures create it.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

_MADE = pytest.StashKey[contextlib.ExitStack]()


def begin(
    config: pytest.Config,
    variable: str,
    make: Callable[[], contextlib.AbstractContextManager[object]],
) -> None:
    """Create a resource for all workers, and publish its value in the variable *variable*."""
    in_a_cluster = "CLUSTER_RUN" in os.environ
    if in_a_cluster and config.getoption("numprocesses") and not hasattr(config, "workerinput"):
        made = config.stash.setdefault(_MADE, contextlib.ExitStack())
        os.environ[variable] = str(made.enter_context(make()))


def end(config: pytest.Config) -> None:
    """Close the shared resources, when no worker is left."""
    if made := config.stash.get(_MADE, None):
        made.close()
