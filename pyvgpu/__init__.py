"""Share GPUs: cut a GPU into vGPUs and hold every process tree to its quota."""

__version__ = "0.1.0"

__all__ = ["__version__"]
