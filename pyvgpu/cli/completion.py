"""`pyvgpu completion SHELL`: what a shell needs to complete our command lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import errors

if TYPE_CHECKING:
    import argparse

SHELLS = ("bash", "zsh", "fish")
_DESCRIPTION = """\
Print a script that lets a shell complete commands and options of pyvgpu.
"""
_EXAMPLES = """\
examples:
  pyvgpu completion bash > ~/.local/share/bash-completion/completions/pyvgpu
  pyvgpu completion zsh > "${fpath[1]}/_pyvgpu"
  pyvgpu completion fish > ~/.config/fish/completions/pyvgpu.fish
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu completion`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    parser.add_argument("shell", metavar="SHELL", help=", ".join(SHELLS))


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    print(script(options.shell))
    return 0


def script(shell: str) -> str:
    """Return the script for *shell*; UsageError for one that we do not know."""
    if shell not in SHELLS:
        raise errors.UsageError(f"SHELL {shell!r}: must be {' or '.join(SHELLS)}, such as bash")
    import shtab

    from pyvgpu.cli.main import PYVGPU, whole

    parser = whole(PYVGPU)
    return str(shtab.complete(parser, shell))
