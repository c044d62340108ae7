"""The names of the driver's files, and where drivers are usually installed.

Data only. A driver's library is whatever lies beside ``libcuda.so`` and ends in the driver's
own release, so libraries that a newer driver adds come along by themselves; listed here is
only what needs a rule.
"""

from __future__ import annotations

from pathlib import Path

from pyvgpu import names

SHIM_SONAME = names.SHIM_FILE

CUDA = "libcuda"
NVML = "libnvidia-ml"

# The libraries that the shim replaces: stem of the file name, the SONAME, and the private name
# under which the shim needs the original.
REPLACED = (
    (CUDA, names.LIBCUDA, names.LIBCUDA_ORIGIN),
    (NVML, names.LIBNVIDIA_ML, names.LIBNVIDIA_ML_ORIGIN),
)

# Machines we know: what uname calls them -> what ELF calls them.
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}

# Where drivers are installed, first hit first; what /etc/ld.so.conf names comes after these.
USUAL_FOLDERS = tuple(
    Path(folder)
    for folder in (
        "/usr/lib/x86_64-linux-gnu",  # Debian, Ubuntu
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu/nvidia/current",  # Debian's alternatives
        "/usr/lib/aarch64-linux-gnu/nvidia/current",
        "/usr/lib64",  # Fedora, RHEL, SUSE
        "/usr/lib",  # Arch
        "/usr/lib/wsl/lib",  # WSL
        "/run/opengl-driver/lib",  # NixOS
        "/usr/local/nvidia/lib64",  # GKE, gpu-manager
    )
)

LOADER_CONFIGURATION = Path("/etc/ld.so.conf")
