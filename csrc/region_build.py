"""Write pyvgpu/_region.py, the layout of region.h for cffi (build time only).

Usage: region_build.py REGION_H OUTPUT
"""

import sys
from pathlib import Path

import cffi

BEGIN, END = "/* BEGIN LAYOUT */", "/* END LAYOUT */"


def main(header: Path, output: Path) -> int:
    """Cut the layout out of *header* and let cffi write *output* from it."""
    layout = header.read_text().split(BEGIN)[1].split(END)[0]
    ffi = cffi.FFI()
    ffi.cdef(layout)
    ffi.set_source("pyvgpu._region", None)
    ffi.emit_python_code(str(output))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
