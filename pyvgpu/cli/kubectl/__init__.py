"""The plugin `kubectl vgpu`: one module per subcommand, as of `pyvgpu`."""

# The name, its module and what --help says; see pyvgpu/cli/main.py.
COMMANDS = (
    ("top", "pyvgpu.cli.kubectl.top", "what pods use of devices, against what they were promised"),
    ("ps", "pyvgpu.cli.kubectl.ps", "which pods hold which devices"),
    ("explain", "pyvgpu.cli.explain", "why a pod waits for devices, or does not end"),
    ("audit", "pyvgpu.cli.kubectl.audit", "processes that went past their quota"),
)
