"""The output of `--version`: package version, shim build, and protocol versions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import pyvgpu
from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Sequence


class VersionAction(argparse.Action):
    """Prints the versions, and exits."""

    def __init__(self, option_strings: Sequence[str], **_: Any) -> None:
        said = "print the version, the build of the shim and the layout of its files"
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=said)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print what :func:`text` returns."""
        print(text())
        parser.exit()


def text() -> str:
    """Return three lines; a missing shim is reported in its line."""
    # Here, since every command imports this module.
    import hashlib
    import platform

    from pyvgpu import region, shim

    try:
        content = shim.shim_library().read_bytes()
        build = f"{hashlib.sha256(content).hexdigest()[:16]}, for {platform.machine()}"
    except errors.UnavailableError as exc:
        build = str(exc)
    layouts = region.known_layouts()
    return (
        f"pyvgpu {pyvgpu.__version__}\n"
        f"shim {build}\n"
        f"protocol {max(layouts)} of quota and ledger, reads {min(layouts)} to {max(layouts)}"
    )
