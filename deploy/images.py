#!/usr/bin/env python3
"""Build pyvgpu's images as OCI archives, without a registry, a daemon or root: `make images`.

images.py FOLDER WHEEL
images.py --trees FOLDER WHEEL

The second writes the images' root file systems instead, for deploy/Dockerfile: FOLDER/pyvgpu and
FOLDER/pyvgpu-fast-exit. The images are for the architecture of this machine: amd64 or arm64.

- pyvgpu.tar: the Python that runs this script, with WHEEL and the dependencies of its extra
  `kubernetes`; all programs of the cluster run from it.
- pyvgpu-fast-exit.tar: one static program that exits at once with 0, under whatever name.

Python modules that no program in a cluster imports are left out.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

import image
import release

HERE = pathlib.Path(__file__).parent
PREFIX = "usr/local"  # Python finds its library relative to its executable
LIBRARIES = f"{PREFIX}/lib/native"
# Where this Python looks for packages: Debian's Python uses another folder than others.
PACKAGES = "dist-packages" if "deb_system" in sysconfig.get_scheme_names() else "site-packages"
NEEDLESS = (  # left out, below the folder of the standard library
    *("config-*", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test"),
    *("tkinter", "turtledemo", "dist-packages", "lib-dynload/_test*", "lib-dynload/_tkinter*"),
)
IMAGES = {  # options of image.py for each
    "pyvgpu": ("--env", "PYTHONUNBUFFERED=1", "--entrypoint", f"/{PREFIX}/bin/pyvgpu"),
    "pyvgpu-fast-exit": ("--user", "65534", "--entrypoint", "/pyvgpu-exit"),
}
NEEDLESS_PACKAGES = ("bin", "kubernetes/aio", "*/tests")


def main() -> None:
    """Write both archives, or their root file systems, into a folder."""
    trees = sys.argv[1:2] == ["--trees"]
    folder, wheel = map(pathlib.Path, sys.argv[2 if trees else 1 :])
    folder.mkdir(parents=True, exist_ok=True)
    if trees:
        lay_out(folder, wheel)
        for name in IMAGES:
            stand(folder / name)
        return
    version = release.version()  # the one that manifests and the chart name
    with tempfile.TemporaryDirectory() as work:
        lay_out(pathlib.Path(work), wheel)
        for name, options in IMAGES.items():
            root = pathlib.Path(work) / name
            archive(
                folder / f"{name}.tar",
                f"localhost/{name}:{version}",
                *(entry(root / path) for path in sorted(top(root))),
                *options,
            )


def lay_out(folder: pathlib.Path, wheel: pathlib.Path) -> None:
    """Write the root file systems of both images."""
    root = folder / "pyvgpu"
    python(root)
    packages(root / PREFIX / "lib" / f"python{short()}" / PACKAGES, wheel)
    libraries(root)
    fast_exit(wheel, folder / "pyvgpu-fast-exit")


def stand(root: pathlib.Path) -> None:
    """Create the folders that image.py adds to every image."""
    for name, mode in image.FOLDERS.items():
        (root / name).mkdir(exist_ok=True)
        (root / name).chmod(mode)


def short() -> str:
    """Return Python's version, such as 3.11."""
    return sysconfig.get_python_version()


def top(root: pathlib.Path) -> list[str]:
    """Return the names in *root*."""
    return [path.name for path in root.iterdir()]


def entry(path: pathlib.Path) -> str:
    """Return the option of image.py that adds *path* to the top of an image."""
    if path.is_symlink():
        return f"--link=/{path.name}={path.readlink()}"
    return f"--file={path}=/{path.name}"


def archive(file: pathlib.Path, reference: str, *options: str) -> None:
    """Write one archive, and print its size."""
    subprocess.run([sys.executable, HERE / "image.py", file, reference, *options], check=True)
    print(f"{file}\t{reference}\t{file.stat().st_size / 1e6:.1f} MB")


def fast_exit(wheel: pathlib.Path, root: pathlib.Path) -> None:
    """Extract the static program from the wheel, and link it under the names of shells."""
    (root / "bin").mkdir(parents=True)
    program = root / "pyvgpu-exit"
    with zipfile.ZipFile(wheel) as opened:
        program.write_bytes(opened.read("pyvgpu/lib/sidecar/pyvgpu-exit"))
    program.chmod(0o755)
    (root / "pyvgpu-launch").symlink_to("pyvgpu-exit")
    for shell in ("sh", "bash"):
        (root / "bin" / shell).symlink_to("/pyvgpu-exit")


def python(root: pathlib.Path) -> None:
    """Copy this Python and its standard library."""
    library = root / PREFIX / "lib" / f"python{short()}"
    copy(pathlib.Path(sysconfig.get_path("stdlib")), library, NEEDLESS)
    dynload = sysconfig.get_config_var("DESTSHARED")
    if dynload and not (library / "lib-dynload").exists():
        copy(pathlib.Path(dynload), library / "lib-dynload", ())
    program = root / PREFIX / "bin" / f"python{short()}"
    program.parent.mkdir(parents=True)
    shutil.copy(pathlib.Path(sys.executable).resolve(), program)
    command = program.with_name("pyvgpu")
    command.write_text(
        f"#!/{PREFIX}/bin/{program.name}\nimport sys\n\nfrom pyvgpu import __main__\n\n"
        "sys.exit(__main__.main())\n"
    )
    command.chmod(0o755)


def packages(folder: pathlib.Path, wheel: pathlib.Path) -> None:
    """Install the wheel with its dependencies for a cluster, and compile everything once."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    subprocess.run([*pip, "--no-compile", "--target", folder, f"{wheel}[kubernetes]"], check=True)
    for pattern in NEEDLESS_PACKAGES:
        for path in folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    # Compile with the paths inside the image, so that tracebacks show them.
    root = folder.parents[4]
    subprocess.run([*command, "-j0", "-s", root, "-p", "/", folder.parent], check=True)


def libraries(root: pathlib.Path) -> None:
    """Copy the shared libraries that files in *root* need, and the loader."""
    native = root / LIBRARIES
    native.mkdir(parents=True)
    programs = [root / PREFIX / "bin" / f"python{short()}", *root.glob("**/*.so")]
    for file in programs:
        needed = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
        for name, path in re.findall(r"(\S+) => (/\S+)", needed):
            if root not in pathlib.Path(path).parents and not (native / name).exists():
                shutil.copy(path, native / name)
        for path in re.findall(r"^\s(/\S+)", needed, re.MULTILINE):  # the loader, by its own path
            loader = root / path.lstrip("/")
            loader.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, loader)
    subprocess.run(["strip", "--strip-unneeded", *programs, *native.iterdir()], check=True)
    # The loader's cache and not LD_LIBRARY_PATH: it also works without an environment.
    (root / "etc").mkdir()
    tool = shutil.which("ldconfig", path="/usr/sbin:/sbin") or "ldconfig"
    subprocess.run([tool, "-r", root, f"/{LIBRARIES}"], check=True)


def copy(source: pathlib.Path, target: pathlib.Path, needless: tuple[str, ...]) -> None:
    """Copy a folder without the *needless* files and compiled bytecode."""
    left_out = {path for pattern in needless for path in source.glob(pattern)}

    def ignore(folder: str, found: list[str]) -> list[str]:
        here = pathlib.Path(folder)
        return [name for name in found if name == "__pycache__" or here / name in left_out]

    shutil.copytree(source, target, ignore=ignore)


if __name__ == "__main__":
    main()
