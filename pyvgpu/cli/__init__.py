"""The command `pyvgpu`: one module per subcommand, one table."""

from pyvgpu.cli.main import main

__all__ = ["main"]
