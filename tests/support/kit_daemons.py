"""MPS daemons that a test of the kit sees: its own, and none of tests that run beside it."""

import os
import pathlib


def see_only_own(mps):
    """Let the kit's module *mps* see only processes that inherited this test's FAKE_FOLDER."""
    mark = f"FAKE_FOLDER={os.environ['FAKE_FOLDER']}\0".encode()
    every = mps.running

    def is_own(pid):
        try:
            return mark in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False

    mps.running = lambda: [pid for pid in every() if is_own(pid)]
