"""No modules import each other in a circle, not even for types alone; nor do headers of C."""

import ast
import graphlib
import re

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


def included(source, folders, headers):
    """Return those of *headers* that a header includes, each searched for in *folders*."""
    found = set()
    for name in re.findall(r'^[ \t]*#[ \t]*include "([^"]+)"', source, re.MULTILINE):
        paths = ((folder / name).resolve() for folder in folders)
        found.update(path for path in paths if path in headers)
    return found


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


def test_headers_have_an_order_in_which_each_includes_only_earlier_ones():
    sources = pure.ROOT / "csrc"
    headers = {path.resolve() for path in sources.rglob("*.h")}
    graph = {}
    for header in headers:
        part = sources / header.relative_to(sources.resolve()).parts[0]
        graph[header] = included(header.read_text(), (header.parent, part, sources), headers)
    assert len(order(graph)) > 150
    assert sum(map(len, graph.values())) > 150


def test_a_circle_of_headers_is_found(tmp_path):
    a, b = tmp_path / "a.h", tmp_path / "b.h"
    a.write_text('#include <stdio.h>\n#include "b.h"\n')
    b.write_text('#ifdef A\n# include "a.h"\n#endif\n')
    graph = {file: included(file.read_text(), (tmp_path,), {a, b}) for file in (a, b)}
    with pytest.raises(graphlib.CycleError):
        order(graph)
