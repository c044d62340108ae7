"""Write a bundle: a compressed archive that only its owner may read."""

from __future__ import annotations

import dataclasses
import io
import os
import tarfile
from typing import TYPE_CHECKING

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class BundleFile:
    """One file of a bundle."""

    name: str  # below the bundle's own folder
    content: bytes


def write(path: Path, files: Sequence[BundleFile], made: float) -> None:
    """Write *files* to *path*, which must not exist; *made* is the modification time of all."""
    folder = path.name.partition(".")[0]
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as exc:
        raise errors.UsageError(f"--output {path}: already exists; name another file") from exc
    except OSError as exc:
        raise errors.of_files(f"--output {path}: cannot be created", exc) from exc
    try:
        with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for file in files:
                entry = tarfile.TarInfo(f"{folder}/{file.name}")
                entry.size, entry.mtime, entry.mode = len(file.content), int(made), 0o600
                archive.addfile(entry, io.BytesIO(file.content))
    except OSError as exc:
        path.unlink(missing_ok=True)
        raise errors.of_files(f"--output {path}: cannot be written", exc) from exc
