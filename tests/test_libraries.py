"""Libraries do what they can: which are imported, and what `docs/decisions/libraries.md` lists."""

import ast
import re
import sys
import tomllib

import pure
import pytest
from packaging import requirements

FOLDERS = ("pyvgpu", "deviceplugin", "controller", "volumes")
PAGE = pure.ROOT / "docs/decisions/libraries.md"
# Python's modules on which servers and protocols of our own would be built.
REFUSED = ("asyncore", "http.server", "socketserver", "wsgiref", "xmlrpc")
NAMES = {  # distributions by the module that is imported, where the two differ
    "elftools": "pyelftools",
    "google": "protobuf",
    "grpc": "grpcio",
    "inotify_simple": "inotify-simple",
    "prometheus_client": "prometheus-client",
    "pynvml": "nvidia-ml-py",
    "yaml": "pyyaml",
}
BY_THE_BUILD = {"cffi"}  # needed by modules that the build generates


def modules_of(tree):
    """Yield the modules that a file imports; relative imports are of pyvgpu."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.fixture(scope="module")
def imported():
    """Return the names of all modules that the product imports."""
    paths = [path for folder in FOLDERS for path in (pure.ROOT / folder).rglob("*.py")]
    assert len(paths) > 300
    return {name for path in paths for name in modules_of(ast.parse(path.read_text()))}


def declared(project, *extras):
    """Return the distributions that pyproject.toml declares, with their bounds."""
    texts = [*project["dependencies"]]
    for extra in extras:
        texts += project["optional-dependencies"][extra]
    return {read.name: read.specifier for read in map(requirements.Requirement, texts)}


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((pure.ROOT / "pyproject.toml").read_text())["project"]


def test_imported_distributions_are_the_declared_ones(imported, project):
    tops = {name.partition(".")[0] for name in imported} - {"pyvgpu", *sys.stdlib_module_names}
    known = declared(project, "kubernetes", "node", "page", "report").keys()
    assert {NAMES.get(top, top) for top in tops} | BY_THE_BUILD == known


def test_bounds_of_a_dependency_are_the_same_in_each_extra(project):
    bounds = {}
    for extra in ("kubernetes", "node", "page", "test"):
        for name, specifier in declared(project, extra).items():
            bounds.setdefault(name, set()).add(str(specifier))
    assert {name: found for name, found in bounds.items() if len(found) > 1} == {}


def test_no_server_or_protocol_is_built_on_the_standard_library(imported):
    assert "http.client" in imported
    assert [
        name
        for name in sorted(imported)
        if any(name == refused or name.startswith(f"{refused}.") for refused in REFUSED)
    ] == []


def test_listed_modules_exist():
    (table,) = re.findall(r"\| module \|.*?\n\n", PAGE.read_text(), re.DOTALL)
    first = [row.split("|")[1] for row in table.strip().splitlines()[2:]]
    named = [name for cell in first for name in re.findall(r"`([\w/]+\.py)`", cell)]
    assert len(named) > 8
    there = [
        path.as_posix()
        for folder in (*FOLDERS, "deploy")
        for path in (pure.ROOT / folder).rglob("*.py")
    ]
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in there)] == []
