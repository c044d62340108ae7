"""Usual locations of NVIDIA libraries and programs that are not part of the driver."""

import importlib.util
import os
import pathlib
import shutil
import sys

TOOLKITS = ("/usr/local/cuda*", "/opt/cuda", "/opt/nvidia/*", "/usr/lib/cuda")


def program(name):
    """Return the path of program *name*, None if it is not found."""
    found = shutil.which(name) or shutil.which(name, path=str(pathlib.Path(sys.executable).parent))
    if found:
        return found
    homes = [os.environ[key] for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    for pattern in (*homes, *TOOLKITS):
        for below in ("bin", "*", "compute-sanitizer"):
            for path in sorted(matching(f"{pattern}/{below}/{name}"), reverse=True):
                if os.access(path, os.X_OK) and path.is_file():
                    return str(path)
    return None


def libraries(pattern):
    """Return paths of the libraries whose names match *pattern*, newest names first."""
    folders = []
    for package in ("nvidia", "torch"):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations if spec else None) or ():
            folders += [f"{place}/lib", f"{place}/*/lib"]
    folders += [f"{home}/lib64" for home in TOOLKITS]
    folders += [f"{home}/targets/*/lib" for home in TOOLKITS]
    folders += ["/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"]
    found = {}
    for folder in folders:
        found.update((path.resolve(), None) for path in matching(f"{folder}/{pattern}"))
    return [str(path) for path in sorted(found, key=lambda path: path.name, reverse=True)]


def matching(pattern):
    """Return the paths that an absolute *pattern* matches."""
    return list(pathlib.Path("/").glob(pattern.lstrip("/")))
