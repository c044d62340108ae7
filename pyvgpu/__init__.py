"""Share GPUs: divide a GPU into vGPUs and hold every process tree to its quota."""

from pyvgpu import _version

__version__ = _version.VERSION

__all__ = ["__version__"]
