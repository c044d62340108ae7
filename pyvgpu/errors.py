"""The exception hierarchy of pyvgpu, with exit codes.

    PyVgpuError                 any error that a user can fix
    ├── UsageError              the command line or a value on it is not valid
    ├── DataError               an input file is not valid
    ├── UnavailableError        something required is missing (a driver, a device, room)
    ├── OutputError             our output cannot be written
    └── PermissionDeniedError   the kernel or a file's mode denies access

A message names the given value, the rule, and a valid example. The exit code of the command line
is the class's own, one of sysexits (64-78). Bugs are not PyVgpuError.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator


class PyVgpuError(Exception):
    """Any error that a user can fix; its text is one line, ready to be shown."""

    exit_code: ClassVar[int] = 70  # EX_SOFTWARE


class UsageError(PyVgpuError):
    """The command line, or a value on it, is not valid."""

    exit_code = 64  # EX_USAGE


class DataError(PyVgpuError):
    """A file or document is not valid."""

    exit_code = 65  # EX_DATAERR


class UnavailableError(PyVgpuError):
    """Something that is required is missing: a driver, a device, room on it."""

    exit_code = 69  # EX_UNAVAILABLE


class OutputError(PyVgpuError):
    """The output cannot be written."""

    exit_code = 74  # EX_IOERR


class PermissionDeniedError(PyVgpuError):
    """The kernel, or the mode of a file, denies access."""

    exit_code = 77  # EX_NOPERM


def of_files(text: str, exc: OSError, rule: str = "") -> PyVgpuError:
    """Return an error of *text*, the file system's reason, and what to do about it.

    *rule* says what the file must be, unless there is no room.
    """
    refused = exc.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
    kind = PermissionDeniedError if refused else UnavailableError
    full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "make room there" if full else rule
    return kind(f"{text}: {exc.strerror}" + (f"; {remedy}" if remedy else ""))


def reason_of(exc: BaseException) -> str:
    """Return why a file or a server cannot be read, for a message that names it.

    That is the system's reason without its number, or that the file is not text in UTF-8.
    """
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror[:1].lower() + exc.strerror[1:]
    if isinstance(exc, UnicodeDecodeError):
        return "is not text in UTF-8"
    return " ".join(str(exc).split())


@contextlib.contextmanager
def needing(library: str, extra: str) -> Iterator[None]:
    """Context for imports that need *library*, which only pyvgpu[*extra*] installs.

    UnavailableError if it is not installed.
    """
    try:
        yield
    except ImportError as exc:
        raise UnavailableError(
            f"{library} is not installed: pip install 'pyvgpu[{extra}]'"
        ) from exc
