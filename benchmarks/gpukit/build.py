"""Build the GPU kit: a folder, and a tar of it, that runs without a network.

python benchmarks/gpukit/build.py WHEEL DIST     dist/pyvgpu-gpu-kit/, dist/pyvgpu-gpu-kit.tar.gz
"""

import pathlib
import shutil
import subprocess
import sys
import tarfile
import tomllib

import portable

HERE = pathlib.Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
MOST_BYTES = 40 << 20
NAME = "pyvgpu-gpu-kit"
NOT_IN_THE_KIT = ("build.py", "portable.py", "__pycache__", ".gitignore")


def dependencies():
    """Return the requirements of a pyvgpu that runs programs."""
    with (PROJECT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]["dependencies"]


def download(folder, version, machine):
    """Fetch wheels of the run-time dependencies for one Python."""
    subprocess.run(
        [
            sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download",
            "--dest", folder, "--only-binary", ":all:", "--python-version", version,
            "--platform", f"manylinux2014_{machine}", "--platform", f"manylinux_2_17_{machine}",
            *dependencies(),
        ],
        check=True,
    )  # fmt: skip


def build(wheel, dist):
    """Make the folder and the tar in *dist*; SystemExit if that is too large."""
    machine = wheel.stem.rpartition("manylinux2014_")[2].partition(".")[0]
    version = wheel.name.split("-")[1]
    kit = dist / NAME
    shutil.rmtree(kit, ignore_errors=True)
    shutil.copytree(HERE, kit, ignore=shutil.ignore_patterns(*NOT_IN_THE_KIT))
    portable.compile_programs(kit / "programs" / "bin", machine)
    (kit / "VERSION").write_text(f"{version}\n", encoding="utf-8")
    everywhere = kit / "wheels" / "any"
    everywhere.mkdir(parents=True)
    shutil.copy(wheel, everywhere)
    for python in PYTHONS:
        folder = kit / "wheels" / f"cp{python.replace('.', '')}"
        folder.mkdir()
        download(folder, python, machine)
        for pure in folder.glob("*-none-any.whl"):
            pure.replace(everywhere / pure.name)
    archive = dist / f"{NAME}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(kit, NAME, filter=anonymous)
    size = archive.stat().st_size
    if size >= MOST_BYTES:
        raise SystemExit(f"{archive}: {size >> 20} MiB: must be under {MOST_BYTES >> 20} MiB")
    print(f"{archive}: {size / (1 << 20):.1f} MiB")


def anonymous(entry):
    """Drop the owner of a file."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


if __name__ == "__main__":
    build(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
