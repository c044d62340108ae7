"""Unpack the kit's wheels for this Python: ``unpack.py KIT`` prints the folder.

``KIT/wheels/any`` has what every Python can use, ``KIT/wheels/cp312`` what Python 3.12 needs.
"""

import contextlib
import os
import pathlib
import shutil
import sys
import tempfile
import zipfile
import zlib

CANNOT_CREATE = 73


def unpack(kit):
    """Return the folder of the unpacked wheels: in TMPDIR, or where else libraries can be loaded.

    OSError has the reason of the first place if there is none.
    """
    reasons = []
    for place in (tempfile.gettempdir, cache, lambda: kit):
        try:
            return unpack_into(pathlib.Path(place()), kit)
        except OSError as exc:  # gettempdir() raises it, too
            reasons.append(exc)
    raise reasons[0]


def cache():
    """Return the user's folder for caches, which may not exist; OSError without a home."""
    try:
        return pathlib.Path.home() / ".cache"
    except RuntimeError as exc:
        raise OSError(str(exc)) from exc


def unpack_into(base, kit):
    """Unpack in *base*, if that is not done; of two runs at once the first makes the folder."""
    if os.statvfs(base).f_flag & os.ST_NOEXEC:
        raise OSError(f"{base} is mounted noexec, so that no library can be loaded from it")
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    version = (kit / "VERSION").read_text(encoding="utf-8").strip()
    wheels = [
        wheel for part in ("any", tag) for wheel in sorted((kit / "wheels" / part).glob("*.whl"))
    ]
    digest = 0  # kits of one version may differ, such as those of a changed checkout
    for wheel in wheels:
        digest = zlib.crc32(wheel.read_bytes(), digest)
    site = base / f"pyvgpu-gpu-kit-{version}-{tag}-{digest:08x}-{os.geteuid()}"
    if site.exists():
        if site.stat().st_uid != os.geteuid():
            raise OSError(f"{site} is not yours")
        return site
    draft = pathlib.Path(tempfile.mkdtemp(prefix=f"{site.name}.", dir=base))
    try:
        for wheel in wheels:
            extract(wheel, draft)
        with contextlib.suppress(OSError):  # another run was first
            draft.rename(site)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return site


def extract(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            path = pathlib.Path(archive.extract(entry, folder))
            mode = entry.external_attr >> 16 & 0o777
            if mode and path.is_file():
                path.chmod(mode)


def main():
    try:
        print(unpack(pathlib.Path(sys.argv[1])))
    except (OSError, zipfile.BadZipFile) as exc:
        print(
            f"run: the wheels cannot be unpacked: {exc}; name a folder in TMPDIR that can be "
            "written, with 60 MB free, and not mounted noexec",
            file=sys.stderr,
        )
        return CANNOT_CREATE
    return 0


if __name__ == "__main__":
    sys.exit(main())
