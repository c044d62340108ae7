"""The kubectl plugin `kubectl vgpu`: one module per subcommand."""

# Each command's name, module and --help summary; see pyvgpu/cli/main.py.
COMMANDS = (
    ("top", "pyvgpu.cli.kubectl.top", "show GPU time and memory that pods use and were allocated"),
    ("ps", "pyvgpu.cli.kubectl.ps", "list pods and the devices that they hold"),
    ("explain", "pyvgpu.cli.explain", "explain why a pod waits for devices, or does not end"),
    ("suspend", "pyvgpu.cli.kubectl.suspend_pod", "free the device memory of a pod"),
    ("resume", "pyvgpu.cli.kubectl.resume_pod", "continue a suspended pod"),
    ("audit", "pyvgpu.cli.kubectl.audit", "list processes that exceeded their quota"),
)
