"""Builds an image of a later version of pyvgpu: see later_version."""

from __future__ import annotations

import sys
from pathlib import Path

import charts
import rig

TAG = "later"

_MODULE = Path(__file__).with_name("later_version.py")
_ROOT = Path(__file__).parents[2]


def make(folder: Path) -> None:
    """Build the image from the archive of `make images`, and load it into the cluster."""
    import images  # of deploy/

    packages = f"/{images.PREFIX}/lib/python{images.short()}/{images.PACKAGES}"
    hook = folder / "later_version.pth"
    hook.write_text("import later_version\n")
    archive = folder / "later.tar"
    charts.run(
        *(sys.executable, rig.DEPLOY / "image.py", archive, f"localhost/pyvgpu:{TAG}"),
        *("--on", _ROOT / "dist/pyvgpu.tar", "--env", "PYTHONUNBUFFERED=1"),
        *(f"--file={file}={packages}/{file.name}" for file in (_MODULE, hook)),
        *("--entrypoint", f"/{images.PREFIX}/bin/pyvgpu"),
    )
    charts.run(charts.CLUSTER, "image", archive)
    archive.unlink()
