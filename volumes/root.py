"""Path resolution within a root folder: the host's own root, or a mounted one.

Links are resolved as after a chroot: an absolute one starts at the root, and ``..`` does not lead
out of it. So nothing outside a driver root is ever accessed.
"""

from __future__ import annotations

import dataclasses
import errno
import fnmatch
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_LINKS = 40  # in one path, as in the kernel

Identity: TypeAlias = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Root:
    """A root folder; all arguments and results are host paths below *path*."""

    path: Path = Path("/")

    @classmethod
    def at(cls, path: Path) -> Root:
        """Return the root at *path*, which must be a folder."""
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError) as exc:
            reason = getattr(exc, "strerror", None) or "a loop of symbolic links"
            raise errors.UnavailableError(
                f"{shown(path)}: not a folder that can be searched for a driver ({reason})"
            ) from exc
        if not real.is_dir():
            raise errors.UnavailableError(
                f"{shown(path)}: must be a folder, such as / or /run/nvidia/driver"
            )
        return cls(real)

    def outside(self, place: str | Path) -> Path:
        """Return the host path of *place*, an absolute path within this root."""
        return self.path / os.path.normpath(f"/{place}").lstrip("/")

    def inside(self, path: Path) -> Path:
        """Return *path* as an absolute path within this root."""
        return Path("/") / path.relative_to(self.path)

    def real(self, path: Path) -> Path:
        """Return *path* with all links resolved; OSError if it does not exist."""
        if self.path == Path("/"):
            try:
                return path.resolve(strict=True)
            except RuntimeError as exc:
                raise _circle(path) from exc
        done: list[str] = []
        todo = list(reversed(path.relative_to(self.path).parts))
        links = 0
        while todo:
            part = todo.pop()
            if part == "..":
                del done[-1:]
                continue
            step = self.path.joinpath(*done, part)
            if not stat.S_ISLNK(step.lstat().st_mode):
                done.append(part)
                continue
            links += 1
            if links > MOST_LINKS:
                raise _circle(path)
            target = step.readlink()
            if target.is_absolute():
                done.clear()
            todo.extend(part for part in reversed(target.parts) if part != "/")
        return self.path.joinpath(*done)

    def names(self, folder: Path) -> list[str]:
        """Return the names in *folder*, which may be a link; OSError if it is not a folder."""
        return sorted(os.listdir(self.real(folder)))  # noqa: PTH208 - faster without Path

    def matching(self, folder: Path, pattern: str) -> Iterator[Path]:
        """Yield the paths in *folder* that match *pattern*, whose parts may have wildcards."""
        head, _, rest = pattern.partition("/")
        try:
            names = [name for name in self.names(folder) if fnmatch.fnmatchcase(name, head)]
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            if rest:
                yield from self.matching(folder / name, rest)
            else:
                yield folder / name


HOST = Root()


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file; OSError if it is not one, or too long."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it must be a regular file", str(path))
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes >> 10} KiB", str(path))
    return content


def identity(found: os.stat_result) -> Identity:
    """Return the identity of a file, which changes when it is written to."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def shown(path: Path | str) -> str:
    """Format *path* for a message: on one line, whatever its bytes are."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _circle(path: Path) -> OSError:
    return OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
