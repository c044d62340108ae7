"""`python -m pyvgpu`, the same as the command."""

import sys

from pyvgpu.cli import main

if __name__ == "__main__":
    sys.exit(main())
