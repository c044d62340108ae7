"""What all workers of a run use: pytest begins it before them, once, and ends it after them.

A worker finds it by an environment variable. Without workers (``-n 0``) there is none, and the
fixtures of a test make what it needs.
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
    """Make something for all workers, and say in *variable* what came of it."""
    in_a_cluster = "CLUSTER_RUN" in os.environ
    if in_a_cluster and config.getoption("numprocesses") and not hasattr(config, "workerinput"):
        made = config.stash.setdefault(_MADE, contextlib.ExitStack())
        os.environ[variable] = str(made.enter_context(make()))


def end(config: pytest.Config) -> None:
    """End what was made, when no worker is left."""
    if made := config.stash.get(_MADE, None):
        made.close()
