"""Find NVIDIA's headers in this Python's packages, and list the functions that they declare.

The wheels are `nvidia-cuda-runtime` and `nvidia-nvml-dev`; both unpack into one folder. Run as a
program, this prints it.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CUDA = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")
REQUIRED = ("cuda.h", "cudaTypedefs.h", "nvml.h")

_COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_CUDA_FUNCTION = re.compile(r"\bCUDAAPI\s+(cu\w+)\s*\(")
_CUDA_RENAMING = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+cu\w+[ \t]+(?:__CUDA_API_(PTSZ|PTDS)\()?(cu\w+)\)?[ \t]*$",
    re.MULTILINE,
)
_CUDA_INLINE = re.compile(r"\bstatic\s+inline\s+CUresult\s+(cu\w+)\s*\(")
_NVML_FUNCTION = re.compile(r"\bDECLDIR\s+(?:char\s*\*\s*)?(nvml[A-Z]\w+)\s*\(")
_NVML_RENAMING = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(nvml(?!Clocks)[A-Z]\w+)[ \t]+(nvml[A-Z]\w+)[ \t]*$",
    re.MULTILINE,
)


class HeaderError(Exception):
    """A header is missing, or has an unknown form."""


def folders() -> list[Path]:
    """Return the folders of the headers installed in this Python."""
    found = set()
    for wheel, header in [
        ("nvidia-cuda-runtime", "cuda.h"),
        ("nvidia-cuda-runtime", "cudaTypedefs.h"),
        ("nvidia-nvml-dev", "nvml.h"),
    ]:
        try:
            files = importlib.metadata.files(wheel) or []
        except importlib.metadata.PackageNotFoundError:
            files = []
        paths = [Path(str(f.locate())).resolve() for f in files if f.name == header]
        if not paths:
            raise HeaderError(f"{header} is missing: pip install {wheel}")
        found.add(paths[0].parent)
    return sorted(found)


def read(places: Sequence[Path], name: str) -> str:
    """Return the text of header *name* in *places*, without comments; "" if it may be missing."""
    for folder in places:
        if (folder / name).is_file():
            return _COMMENTS.sub("", (folder / name).read_text(encoding="utf-8"))
    if name in REQUIRED:
        raise HeaderError(f"{name}: not in {', '.join(map(str, places))}")
    return ""


def read_cuda(places: Sequence[Path]) -> str:
    """Return the text of all headers of the CUDA driver API."""
    return "\n".join(read(places, name) for name in CUDA)


def cuda_symbols(text: str) -> set[str]:
    """Return every symbol that a CUDA header declares, under its own name or a macro's."""
    symbols = set(_CUDA_FUNCTION.findall(text))
    for per_thread, target in _CUDA_RENAMING.findall(text):
        symbols.add(target)
        if per_thread:
            symbols.add(f"{target}_{per_thread.lower()}")
    return symbols - set(_CUDA_INLINE.findall(text))


def nvml_symbols(text: str) -> set[str]:
    """Return every symbol that nvml.h declares, including the unversioned ones."""
    symbols = set(_NVML_FUNCTION.findall(text))
    for old, new in _NVML_RENAMING.findall(text):
        symbols |= {old, new}
    return {symbol for symbol in symbols if not symbol.endswith("_t")}


def main() -> int:
    """Print the include folder; 1 and a line on standard error if a header is missing."""
    try:
        print(";".join(map(str, folders())))
    except HeaderError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
