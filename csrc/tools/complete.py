"""Check the shim's hook tables against NVIDIA's headers and the linked library; a build step.

CMake runs it after linking the shim:

    complete.py --include FOLDER[;FOLDER...] --library libcuda-control.so

Every function that the headers of CUDA and NVML declare must be a hook, or be listed in
cuda/reviewed.def or nvml/reviewed.def with the reason why it is none; and the library must export
exactly the hooks. So the build fails for a new function that has not been reviewed.
"""

from __future__ import annotations

import argparse
import collections
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import headers
import hook_table
from elftools.elf import elffile

if TYPE_CHECKING:
    from collections.abc import Iterable


QUESTIONS = {
    "cuda": "which memory, or time of a device, does it take?",
    "nvml": "what does it tell, or change?",
}


def disagreements(declared: Iterable[str], api: str = "cuda") -> list[str]:
    """Return the errors in the tables of *api*, given the functions that headers declare."""
    hooks = {hook.symbol for hook in hook_table.hooks(api)}
    reviewed = collections.Counter(name for name, _ in hook_table.reviewed(api))
    return [
        *(
            f"{name}: neither a hook nor in reviewed.def: {QUESTIONS[api]}"
            for name in sorted(set(declared) - hooks - set(reviewed))
        ),
        *(
            f"{name}: a hook, so it must leave reviewed.def"
            for name in sorted(hooks & set(reviewed))
        ),
        *(f"{name}: twice in reviewed.def" for name in sorted(reviewed) if reviewed[name] > 1),
    ]


def exports(library: Path) -> set[str]:
    """Return every symbol that *library* exports."""
    with library.open("rb") as file:
        table = elffile.ELFFile(file).get_section_by_name(".dynsym")
        return {s.name for s in table.iter_symbols() if s.name and s["st_shndx"] != "SHN_UNDEF"}


def _differences(library: Path) -> list[str]:
    exported, hooks = exports(library), hook_table.symbols()
    return [
        *(f"{name}: exported, but no hook" for name in sorted(exported - hooks)),
        *(f"{name}: a hook, but not exported" for name in sorted(hooks - exported)),
    ]


def main() -> int:
    """Print each disagreement on standard error; 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--include", required=True, help="folders of the headers, by semicolon")
    parser.add_argument("--library", required=True, type=Path)
    options = parser.parse_args()
    folders = [Path(folder) for folder in options.include.split(";")]
    try:
        cuda = headers.cuda_symbols(headers.read_cuda(folders))
        nvml = headers.nvml_symbols(headers.read(folders, "nvml.h"))
    except headers.HeaderError as exc:
        wrong = [str(exc)]
    else:
        wrong = disagreements(cuda) + disagreements(nvml, "nvml") + _differences(options.library)
    for line in wrong:
        print(f"complete.py: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
