"""Listening sockets of this process, broken from outside."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path


def shut_down(folder: Path) -> int:
    """Shut down those of grpcsocket's servers in *folder*, as grpcio does; return how many.

    It gives up so where accepting fails for any reason but a few, such as a node without memory.
    """
    count = 0
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(file.name))) as one:
            listens = one.family == socket.AF_UNIX and one.getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN
            )
            # Each is bound to a hidden name, which is moved afterwards.
            if listens and one.getsockname().startswith(f"{folder}/."):
                one.shutdown(socket.SHUT_RDWR)
                count += 1
    return count
