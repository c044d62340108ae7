"""Content-addressed store of finished mirror trees, each created once from a plan.

    <store>/<release>-<digest>/    the trees, by driver release and content
            known/<fingerprint>    link to the tree that was created from these files
            facts.json             cache of ELF properties, see :mod:`pyvgpu.volumes.elf_facts`
            lock                   held while creating, renaming or removing entries
            .pyvgpu-<anything>     unfinished, see :mod:`pyvgpu.volumes.atomic_files`

A tree is built under a temporary name and published by one rename: no process sees a partial tree,
and a process that dies leaves only drafts, which the next one removes. A published tree never
changes. ``mirror_plan`` decides its content. A fingerprint (device, inode, size, time
of each file) saves reading the driver each time; files with an unknown fingerprint are read and
digested.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import re
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.volumes import atomic_files, elf_facts, link_or_copy, manifest, mirror_plan, root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    Progress = Callable[[str, int, int], None]  # file name, bytes copied so far, bytes in all

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM)
_FACTS = "facts.json"
_MOST_FACTS = 1 << 20
_TREE_NAME = re.compile(r"\d+(?:\.\d+)+-[0-9a-f]{16}", re.ASCII)


class MirrorError(errors.UnavailableError):
    """The mirror cannot be created here and now."""


class MirrorRefusedError(errors.PermissionDeniedError):
    """We may not use the store, or one of the driver's files."""


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """A folder of trees."""

    folder: Path
    remedy: str  # for errors, such as "name another folder in X"

    def ensure(self, intent: mirror_plan.MirrorPlan, progress: Progress | None = None) -> Path:
        """Return the tree of *intent*, created if it does not exist.

        Any number of processes may call this concurrently. *progress* is called only if files must
        be copied. Raises MirrorError or MirrorRefusedError.
        """
        with self.failures(intent):
            tree = _recognise(self.folder, intent)
            if tree is not None:
                _tidy(self.folder)
                return tree
            with atomic_files.locked(self.folder):
                return _recognise(self.folder, intent) or _make(self.folder, intent, progress)

    @contextlib.contextmanager
    def remembering(self) -> Iterator[None]:
        """Load the cache of ELF properties, and save it at the end of the context.

        If it cannot be saved, files are parsed again the next time.
        """
        file = self.folder / _FACTS
        saved = b""
        with contextlib.suppress(OSError):
            saved = root.read_regular(file, _MOST_FACTS)
        elf_facts.recall(saved)
        yield
        known = elf_facts.parse(saved)
        if known != saved and self.trees():
            # Do not wait for the lock: its holder may be creating a mirror.
            with contextlib.suppress(OSError), _locked_at_once(self.folder):
                atomic_files.write(file, known)

    def trees(self) -> tuple[Path, ...]:
        """Return the published trees, by name; none if we may not list them."""
        with contextlib.suppress(OSError):
            found = (path for path in self.folder.iterdir() if _TREE_NAME.fullmatch(path.name))
            return tuple(sorted(path for path in found if path.is_dir()))
        return ()

    def remove(self, tree: Path) -> None:
        """Remove an unused tree; it becomes invisible at once."""
        with atomic_files.locked(self.folder):
            doomed = atomic_files.new(self.folder)
            tree.rename(doomed)
            _sweep(self.folder)

    @contextlib.contextmanager
    def failures(self, intent: mirror_plan.MirrorPlan | None = None) -> Iterator[None]:
        """Turn file system errors in this context into errors with a remedy."""
        try:
            yield
        except OSError as exc:
            raise self._explain(exc, intent) from exc

    def _explain(self, exc: OSError, intent: mirror_plan.MirrorPlan | None) -> errors.PyVgpuError:
        where = exc.filename2 or exc.filename or self.folder
        if exc.errno in _NO_ROOM:
            takes = f", which needs up to {(_size(intent) >> 20) + 1} MiB" if intent else ""
            return MirrorError(
                f"{self.folder}: no space for the driver's mirror{takes}; free some space, or "
                f"{self.remedy}"
            )
        if exc.errno in _REFUSED:
            return MirrorRefusedError(
                f"{where}: cannot be used for the driver's mirror ({exc.strerror}); {self.remedy}"
            )
        reason = exc.strerror or exc
        return MirrorError(f"{where}: the driver's mirror cannot be created: {reason}")


def _recognise(store: Path, intent: mirror_plan.MirrorPlan) -> Path | None:
    """Return the intact tree that was created from these files, without reading them."""
    link = store / "known" / _fingerprint(intent)
    try:
        tree = store / link.readlink().name
    except OSError:  # there is none, or it is not a link
        return None
    return tree if _is_sound(tree, intent) else None


def _is_sound(tree: Path, intent: mirror_plan.MirrorPlan) -> bool:
    said = manifest.Manifest.read(tree)
    return said is not None and said.fits(tree, intent)


def _make(store: Path, intent: mirror_plan.MirrorPlan, progress: Progress | None) -> Path:
    """Find the tree by content, or create it; the caller holds the lock."""
    _sweep(store)
    before = _stamps(intent)
    digests = _read(intent.files)
    tree = store / f"{intent.release}-{_digest(intent, digests)[:16]}"
    if not _is_sound(tree, intent):
        draft = atomic_files.new(store)
        try:
            _build(draft, intent, digests, _Copier(_peers(store), progress, _size(intent)))
            if _stamps(intent) != before:
                raise MirrorError(
                    "the driver's files changed while they were mirrored (is it being "
                    "upgraded?); try again"
                )
            atomic_files.publish(draft, tree)
        finally:
            atomic_files.discard(draft)
    _remember(store, tree, _fingerprint(intent))
    return tree


def _read(files: Iterable[mirror_plan.PlannedFile]) -> dict[str, str]:
    """Return the digest of each file, by its path in the tree; every source is read once."""
    from concurrent import futures  # lazy: not needed for an existing tree

    files = tuple(files)
    sources = list(dict.fromkeys(file.source for file in files))
    with futures.ThreadPoolExecutor() as readers:
        found = dict(zip(sources, readers.map(manifest.digest_of, sources), strict=True))
    return {file.path: found[file.source] for file in files}


def _build(
    draft: Path, intent: mirror_plan.MirrorPlan, digests: Mapping[str, str], copier: _Copier
) -> None:
    atomic_files.make(draft)
    for folder in intent.folders:
        atomic_files.make(draft / folder)
    for entry in intent.entries:
        path = draft / entry.path
        if isinstance(entry, mirror_plan.PlannedFile):
            copier.put(entry, digests[entry.path], path)
        elif isinstance(entry, mirror_plan.OtherName):
            link_or_copy.name_again(draft / entry.file, path)
        else:
            path.symlink_to(entry.target)
    manifest.Manifest.observe(draft, intent, digests).write(draft)
    for folder in (*reversed(intent.folders), ""):
        atomic_files.sync(draft / folder)


class _Copier:
    """Creates the files of one tree, and reports the progress of copying."""

    def __init__(self, peers: dict[str, Path], progress: Progress | None, total: int) -> None:
        self._peers = peers  # by digest: files of trees here, to which hard links are possible
        self._progress = progress
        self._done = 0
        self._total = total

    def put(self, file: mirror_plan.PlannedFile, digest: str, path: Path) -> None:
        def advance(count: int) -> None:
            # If links are impossible, a file of two volumes is copied twice.
            self._done = min(self._done + count, self._total)
            if self._progress:
                self._progress(file.source.name, self._done, self._total)

        if file.ours:
            link_or_copy.place_apart(file.source, path)
        else:
            link_or_copy.place(self._peers.get(digest, file.source), path, advance)
            self._peers[digest] = path


def _peers(store: Path) -> dict[str, Path]:
    """Return the unchanged files of all trees here, by digest."""
    found = {}
    for tree in store.iterdir():
        said = manifest.Manifest.read(tree)
        for path, entry in said.entries.items() if said else ():
            with contextlib.suppress(OSError):
                if entry.target is None and entry.is_still(tree / path):
                    found[entry.digest] = tree / path
    return found


def _remember(store: Path, tree: Path, fingerprint: str) -> None:
    known = store / "known"
    known.mkdir(exist_ok=True)
    atomic_files.link(known / fingerprint, f"../{tree.name}")


def _tidy(store: Path) -> None:
    """Remove drafts of dead processes, unless the lock is taken (its holder does it) or denied."""
    if atomic_files.found(store):
        with contextlib.suppress(OSError), _locked_at_once(store):
            _sweep(store)


def _sweep(store: Path) -> None:
    """Remove all drafts; their processes are dead, because we hold the lock."""
    known = store / "known"
    for path in (*atomic_files.found(store), *atomic_files.found(known)):
        atomic_files.discard(path)
    for path in known.glob("*"):
        if not path.exists():
            path.unlink()


def _locked_at_once(store: Path) -> AbstractContextManager[None]:
    return atomic_files.locked(store, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _fingerprint(intent: mirror_plan.MirrorPlan) -> str:
    """Return the fingerprint of the plan and the identities of its files."""
    text = hashlib.sha256(repr(intent.empty).encode())
    for entry in intent.entries:
        text.update(repr(entry).encode(errors="surrogateescape"))
        if isinstance(entry, mirror_plan.PlannedFile):
            text.update(repr(root.identity(entry.source.stat())).encode())
    return text.hexdigest()


def _digest(intent: mirror_plan.MirrorPlan, digests: Mapping[str, str]) -> str:
    """Return the digest of the tree's content, independent of the files' origin."""
    text = hashlib.sha256(repr(intent.empty).encode())
    for entry in intent.entries:
        content = (
            digests[entry.path] if isinstance(entry, mirror_plan.PlannedFile) else repr(entry)
        )
        text.update(repr((entry.path, content)).encode(errors="surrogateescape"))
    return text.hexdigest()


def _stamps(intent: mirror_plan.MirrorPlan) -> list[tuple[int, int]]:
    """Return values that change when a file is written to, but not when it is hard-linked."""
    found = [file.source.stat() for file in intent.files]
    return [(each.st_size, each.st_mtime_ns) for each in found]


def _size(intent: mirror_plan.MirrorPlan) -> int:
    """Return the total size of the driver's files; files that have vanished count as 0."""
    sizes = 0
    for source in {file.source for file in intent.files if not file.ours}:
        with contextlib.suppress(FileNotFoundError):
            sizes += source.stat().st_size
    return sizes
