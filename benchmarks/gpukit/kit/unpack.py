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

CANNOT_CREATE = 73


def unpack(kit):
    """Return the folder of the unpacked wheels: in TMPDIR, or where else libraries can be loaded.

    OSError has the reason of the first place if there is none.
    """
    reasons = []
    for base in (pathlib.Path(tempfile.gettempdir()), pathlib.Path.home() / ".cache", kit):
        try:
            return unpack_into(base, kit)
        except OSError as exc:
            reasons.append(exc)
    raise reasons[0]


def unpack_into(base, kit):
    """Unpack in *base*, if that is not done; of two runs at once the first makes the folder."""
    if os.statvfs(base).f_flag & os.ST_NOEXEC:
        raise OSError(f"{base} is mounted noexec, so that no library can be loaded from it")
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    version = (kit / "VERSION").read_text(encoding="utf-8").strip()
    site = base / f"pyvgpu-gpu-kit-{version}-{tag}-{os.geteuid()}"
    if site.exists():
        if site.stat().st_uid != os.geteuid():
            raise OSError(f"{site} is not yours")
        return site
    draft = pathlib.Path(tempfile.mkdtemp(prefix=f"{site.name}.", dir=base))
    try:
        for folder in ("any", tag):
            for wheel in sorted((kit / "wheels" / folder).glob("*.whl")):
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
            f"run: the wheels cannot be unpacked into {tempfile.gettempdir()}: {exc}; name "
            "another folder in TMPDIR",
            file=sys.stderr,
        )
        return CANNOT_CREATE
    return 0


if __name__ == "__main__":
    sys.exit(main())
