"""The grants of a node on disk: a write-ahead log that survives agent and node crashes.

    <folder>/checkpoint            a header line, then a line for each change
             checkpoint.lock       locked by the one agent that may write
             checkpoint.aside.N    a file that could not be parsed, kept for administrators

A change is on the disk when :meth:`Checkpoint.put` returns, by one write and one fdatasync: the
file is preallocated with zeros, and a change overwrites them. A zero ends the changes. When the
file is full, it is compacted into a new one, which is renamed over it. Concurrent changes share
one fdatasync: each is noted first, then all are settled together.

An incomplete line is a change that was never acknowledged, or damage. The two look alike, so the
lines after it are discarded, the file is kept aside, and :attr:`Checkpoint.trouble` says that the
grants must be recovered from elsewhere.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
import zlib
from typing import TYPE_CHECKING, Any, Self

from pyvgpu import errors, locks
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.grants import grant_index
from pyvgpu.machine import mounts
from pyvgpu.volumes import atomic_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyvgpu.deviceplugin.grants import Grant

FILE = "checkpoint"
FORMAT = "pyvgpu.io/grants"
VERSION = 1
ASIDES = 4  # kept at most

_LEAST_ROOM = 1 << 20  # bytes of the file, at least
_LONGEST = 1 << 28  # bytes of a file that are read, at most
_SYNC_FILE_RANGE_WRITE = 2
_JSON = json.JSONEncoder(separators=(",", ":"))
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Checkpoint:
    """The grants of a node, in memory and on the disk; to be used in a with statement.

    UnavailableError if another agent has locked it, or the folder cannot be written.
    """

    def __init__(self, folder: Path, node: str) -> None:
        self._folder = folder
        self._node = node
        self._write_lock = threading.Lock()
        self.known = grant_index.GrantIndex()
        self._changed = threading.Condition()
        self._noted = self._settled = 0  # changes that were written, and that are on the disk
        self._busy = False  # a thread waits for the disk
        self._doubtful = False  # an fdatasync has failed
        self._file = -1
        self._end = self._room = 0
        self.trouble = ""  # why the file was not trusted; empty: it was
        self._lock = _take_lock(folder)
        try:
            for draft in atomic_files.found(folder):
                atomic_files.discard(draft)
            self._load()
        except OSError as exc:
            self.close()
            raise _explained(folder / FILE, exc) from exc
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def grants(self) -> Mapping[str, Grant]:
        """A snapshot of the grants, by id: later changes are not in it."""
        return self.known.grants

    def put(self, *made: Grant) -> None:
        """Store grants, new or changed, all of them or none: on the disk on return."""
        self._change(made, (), soon=True)
        self.settle()

    def note(self, *made: Grant, soon: bool = False) -> None:
        """Do the same without fdatasync: the disk has them when :meth:`settle` returns.

        *soon*: start writeback at once, which pays for one change and not for many. If only the
        agent is killed in between, nothing is lost; if the node crashes, the change is.
        """
        self._change(made, (), soon=soon)

    def settle(self) -> None:
        """Wait until the disk has all noted changes; concurrent callers share one fdatasync."""
        with self._changed:
            wanted = self._noted
            while self._settled < wanted and self._busy:
                self._changed.wait()
            if self._settled >= wanted:
                return
            self._busy, reached = True, self._noted
        try:
            self._sync()
        except OSError as exc:
            reached = 0
            raise _explained(self._folder / FILE, exc) from exc
        finally:
            with self._changed:
                self._busy = False
                self._settled = max(self._settled, reached)
                self._changed.notify_all()

    def _sync(self) -> None:
        """Sync the file to disk; after an earlier failure, rewrite it as a new file."""
        with self._write_lock:
            if self._doubtful:
                self._rewrite(self.grants)
                self._doubtful = False
                return
            file = os.dup(self._file)
        try:
            os.fdatasync(file)
        except OSError:
            self._doubtful = True
            raise
        finally:
            os.close(file)

    def drop(self, *ids: str) -> None:
        """Remove grants, all of them or none: on the disk on return."""
        self._change((), ids, soon=True)
        self.settle()

    def close(self) -> None:
        """Close the file and release the lock."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    def _change(self, made: Sequence[Grant], gone: Sequence[str], *, soon: bool) -> None:
        with self._write_lock:
            try:
                line = _line({"put": [grants.dump(grant) for grant in made], "drop": [*gone]})
                if self._end + len(line) < self._room:
                    _write(self._file, line + b"\0", self._end)
                    if soon:
                        _begin_to_sync(self._file, self._end, len(line) + 1)
                    self._end += len(line)
                else:
                    self._rewrite(_after(self.grants, made, gone))
            except OSError as exc:
                raise _explained(self._folder / FILE, exc) from exc
            self.known.change(made, gone)
            with self._changed:
                self._noted += 1

    def _rewrite(self, kept: Mapping[str, Grant]) -> None:
        """Replace the file by one that holds *kept* alone, with room for three times as much."""
        first = {"format": FORMAT, "version": VERSION, "node": self._node}
        body = _line({"put": [grants.dump(grant) for grant in kept.values()], "drop": []})
        room = max(_LEAST_ROOM, 4 * len(body))
        head = _line({**first, "bytes": room})
        path = self._folder / FILE
        atomic_files.write(path, (head + body).ljust(room, b"\0"))
        file = os.open(path, _OPEN)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._end, self._room = file, len(head) + len(body), room

    def _load(self) -> None:
        path = self._folder / FILE
        try:
            content = _read(path)
        except FileNotFoundError:
            self._rewrite({})
            return
        except OSError as exc:
            content, self.trouble = b"", f"it cannot be read: {exc.strerror}"
        else:
            self._believe(content)
        if self.trouble:
            aside = self._keep_aside(path)
            self.trouble = f"{path}: {self.trouble}; it is kept as {aside.name}"
            self._rewrite(self.grants)
        else:  # nothing is written, so a full disk does not keep the agent from starting
            self._file, self._end = os.open(path, _OPEN), content.index(b"\0")
            self._room = len(content)

    def _believe(self, content: bytes) -> None:
        """Load the grants in *content*, as far as it can be trusted."""
        found, zero, _ = content.partition(b"\0")
        lines = found.splitlines(keepends=True)
        try:
            first = _parse(lines[0] if lines and zero else b"")
            self.trouble = _problem(first, self._node, len(content))
            if self.trouble:
                return
            _follow(lines[1:], self.known)
        except (errors.DataError, KeyError, TypeError) as exc:
            self.trouble = f"it is damaged: {exc}"

    def _keep_aside(self, path: Path) -> Path:
        """Link the file to the next aside name, and remove the oldest asides.

        It keeps its own name until it is replaced: if the agent dies in between, the next start
        finds the same trouble.
        """
        asides = sorted(_asides(path.parent))
        number = asides[-1] + 1 if asides else 1
        aside = path.with_name(f"{FILE}.aside.{number}")
        try:
            aside.hardlink_to(path)
        except OSError:  # a folder, or a file system without them
            path.rename(aside)
        for old in asides[: max(0, len(asides) + 1 - ASIDES)]:
            atomic_files.discard(path.with_name(f"{FILE}.aside.{old}"))
        return aside


def peek(folder: Path) -> Mapping[str, Grant]:
    """Return the grants in the checkpoint of *folder*, without changing or locking it.

    DataError if it is damaged, or UnavailableError if it cannot be read.
    """
    path = folder / FILE
    try:
        found, _, _ = _read(path).partition(b"\0")
    except OSError as exc:
        raise errors.of_files(f"{path}: cannot be read", exc) from exc
    there = grant_index.GrantIndex()
    try:
        _follow(found.splitlines(keepends=True)[1:], there)
    except (KeyError, TypeError) as exc:
        raise errors.DataError(f"{path}: is damaged: {exc!r}") from exc
    return there.grants


def _follow(lines: Sequence[bytes], there: grant_index.GrantIndex) -> None:
    """Apply the changes in *lines* to *there*."""
    for line in lines:
        change = _parse(line)
        there.change([grants.load(one) for one in change["put"]], [*change["drop"]])


def _asides(folder: Path) -> list[int]:
    numbers = (path.name.removeprefix(f"{FILE}.aside.") for path in folder.glob(f"{FILE}.aside.*"))
    return [int(number) for number in numbers if number.isdecimal()]


def _problem(first: Any, node: str, size: int) -> str:
    """Return why a file that begins with *first* is not to be trusted; empty if it is."""
    if not isinstance(first, dict) or first.get("format") != FORMAT:
        return "it is not a checkpoint of grants"
    if first.get("version") != VERSION:
        return f"it has version {first.get('version')}, this pyvgpu supports {VERSION}"
    if first.get("node") != node:
        return f"it is of node {first.get('node')!r}, this is {node!r}"
    if first.get("bytes") != size:
        return f"it has {size} bytes, it was made with {first.get('bytes')}"
    return ""


def _after(
    before: Mapping[str, Grant], made: Sequence[Grant], gone: Sequence[str]
) -> dict[str, Grant]:
    after = {**before, **{grant.id: grant for grant in made}}
    for grant_id in gone:
        after.pop(grant_id, None)
    return after


def _line(change: dict[str, Any]) -> bytes:
    text = _JSON.encode(change).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parse(line: bytes) -> Any:
    text = line[9:-1]
    if line[8:9] != b" " or line[-1:] != b"\n" or line[:8] != b"%08x" % zlib.crc32(text):
        raise errors.DataError("a line of it is truncated")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise errors.DataError(f"a line of it is not JSON: {exc}") from exc


def _read(path: Path) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(file, "rb") as content:
        return content.read(_LONGEST)


def _write(file: int, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(file, content, offset)
        content, offset = content[written:], offset + written


def _begin_to_sync(file: int, offset: int, size: int) -> None:
    """Start writeback of the bytes just written, which shortens the fdatasync that follows.

    Errors are ignored: fdatasync reports them, and without this call nothing is lost.
    """
    where = ctypes.c_int64(offset), ctypes.c_int64(size)
    mounts.libc().sync_file_range(file, *where, ctypes.c_uint(_SYNC_FILE_RANGE_WRITE))


def _take_lock(folder: Path) -> int:
    path = folder / f"{FILE}.lock"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path, _OPEN | os.O_CREAT, 0o600)
    except OSError as exc:
        raise _explained(path, exc) from exc
    try:
        if not locks.take(lock, 0):
            pid = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
            raise errors.UnavailableError(
                f"{folder}: another agent of this node has it (pid {pid or 'unknown'}); one is "
                "enough, or name another folder for the state of a second one"
            )
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    except OSError as exc:
        os.close(lock)
        raise _explained(path, exc) from exc
    except BaseException:
        os.close(lock)
        raise
    return lock


def _explained(path: Path, exc: OSError) -> errors.PyVgpuError:
    return errors.of_files(f"{path}: grants cannot be stored", exc)
