"""Write, from NVIDIA's headers, the parts of the simulated driver that are lists of names.

Run by CMake, with the standard library alone:

    stubs.py --include FOLDER[;FOLDER...] --older older_names.txt --output FOLDER

``cuda_stubs.c``, ``nvml_stubs.c``
    A weak export of every name of the headers; each answers "not supported". A definition in
    our own sources wins when the library is linked, so nothing lists what is implemented.
``cuda_symbols.c``
    What cuGetProcAddress searches: base name, first CUDA version, per-thread or not, symbol.
``errors.inc``
    Code and name of every CUresult.

Nothing written here is committed, and no text of the headers gets into it but names and numbers.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
from pathlib import Path

CUDA_HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")
TYPEDEF_HEADERS = (
    "cudaTypedefs.h",
    "cudaGLTypedefs.h",
    "cudaEGLTypedefs.h",
    "cudaVDPAUTypedefs.h",
    "cudaProfilerTypedefs.h",
)
REQUIRED = ("cuda.h", "cudaTypedefs.h", "nvml.h")
CUDA_NOT_SUPPORTED = 801
NVML_NOT_SUPPORTED = 3
EXPORT_TABLE = "nvmlInternalGetExportTable"  # in the library, in no header

Entry = tuple[str, int, str, str]  # base name, first version, "" or _ptds or _ptsz, symbol

_COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_CUDA_FUNCTION = re.compile(r"\bCUDAAPI\s+(cu\w+)\s*\(")
_CUDA_RENAMING = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+cu\w+[ \t]+(?:__CUDA_API_(PTSZ|PTDS)\()?(cu\w+)\)?[ \t]*$",
    re.MULTILINE,
)
_CUDA_INLINE = re.compile(r"\bstatic\s+inline\s+CUresult\s+(cu\w+)\s*\(")
_CUDA_TYPEDEF = re.compile(r"\bPFN_(cu\w+?)_v(\d+)(_ptds|_ptsz|)\)")
_CUDA_ERROR = re.compile(r"\b(CUDA_SUCCESS|CUDA_ERROR_\w+)\s*=\s*(\d+)")
_NVML_FUNCTION = re.compile(r"\bDECLDIR\s+(?:char\s*\*\s*)?(nvml[A-Z]\w+)\s*\(")
_NVML_RENAMING = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(nvml(?!Clocks)[A-Z]\w+)[ \t]+(nvml[A-Z]\w+)[ \t]*$",
    re.MULTILINE,
)
_SYMBOL = re.compile(r"(cu\w+?)(?:_v(\d+))?(_ptds|_ptsz|)")


class HeaderError(Exception):
    """A header is not there, or not as it was when this was written."""


def find_header(folders: list[Path], name: str) -> str:
    """Return the text of header *name* without comments; empty if it is optional and absent."""
    for folder in folders:
        if (folder / name).is_file():
            return _COMMENTS.sub("", (folder / name).read_text(encoding="utf-8"))
    if name in REQUIRED:
        raise HeaderError(f"{name}: not in {', '.join(map(str, folders))}")
    return ""


def cuda_symbols(text: str) -> set[str]:
    """Return every symbol that a CUDA header declares, under its own name or a macro's."""
    symbols = set(_CUDA_FUNCTION.findall(text))
    for per_thread, target in _CUDA_RENAMING.findall(text):
        symbols.add(target)
        if per_thread:
            symbols.add(f"{target}_{per_thread.lower()}")
    return symbols - set(_CUDA_INLINE.findall(text))


def nvml_symbols(text: str) -> set[str]:
    """Return every symbol that nvml.h declares, the unversioned ones included."""
    symbols = set(_NVML_FUNCTION.findall(text))
    for old, new in _NVML_RENAMING.findall(text):
        symbols |= {old, new}
    return symbols


def proc_address_table(typedefs: str, symbols: set[str]) -> list[Entry]:
    """Pair the versions of each base name in *typedefs* with its symbols, oldest first.

    The headers name both in the same order (cuMemAlloc 2000 and 3020; cuMemAlloc, _v2), so the
    n-th version is the n-th symbol. Counts that differ are an error, never a guess. (Of 11,709
    look-ups up to 12.4 every one agreed with NVIDIA's library 550.163.01.)
    """
    versions: dict[tuple[str, str], set[int]] = collections.defaultdict(set)
    for base, version, per_thread in _CUDA_TYPEDEF.findall(typedefs):
        versions[base, per_thread].add(int(version))
    families: dict[tuple[str, str], list[tuple[int, str]]] = collections.defaultdict(list)
    for symbol in symbols:
        match = _SYMBOL.fullmatch(symbol)
        if match:
            families[match[1], match[3]].append((int(match[2] or 1), symbol))

    table: list[Entry] = []
    for (base, per_thread), since in versions.items():
        family = sorted(families[base, per_thread])
        if len(since) != len(family):
            raise HeaderError(
                f"{base}{per_thread}: versions {sorted(since)} but symbols "
                f"{[symbol for _, symbol in family]}"
            )
        table += [
            (base, version, per_thread, symbol)
            for version, (_, symbol) in zip(sorted(since), family, strict=True)
        ]
    return sorted(table, key=lambda entry: (entry[0].encode(), entry[2] != "", entry[1]))


def older_names(text: str) -> set[str]:
    """Return the names in the committed list of names that newer headers lost."""
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return {words[0] for words in lines if words}


def render_stubs(symbols: set[str], code: int) -> str:
    """Return C that exports each of *symbols* weakly, answering *code*."""
    lines = [
        "/* Generated by stubs.py: do not edit. */",
        f'#define STUB(name) __attribute__((weak, visibility("default"))) int name(void); '
        f"int name(void) {{ return {code}; }}",
        *(f"STUB({symbol})" for symbol in sorted(symbols)),
    ]
    return "\n".join([*lines, ""])


def render_table(table: list[Entry]) -> str:
    """Return C that defines what csrc/simulator/cuda/symbols.h declares."""
    lines = [
        "/* Generated by stubs.py: do not edit. */",
        '#include "cuda/symbols.h"',
        *(f"int {symbol}(void);" for symbol in sorted({entry[3] for entry in table})),
        "const struct symbol cuda_symbols[] = {",
        *(
            f'{{"{base}", {version}, {int(per_thread != "")}, {symbol}}},'
            for base, version, per_thread, symbol in table
        ),
        "};",
        "const size_t cuda_symbol_count = sizeof(cuda_symbols) / sizeof(*cuda_symbols);",
    ]
    return "\n".join([*lines, ""])


def render_errors(text: str) -> str:
    """Return the rows of errors.inc: ERROR(code, name, words), sorted by code."""
    codes = {int(code): name for name, code in _CUDA_ERROR.findall(text)}
    rows = (f'ERROR({code}, {name}, "{_words(name)}")' for code, name in sorted(codes.items()))
    return "\n".join(["/* Generated by stubs.py: do not edit. */", *rows, ""])


def _words(name: str) -> str:
    """Say an error's name in words: CUDA_ERROR_OUT_OF_MEMORY is out of memory."""
    if name == "CUDA_SUCCESS":
        return "no error"
    return name.removeprefix("CUDA_ERROR_").replace("_", " ").lower()


def main() -> int:
    """Write the files; 1 and a line on standard error if a header is not as expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--include", required=True, help="folders of the headers, by semicolon")
    parser.add_argument("--older", required=True, type=Path, help="older_names.txt")
    parser.add_argument("--output", required=True, type=Path, help="where to write")
    options = parser.parse_args()
    folders = [Path(folder) for folder in options.include.split(";") if folder]
    try:
        older = older_names(options.older.read_text(encoding="utf-8"))
        cuda_text = "\n".join(find_header(folders, name) for name in CUDA_HEADERS)
        cuda = cuda_symbols(cuda_text) | {name for name in older if name.startswith("cu")}
        nvml = nvml_symbols(find_header(folders, "nvml.h")) | {EXPORT_TABLE}
        nvml |= {name for name in older if name.startswith("nvml")}
        typedefs = "\n".join(find_header(folders, name) for name in TYPEDEF_HEADERS)
        table = proc_address_table(typedefs, cuda)
    except (HeaderError, OSError) as exc:
        print(f"stubs.py: {exc}", file=sys.stderr)
        return 1
    options.output.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("cuda_stubs.c", render_stubs(cuda, CUDA_NOT_SUPPORTED)),
        ("nvml_stubs.c", render_stubs(nvml, NVML_NOT_SUPPORTED)),
        ("cuda_symbols.c", render_table(table)),
        ("errors.inc", render_errors(cuda_text)),
    ):
        (options.output / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
