"""Fixtures: one sidecar-controller and one sidecar-node for all xdist workers."""

import contextlib
import tempfile
from pathlib import Path

import shared
import sidecars


@contextlib.contextmanager
def _parts():
    with tempfile.TemporaryDirectory() as folder, sidecars.running(Path(folder)) as made:
        yield made.folder


def pytest_sessionstart(session):
    shared.begin(session.config, sidecars.SHARED, _parts)
