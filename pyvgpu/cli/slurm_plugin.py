"""`pyvgpu slurm-plugin`: compile the plugin that holds Slurm's shards to a quota."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu.slurm import plugin_build

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Compile the SPANK plugin that holds jobs with shards of a GPU (--gres=shard:N) to their part of its
time and memory, and print its line of plugstack.conf. Needs a C compiler and the headers of this
machine's Slurm; to be repeated after each upgrade of Slurm, and if pyvgpu's Python moves.
"""
_EXAMPLES = """\
examples:
  pyvgpu slurm-plugin >>/etc/slurm/plugstack.conf
  pyvgpu slurm-plugin --include /opt/slurm/include --output /opt/slurm/lib/pyvgpu
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu slurm-plugin`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--output",
        metavar="DIR",
        default=str(plugin_build.OUTPUT),
        help=f"the plugin's folder ({plugin_build.OUTPUT})",
    )
    parser.add_argument(
        "--include",
        metavar="DIR",
        help="the folder that has slurm/spank.h (where the compiler searches)",
    )


def run(options: argparse.Namespace) -> int:
    """Compile the plugin."""
    include = None if options.include is None else Path(options.include)
    made = plugin_build.build(Path(options.output).absolute(), include)
    print(f"required {made}")
    return 0
