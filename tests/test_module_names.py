"""Modules and classes are found by their names: no two of the product have the same one.

A module of a command, in pyvgpu/cli or pyvgpu/cli/kubectl, has the command's name.
"""

import ast
import collections

import pure

from pyvgpu.cli.main import COMMANDS

FOLDERS = ("pyvgpu", "deviceplugin", "controller", "volumes")
COMMAND_FILES = {f"{module.rpartition('.')[2]}.py" for _, module, _ in COMMANDS}


def test_no_two_modules_have_one_name():
    found = [path for folder in FOLDERS for path in (pure.ROOT / folder).rglob("*.py")]
    assert len(found) > 300
    files = collections.Counter(
        path.name
        for path in found
        if not ("cli" in path.parts and path.name in COMMAND_FILES)
        and path.name not in ("__init__.py", "__main__.py")
    )
    assert [name for name, count in files.items() if count > 1] == []


def test_no_two_classes_have_one_name():
    found = collections.Counter(
        node.name
        for folder in FOLDERS
        for path in (pure.ROOT / folder).rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert len(found) > 500
    assert [name for name, count in found.items() if count > 1] == []
