"""Parse the shim's .def tables: its hooks, and the functions that it leaves to the driver.

For the build and for tests; uses only the standard library.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

SHIM = Path(__file__).parents[1] / "shim"


@dataclasses.dataclass(frozen=True, slots=True)
class Hook:
    """One line of a table: the name for cuGetProcAddress, the name for dlsym, the parameters."""

    base: str | None  # NVML has none
    since: int
    symbol: str
    parameters: tuple[str, ...]  # their types: "size_t", "CUdeviceptr *"
    area: str  # the name of the table


def hooks(api: str) -> list[Hook]:
    """Return every hook of *api*, "cuda" or "nvml"."""
    found = []
    for path in sorted((SHIM / api / "hooks").glob("*.def")):
        words = " ".join(path.read_text().split())
        for line in re.findall(r"HOOK\(((?:[^()]|\([^()]*\))*)\)", words):
            *names, parameters = (part.strip() for part in re.split(r",(?![^(]*\))", line))
            base, since = (names[0], int(names[1])) if len(names) == 4 else (None, 0)
            found.append(Hook(base, since, names[-1], _types(parameters), path.stem))
    return found


def _types(parameters: str) -> tuple[str, ...]:
    """Return the types in "(size_t *pitch, const char *name)"."""
    each = [one.strip() for one in parameters.strip("() ").split(",")]
    if each == ["void"]:
        return ()
    bare = [re.sub(r"\w+(\[\w*\])?$", lambda name: "*" * bool(name[1]), one) for one in each]
    return tuple(re.sub(r"\s*\*", " *", one).strip() for one in bare)


def cuda() -> list[Hook]:
    """Return every hook of the CUDA driver API."""
    return hooks("cuda")


def nvml() -> list[Hook]:
    """Return every hook of NVML."""
    return hooks("nvml")


def symbols() -> set[str]:
    """Return every symbol that dlsym finds in the shim."""
    return {hook.symbol for hook in cuda() + nvml()}


def reviewed(api: str = "cuda") -> list[tuple[str, str]]:
    """Return every function of *api* that the shim leaves to the driver, and why."""
    text = re.sub(r"/\*.*?\*/", "", (SHIM / api / "reviewed.def").read_text(), flags=re.DOTALL)
    groups = re.findall(r'REVIEWED\("([^"]+)",([^)]*)\)', text)
    return [
        (name, why) for why, names in groups for word in names.split() for name in _expand(word)
    ]


def _expand(word: str) -> list[str]:
    """Return the names in "cuMemFreeAsync{,_ptsz}"."""
    base, _, forms = word.rstrip("}").partition("{")
    return [base + form for form in forms.split(",")]
