"""No modules import each other in a circle, not even for types alone; nor do headers of C.

A module of C is a source file with its header, or a header that is a part of one
(``flight_lane.h`` of ``flight.c``). Its circles are listed below: none may grow, and a new one
needs a cut.
"""

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
SOURCES = pure.ROOT / "csrc"
CIRCLES = (  # of modules of C, by their paths below csrc/
    {"arbiter/lending", "arbiter/loans", "arbiter/moments"},
    {"bench/samples", "bench/timer"},
    {"bench/share/turns", "bench/share/virtualclock"},
    {"core/allocations", "core/blocks"},
    {"shim/cuda/memory/pool", "shim/cuda/memory/pool_ranges", "shim/cuda/memory/pool_share"},
    {"simulator/cgroup", "simulator/fault", "simulator/machine"},
    {
        "simulator/cuda/capture",
        "simulator/cuda/event",
        "simulator/cuda/fill",
        "simulator/cuda/graph",
        "simulator/cuda/graphmemory",
        "simulator/cuda/launch",
        "simulator/cuda/tails",
        "simulator/cuda/transfer",
    },
    {"simulator/cuda/placement", "simulator/cuda/pool"},
    {"simulator/image/image", "simulator/image/parts"},
    {"simulator/memory", "simulator/process", "simulator/queue"},
    {"simulator/mig", "simulator/mig_fit"},
)


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
    """Return those of *headers* that a file includes, each searched for in *folders*."""
    found = set()
    for name in re.findall(r'^[ \t]*#[ \t]*include "([^"]+)"', source, re.MULTILINE):
        paths = ((folder / name).resolve() for folder in folders)
        found.update(path for path in paths if path in headers)
    return found


def folders_of(file):
    """Return where the build searches for what a file of C includes."""
    return file.parent, SOURCES / file.relative_to(SOURCES).parts[0], SOURCES


def module_of(file):
    """Return the module of a file of C: its path below csrc/, without a suffix."""
    whole, parted, _ = file.stem.rpartition("_")
    is_part = parted and not file.with_suffix(".c").exists()
    if is_part and (file.parent / f"{whole}.c").exists():
        file = file.with_stem(whole)
    return file.relative_to(SOURCES).with_suffix("").as_posix()


def reached(graph, start):
    """Return all that is reached from *start* along one or more edges of *graph*."""
    found, ahead = set(), [start]
    while ahead:
        new = graph.get(ahead.pop(), set()) - found
        found |= new
        ahead += new
    return found


def circles(graph):
    """Return the sets of nodes that reach each other."""
    reach = {node: reached(graph, node) for node in graph}
    around = (
        frozenset(other for other in reach[node] if node in reach.get(other, ())) for node in graph
    )
    return {circle for circle in around if len(circle) > 1}


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
    headers = set(SOURCES.rglob("*.h"))
    graph = {file: included(file.read_text(), folders_of(file), headers) for file in headers}
    assert len(order(graph)) > 150
    assert sum(map(len, graph.values())) > 150


def test_a_circle_of_headers_is_found(tmp_path):
    a, b = tmp_path / "a.h", tmp_path / "b.h"
    a.write_text('#include <stdio.h>\n#include "b.h"\n')
    b.write_text('#ifdef A\n# include "a.h"\n#endif\n')
    graph = {file: included(file.read_text(), (tmp_path,), {a, b}) for file in (a, b)}
    with pytest.raises(graphlib.CycleError):
        order(graph)


def test_modules_of_c_have_no_other_circles_than_those_listed():
    headers = set(SOURCES.rglob("*.h"))
    graph = {}
    for file in (*headers, *SOURCES.rglob("*.c")):
        uses = {module_of(path) for path in included(file.read_text(), folders_of(file), headers)}
        graph.setdefault(module_of(file), set()).update(uses - {module_of(file)})
    assert len(graph) > 250
    assert circles(graph) == {frozenset(circle) for circle in CIRCLES}


def test_circles_of_modules_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"f", "a"}, "f": {"e"}}
    assert circles(graph) == {frozenset("bc"), frozenset("ef")}
