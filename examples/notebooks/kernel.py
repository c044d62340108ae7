"""A notebook kernel: runs cells of Python, one JSON string a line on standard input.

It answers each with one JSON string: what the cell printed, or its error. `device` is the GPU.
"""

import contextlib
import io
import json
import sys

import gpu


def run(cell: str, names: dict[str, object]) -> str:
    """Run a cell in the kernel's names; return its output, with the error if it fails."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            exec(cell, names)
        except Exception as exc:
            print(f"{type(exc).__name__}: {exc}")
    return output.getvalue()


def main() -> None:
    """Answer cells until standard input ends."""
    names: dict[str, object] = {"device": gpu.Device()}
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line), names)), flush=True)


if __name__ == "__main__":
    main()
