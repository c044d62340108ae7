"""`pyvgpu flexvolume`: FlexVolume driver that mounts the mirror into pods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import shim
from pyvgpu.cli import mirror
from pyvgpu.volumes import flexvolume, node_mirror

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
A FlexVolume driver: mounts a volume of the mirror that `pyvgpu mirror` maintains into a pod.
kubelet calls it through a two-line script in its volume plugin folder, and reads the answer, one
JSON object.
"""
_EXAMPLES = """\
examples:
  pyvgpu flexvolume init
  pyvgpu flexvolume mount /mnt/driver '{"volume": "exclusive"}'
  pyvgpu flexvolume unmount /mnt/driver
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pyvgpu flexvolume`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--output",
        metavar="DIR",
        default=mirror.OUTPUT,
        help=f"the folder of the mirror ({mirror.OUTPUT})",
    )
    parser.add_argument("operation", metavar="OPERATION", help="init, mount or unmount")
    parser.add_argument(
        "arguments",
        metavar="ARGUMENT",
        nargs="*",
        help="the folder; to mount, the options in JSON",
    )


def run(options: argparse.Namespace) -> int:
    """Answer kubelet."""
    kept = node_mirror.NodeMirror(Path(options.output).absolute(), shim.shim_library())
    answer = flexvolume.answer(kept, options.operation, options.arguments)
    print(json.dumps(answer))
    return 1 if answer["status"] == "Failure" else 0
