"""Catalogue of the driver's files, their capabilities, and the usual installation folders.

Data only. Every library whose name ends in the driver's release belongs to the driver, so
libraries of newer drivers are included automatically; a listed one also has a capability.
Libraries with their own version are included only if they are listed.
"""

from __future__ import annotations

import enum
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

# Supported machines: uname's name -> ELF's name, and their 32-bit counterparts.
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
MACHINES_32 = {"x86_64": "EM_386", "aarch64": "EM_ARM"}


class Capability(enum.StrEnum):
    """The driver capability that a file belongs to, as in NVIDIA_DRIVER_CAPABILITIES."""

    COMPUTE = "compute"
    UTILITY = "utility"
    GRAPHICS = "graphics"
    VIDEO = "video"
    DISPLAY = "display"
    NGX = "ngx"


# Libraries whose name ends in the driver's release, by the part before ``.so``.
RELEASED = {
    Capability.COMPUTE: (
        CUDA,
        "libcudadebugger",
        "libnvidia-allocator",
        "libnvidia-compiler",  # until 470
        "libnvidia-fatbinaryloader",  # until 440
        "libnvidia-gpucomp",  # compiler, also used by graphics
        "libnvidia-opencl",
        "libnvidia-pkcs11",  # confidential computing, one for each OpenSSL version
        "libnvidia-pkcs11-openssl3",
        "libnvidia-ptxjitcompiler",
        "libnvidia-tileiras",
    ),
    Capability.UTILITY: (
        NVML,
        "libnvidia-cfg",
        "libnvidia-nscq",
        "libnvidia-sandboxutils",
        "libnvsdm",
    ),
    Capability.GRAPHICS: (
        "libEGL_nvidia",
        "libGLESv1_CM_nvidia",
        "libGLESv2_nvidia",
        "libGLX_nvidia",
        "libnvidia-cbl",
        "libnvidia-eglcore",
        "libnvidia-glcore",
        "libnvidia-glsi",
        "libnvidia-glvkspirv",
        "libnvidia-rtcore",
        "libnvidia-tls",
        "libnvidia-vksc-core",
        "libnvidia-vulkan-producer",
        "libnvoptix",
    ),
    Capability.VIDEO: (
        "libnvcuvid",
        "libnvidia-encode",
        "libnvidia-fbc",
        "libnvidia-ifr",
        "libnvidia-opticalflow",
        "libvdpau_nvidia",
    ),
    Capability.DISPLAY: (
        "libnvidia-gtk2",
        "libnvidia-gtk3",
        "libnvidia-present",
        "libnvidia-wayland-client",
    ),
    Capability.NGX: ("libnvidia-ngx",),
}

# Libraries with their own version: NVIDIA's, WSL's, and GLVND, which dispatches to NVIDIA's or
# another OpenGL.
OWN_VERSION = {
    Capability.COMPUTE: (
        "libcuda_loader",
        "libd3d12",
        "libd3d12core",
        "libdxcore",
        "libnvdxdlkernels",
        "libnvdxgdmal",
        "libnvidia-ml_loader",
        "libnvidia-nvvm",  # until 470; it ends in the release since
        "libnvidia-nvvm70",
    ),
    Capability.GRAPHICS: (
        "libEGL",
        "libGL",
        "libGLESv1_CM",
        "libGLESv2",
        "libGLX",
        "libGLdispatch",
        "libOpenGL",
        "libnvidia-api",
        "libnvidia-egl-gbm",
        "libnvidia-egl-wayland",
        "libnvidia-egl-wayland2",
        "libnvidia-egl-xcb",
        "libnvidia-egl-xlib",
        "libnvwgf2umx",
    ),
}

# Prefixes of the names of all of them, and of some others.
BEGINNINGS = ("libcuda", "libnv", "libEGL", "libGL", "libOpenGL", "libvdpau_nvidia")

# Mesa has libraries of these names, too, which do not work with the driver: include only those
# that need NVIDIA's core (a driver before GLVND) or GLVND's dispatcher.
MESA_TOO = ("libEGL", "libGL", "libGLESv1_CM", "libGLESv2")
NOT_MESA = r"libnvidia-e?glcore\.so.*|libGLdispatch\.so.*"

# Old drivers have two of these, for systems with and without thread-local storage: include the one
# whose ABI note requires a kernel with it.
TLS = "libnvidia-tls"
TLS_ABI = (2, 3, 99)

BINARIES = {
    Capability.COMPUTE: (
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server",
    ),
    Capability.UTILITY: (
        "nv-fabricmanager",
        "nvidia-debugdump",
        "nvidia-imex",
        "nvidia-imex-ctl",
        "nvidia-persistenced",
        "nvidia-smi",
    ),
}

# Files that programs find by path: patterns below SHARE_FOLDERS, of which the first match counts.
DATA = {
    Capability.COMPUTE: ("OpenCL/vendors/nvidia.icd",),
    Capability.GRAPHICS: (
        "egl/egl_external_platform.d/*nvidia*.json",
        "glvnd/egl_vendor.d/*nvidia*.json",
        "nvidia/nvidia-application-profiles-{release}-*",
        "nvidia/nvoptix.bin",
        "vulkan/explicit_layer.d/*nvidia*.json",
        "vulkan/icd.d/nvidia_icd*.json",
        "vulkan/implicit_layer.d/nvidia_layers*.json",
        "vulkansc/icd.d/nvidia-vksc*.json",
    ),
    Capability.DISPLAY: ("X11/xorg.conf.d/*nvidia*.conf",),
}
SHARE_FOLDERS = ("/etc", "/usr/share", "/usr/local/share", "/run/opengl-driver/share")

# Firmware of the GPU's own processor, which the kernel module loads.
FIRMWARE = ("gsp*.bin",)
FIRMWARE_FOLDERS = ("/lib/firmware/nvidia/{release}", "/usr/lib/firmware/nvidia/{release}")

# Usual installation folders, in order; those of /etc/ld.so.conf come after these.
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

# More folders for node mirrors only: 32-bit libraries, and folders that only nodes have.
MORE_FOLDERS = tuple(
    Path(folder)
    for folder in (
        "/opt/lib64",  # Flatcar
        "/usr/lib/wsl/drivers/*",  # WSL: the driver of the Windows host
        "/home/kubernetes/bin/nvidia/lib64",  # GKE's own system
        "/usr/local/glibc/usr/lib",  # Talos
        "/usr/lib/i386-linux-gnu",  # Debian, Ubuntu
        "/usr/lib/i386-linux-gnu/nvidia/current",
        "/usr/lib/arm-linux-gnueabihf",
        "/usr/lib32",  # Arch
        "/run/opengl-driver-32/lib",  # NixOS
    )
)
SUBFOLDERS = ("vdpau", "tls")  # of any of them

BINARY_FOLDERS = (
    "/usr/bin",
    "/usr/sbin",
    "/usr/local/bin",
    "/bin",
    "/usr/lib/nvidia/current",  # Debian's alternatives
    "/usr/lib/wsl/lib",
    "/run/current-system/sw/bin",  # NixOS
    "/usr/local/nvidia/bin",  # GKE, gpu-manager
    "/home/kubernetes/bin/nvidia/bin",
    "/opt/bin",
)

# Roots in which a node may have its driver: its own root, and a driver container's.
DRIVER_ROOTS = ("/", "/run/nvidia/driver")

LOADER_CONFIGURATION = Path("/etc/ld.so.conf")
LOADER_CACHE = Path("/etc/ld.so.cache")
