"""Generate a cffi module for pyvgpu from the declarations between two marks of a C header.

Usage: layout_build.py HEADER OUTPUT (build time only; OUTPUT's name is the module's name)
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
    ffi.set_source(f"pyvgpu.{output.stem}", None)
    ffi.emit_python_code(str(output))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
