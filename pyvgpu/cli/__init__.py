"""The command line `pyvgpu`: one module per subcommand."""

from pyvgpu.cli.main import kubectl as kubectl_main
from pyvgpu.cli.main import kubectl_complete, main

__all__ = ["kubectl_complete", "kubectl_main", "main"]
