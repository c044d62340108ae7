"""The exceptions of pyvgpu, one tree.

    PyVgpuError                 anything a person can answer
    ├── UsageError              the command line or a value on it is not valid
    ├── DataError               a file we were given is not what it should be
    ├── UnavailableError        something needed is not here (a driver, a device, room)
    ├── OutputError             what we say cannot be written
    └── PermissionDeniedError   the kernel or a file's mode says no

A message names what was given, the rule, and what would do. The exit code of the
command line is the class's own, one of sysexits (64-78). Bugs are not PyVgpuError.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator


class PyVgpuError(Exception):
    """Anything that a person can answer; its text is one line, ready to be shown."""

    exit_code: ClassVar[int] = 70  # EX_SOFTWARE


class UsageError(PyVgpuError):
    """The command line, or a value on it, is not valid."""

    exit_code = 64  # EX_USAGE


class DataError(PyVgpuError):
    """A file or document is not what it should be."""

    exit_code = 65  # EX_DATAERR


class UnavailableError(PyVgpuError):
    """Something that is needed is not here: a driver, a device, room on it."""

    exit_code = 69  # EX_UNAVAILABLE


class OutputError(PyVgpuError):
    """What we say cannot be written."""

    exit_code = 74  # EX_IOERR


class PermissionDeniedError(PyVgpuError):
    """The kernel, or the mode of a file, does not allow it."""

    exit_code = 77  # EX_NOPERM


def of_files(text: str, exc: OSError) -> PyVgpuError:
    """Return the error that says *text*, why the file system refused it, and what would do."""
    refused = exc.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
    kind = PermissionDeniedError if refused else UnavailableError
    remedy = "; make room there" if exc.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return kind(f"{text}: {exc.strerror}{remedy}")


@contextlib.contextmanager
def needing(library: str, extra: str) -> Iterator[None]:
    """Import inside what needs *library*, which comes with pyvgpu[*extra*] alone.

    UnavailableError if it is not there.
    """
    try:
        yield
    except ImportError as exc:
        raise UnavailableError(
            f"{library} is not installed: pip install 'pyvgpu[{extra}]'"
        ) from exc
