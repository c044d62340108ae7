"""Write the rules of ``pyvgpu/simulation/law.py`` for the C compiler: law.inc, a line per key.

Run by CMake, with the standard library alone: ``law.py --package pyvgpu --output law.inc``.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import types
from pathlib import Path


def render(package: Path) -> str:
    """Return ``LAW_NUMBER(key, least, most, usual, rule)`` and ``LAW_FLAG(key, usual, rule)``."""
    # Without its __init__, which only an installed pyvgpu can have.
    folder = types.ModuleType("pyvgpu")
    folder.__path__ = [str(package)]
    sys.modules["pyvgpu"] = folder
    sys.dont_write_bytecode = True
    from pyvgpu.simulation import law  # not before there is the package

    lines = []
    for field in dataclasses.fields(law.Law):
        rule = field.metadata["rule"]
        if "least" in field.metadata:
            numbers = (field.metadata["least"], field.metadata["most"], field.default)
            values = ", ".join(f"UINT64_C({number})" for number in numbers)
            lines.append(f'LAW_NUMBER({field.name}, {values}, "{rule}")')
        else:
            lines.append(f'LAW_FLAG({field.name}, {str(field.default).lower()}, "{rule}")')
    return "\n".join([*lines, ""])


def main() -> None:
    """Write the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(render(options.package), encoding="utf-8")


if __name__ == "__main__":
    main()
