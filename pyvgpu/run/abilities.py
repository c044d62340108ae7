"""Feature probes for the kernel and file systems.

Each function tries one feature on a temporary object and returns None, or a short reason why
the feature is missing. The probes start no program and leave nothing behind.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, locks
from pyvgpu.run import mount_namespace

if TYPE_CHECKING:
    from collections.abc import Callable


def private_mounts() -> str | None:
    """Try to enter a mount namespace: root's own, or a user's in a user namespace."""
    return _in_child(lambda: mount_namespace.enter(()))


def overlay() -> str | None:
    """Try to lay a read-only overlay on a folder, in a mount namespace."""
    with tempfile.TemporaryDirectory(prefix="pyvgpu-") as base:
        below, layer = Path(base, "below"), Path(base, "layer")
        for folder in (below, layer):
            folder.mkdir()
            (folder / folder.name).touch()

        def probe() -> None:
            mount_namespace.enter((mount_namespace.Overlay(below, layer),))
            seen = sorted(path.name for path in below.iterdir())
            if seen != ["below", "layer"]:
                raise errors.UnavailableError(f"an overlay of two files shows {seen}")

        return _in_child(probe)


def lock_of_mapping(folder: Path) -> str | None:
    """Try whether a mapping keeps an OFD lock after close(), and munmap() releases it."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".pyvgpu-") as file:
            file.truncate(mmap.PAGESIZE)
            descriptor = os.open(file.name, os.O_RDWR | os.O_CLOEXEC)
            try:
                taken = locks.take(descriptor, 0)
                address = _map(descriptor)
            finally:
                os.close(descriptor)
            held = locks.is_held(file.fileno(), 0)
            _libc().munmap(address, mmap.PAGESIZE)
            kept = locks.is_held(file.fileno(), 0)
    except OSError as exc:
        return f"{folder}: {exc.strerror}"
    if not taken or not held or kept:
        return f"{folder}: taken={taken}, held by the mapping={held}, held without it={kept}"
    return None


def execution(folder: Path) -> str | None:
    """Try to map a file in *folder* as code."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".pyvgpu-") as file:
            file.truncate(mmap.PAGESIZE)
            prot = mmap.PROT_READ | mmap.PROT_EXEC
            mmap.mmap(file.fileno(), mmap.PAGESIZE, flags=mmap.MAP_PRIVATE, prot=prot).close()
    except OSError as exc:
        return f"{folder}: {exc.strerror}"
    return None


def hard_link(source: Path, folder: Path) -> str | None:
    """Try to link *source* into *folder*."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".pyvgpu-") as base:
        try:
            os.link(source, Path(base, "link"), follow_symlinks=False)
        except OSError as exc:
            return exc.strerror or str(exc)
    return None


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    size, number = ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = (ctypes.c_void_p, size, number, number, number, ctypes.c_long)
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = (ctypes.c_void_p, size)
    return libc


def _map(descriptor: int) -> int:
    """Map a page without Python's mmap, which would keep a descriptor of its own."""
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc().mmap(None, mmap.PAGESIZE, access, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(address)


def _in_child(function: Callable[[], None]) -> str | None:
    """Run *function*, which alters its process, in a child; return its error message."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        problem = b"the child died"
        try:
            os.close(reader)
            function()
            problem = b""
        except (errors.PyVgpuError, OSError) as exc:
            problem = str(exc).encode()
        finally:
            os.write(writer, problem)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        problem = pipe.read()
    os.waitpid(child, 0)
    return problem.decode() or None
