"""Print the folder that holds cuda.h and nvml.h of the header wheels in this Python.

The wheels are `nvidia-cuda-runtime` and `nvidia-nvml-dev`; both unpack into one folder.
"""

import importlib.metadata
import sys


def main() -> int:
    """Print the include folder; 1 and a line on standard error if a header is missing."""
    folders = set()
    for wheel, header in [
        ("nvidia-cuda-runtime", "cuda.h"),
        ("nvidia-cuda-runtime", "cudaTypedefs.h"),
        ("nvidia-nvml-dev", "nvml.h"),
    ]:
        try:
            files = importlib.metadata.files(wheel) or []
        except importlib.metadata.PackageNotFoundError:
            files = []
        found = [f for f in files if f.name == header]
        if not found:
            print(f"{header} is missing: pip install {wheel}", file=sys.stderr)
            return 1
        folders.add(str(found[0].locate().resolve().parent))
    print(";".join(sorted(folders)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
