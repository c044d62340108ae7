"""No modules import each other in a circle, not even for types alone."""

import ast
import graphlib

import pure
import pytest

PACKAGES = {
    "pyvgpu": "pyvgpu",
    "controller": "pyvgpu.controller",
    "deviceplugin": "pyvgpu.deviceplugin",
    "volumes": "pyvgpu.volumes",
}


def modules():
    """Return the file of each module of the product, by its dotted name."""
    found = {}
    for folder, package in PACKAGES.items():
        for path in (pure.ROOT / folder).rglob("*.py"):
            parts = path.relative_to(pure.ROOT / folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join((package, *parts))] = path
    return found


def imported(source, names):
    """Return those of *names* that a module imports, at its top or late, at run time or not."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                part = f"{node.module}.{alias.name}"
                found.add(part if part in names else node.module)
    return found & set(names)


def order(graph):
    return tuple(graphlib.TopologicalSorter(graph).static_order())


def test_modules_have_an_order_in_which_each_imports_only_earlier_ones():
    files = modules()
    graph = {
        name: imported(path.read_text(), files) - {name}
        for name, path in files.items()
        if path.name != "__init__.py"
    }
    assert len(order(graph)) > 300
    assert sum(map(len, graph.values())) > 1500


def test_a_circle_of_types_is_found():
    graph = {
        "a": imported("if TYPE_CHECKING:\n    from b import Thing", {"a", "b"}),
        "b": imported("def late():\n    from a import thing", {"a", "b"}),
    }
    with pytest.raises(graphlib.CycleError):
        order(graph)
