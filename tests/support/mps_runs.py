"""Runs with `--sharing mps`, whose programs execute lines, and their daemons."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import checkpoints
import mps_room

from pyvgpu.machine import reservations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runner import Runner

    from pyvgpu.simulation import simulator

CLIENT = checkpoints.SERVER + checkpoints.TARGET + mps_room.CLIENT + checkpoints.LOOP
INIT = CLIENT.replace('answer("ready")', "answer(cuda.cuInit(0))")
HELD = "2GiB"
RPC_FAILURE = 806  # cudaErrorMpsRpcFailure: the server is gone


def mps_folders(
    machine: simulator.Machine, registries: reservations.Registries | None = None
) -> list[Path]:
    """Return the folders of daemons for the machine's first device."""
    uuid = machine.devices[0].uuid
    return [
        folder
        for registry in (registries or reservations.Registries()).paths
        for folder in registry.glob(f"mps-*-{uuid}")
    ]


def daemon_of(machine: simulator.Machine) -> mps_room.Daemon:
    """Return the one daemon for the machine's first device."""
    (folder,) = mps_folders(machine)
    return mps_room.Daemon(folder, machine)


@contextlib.contextmanager
def tenant(
    runner: Runner, name: str, *options: str, client: str = CLIENT
) -> Iterator[checkpoints.Lines]:
    """Run a program that executes lines."""
    arguments = ("--sharing", "mps", "--vmemory", HELD, "--name", name, *options)
    with runner.started(*arguments, "--", sys.executable, "-c", client, INIT) as process:
        yield checkpoints.Lines(process)
