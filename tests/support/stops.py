"""Stops a program right after a chosen system call, so that tests can act before its next step."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")


@dataclasses.dataclass(frozen=True, slots=True)
class Stopped:
    """A program with a stopped process, and the strace that stopped it."""

    strace: subprocess.Popen[str]
    first: int  # the pid of the program's first process
    pid: int  # of the process that is stopped

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


@contextlib.contextmanager
def stopped_after(
    calls: str,
    command: Sequence[str | Path],
    log: Path,
    path: str | Path | None = None,
    **options: object,
) -> Iterator[Stopped]:
    """Start *command*, stopped after the first of *calls*, or the first that names *path*.

    *calls* are separated by commas; a machine need not have all of them.
    """
    wanted = ",".join(f"?{call}" for call in calls.split(","))
    strace = ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={wanted}"]
    strace += ["-e", f"inject={wanted}:signal=SIGSTOP:when=1"]
    if path is not None:
        strace += ["-P", str(path)]

    def stopped() -> list[str]:
        return re.findall(r"^(\d+) +--- stopped by SIGSTOP", read(), re.MULTILINE)

    def read() -> str:
        return log.read_text() if log.exists() else ""

    with subprocess.Popen([*strace, *command], text=True, **options) as process:
        try:
            wait_until(stopped, found=read)
            (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            yield Stopped(process, int(first), int(stopped()[0]))
        except BaseException:
            process.kill()
            raise
