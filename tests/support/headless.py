"""Runs a process whose main thread has exited while another thread lives."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

_END = """
import ctypes, sys, threading
def stay():
    print(flush=True)
    sys.stdin.read()
threading.Thread(target=stay).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@contextlib.contextmanager
def running(source: str = "", *words: object) -> Iterator[int]:
    """Run *source* with these words in its argv, then exit its main thread; yield its pid."""
    with subprocess.Popen(
        [sys.executable, "-c", source + _END, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        stat = Path(f"/proc/{process.pid}/stat")
        waiting.wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
        try:
            yield process.pid
        finally:
            process.kill()
