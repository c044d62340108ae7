"""What pyvgpu never changes of a GPU: MIG mode, compute mode, the length of turns, a reset.

So nothing of it must be restored, no reset can be missing, and a GPU in use is never drained.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("pyvgpu", "deviceplugin", "controller", "volumes")
CALLS = {"nvmlDeviceSetMigMode", "nvmlDeviceSetComputeMode"}
# Of nvidia-smi, each a word of a command line.
WORDS = {"compute-policy", "--set-timeslice", "--gpu-reset", "-mig", "-c", "--compute-mode"}


def changes(source):
    """Return the calls and commands of a Python source that change a mode."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute | ast.Name):
            found |= CALLS & {node.attr if isinstance(node, ast.Attribute) else node.id}
        if isinstance(node, ast.List | ast.Tuple):
            words = [each.value for each in node.elts if isinstance(each, ast.Constant)]
            if any("nvidia-smi" in str(word) for word in words):
                found |= WORDS & set(words)
    return found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("pynvml.nvmlDeviceSetMigMode(handle, 1)", {"nvmlDeviceSetMigMode"}),
        ("from pynvml import *\nnvmlDeviceSetComputeMode(h, 3)", {"nvmlDeviceSetComputeMode"}),
        ("run(['nvidia-smi', '-i', uuid, '-mig', '1'])", {"-mig"}),
        ("run(('/usr/bin/nvidia-smi', 'compute-policy', '-l'))", {"compute-policy"}),
        ("say('`nvidia-smi -mig 1` enables it')", set()),
    ],
)
def test_a_change_is_recognized(source, found):
    assert changes(source) == found


@pytest.mark.parametrize("part", PARTS)
def test_no_mode_of_a_gpu_is_changed(part):
    sources = sorted((ROOT / part).rglob("*.py"))
    assert sources
    assert {
        str(path): changes(path.read_text()) for path in sources if changes(path.read_text())
    } == {}
