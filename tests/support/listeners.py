"""Breaks listening sockets of this process, as grpcio does when accept() fails."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path


def shut_down(folder: Path) -> int:
    """Shut down the listeners of grpcsocket's servers in *folder*; return how many.

    grpcio does so when accept() fails with all but a few errors, such as on a node without memory.
    """
    count = 0
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(file.name))) as one:
            listens = one.family == socket.AF_UNIX and one.getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN
            )
            # Each socket is bound to a hidden name and renamed afterwards.
            if listens and one.getsockname().startswith(f"{folder}/."):
                one.shutdown(socket.SHUT_RDWR)
                count += 1
    return count
