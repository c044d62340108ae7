"""Each program of benchmarks/ runs to its end at its smallest size, and prints its figures."""

import ast
import importlib
import sys
from pathlib import Path
from types import ModuleType

import bench_program
import pytest
from bench_program import NUMBER

SOURCES = {path.stem: path for path in sorted(bench_program.FOLDER.glob("*.py"))}
PROGRAMS = {name for name, path in SOURCES.items() if "\nif __name__ ==" in path.read_text()}

# Each program that needs no cluster: arguments for its smallest size, and its last figures.
RUNS = {
    "agent": (("--quick",), rf"\| .* \| adds {NUMBER} ms|\| .* \| {NUMBER} ms"),
    "allocator": (("--decisions", "5"), rf"100 devices: 8 whole ones in {NUMBER} ms"),
    "arbiter": (("--containers", "2", "--seconds", "1"), rf"as often, .*: {NUMBER} % of a core"),
    "claims": (("--quick",), rf"\| .* {NUMBER} ms"),
    "compiled": (("--quick",), rf"\| .* \| {NUMBER} times"),
    "isolation": (("--quick",), rf"MIG, 3g.40gb each +132 SMs +{NUMBER} %"),
    "replay": (
        ("pattern:training", "--vcore", "50", "--seconds", "0.1"),
        rf"training +50 +{NUMBER}",
    ),
    "run": (("--quick", "--only", "pair", "--only", "arbiter"), rf"arbiter .* {NUMBER} %"),
    "scheduler": (("--quick",), rf'"p50_ms": {NUMBER}'),
    "share": (("--quick", "--only", "alone: async 280 us"), rf"throughput {NUMBER} %"),
    "suspend": (("--quick",), rf'"resume_s": {NUMBER}'),
    "webhook": (("--quick",), rf"\| .* \| p50 {NUMBER}, p99 {NUMBER} ms"),
}
IN_A_CLUSTER = {  # tests/e2e/bench runs them
    "agentload",
    "claimpods",
    "clusterload",
    "schedulerburst",
    "sidecar",
}
STARTED_BY = {  # programs that another one starts
    "agentapi": "agent",
    "claimsapi": "claims",
    "clusterload_agents": "clusterload",
    "director": "scene_runs",
    "nothing": "agent",
    "schedulerserver": "scheduler",
}
TESTED_IN = {"publish": "test_publish.py"}


def test_every_program_is_run_by_a_test_or_started_by_another():
    tables = [RUNS, IN_A_CLUSTER, STARTED_BY, TESTED_IN]
    assert sorted(name for table in tables for name in table) == sorted(PROGRAMS)
    for name, starter in STARTED_BY.items():
        assert f"{name}.py" in SOURCES[starter].read_text()
    for name, test in TESTED_IN.items():
        assert f"{name}.py" in Path(__file__).with_name(test).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RUNS))
def test_program_prints_its_figures_and_records_nothing(name):
    bench_program.check(name, *RUNS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(IN_A_CLUSTER))
def test_program_for_a_cluster_at_least_starts(name):
    ran = bench_program.run(name, "--help")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "--quick" in ran.stdout


def imported(tree):
    """Return what a file imports, by the name that it has there."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = importlib.import_module(alias.name)
                first = alias.name.partition(".")[0]
                found[alias.asname or first] = whole if alias.asname else sys.modules[first]
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
                found[alias.asname or alias.name] = getattr(module, alias.name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SOURCES))
def test_names_that_a_file_takes_from_other_modules_exist(name):
    tree = ast.parse(SOURCES[name].read_text())
    modules = {
        bound: thing for bound, thing in imported(tree).items() if isinstance(thing, ModuleType)
    }
    own = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} | {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    missing = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in modules.keys() - own
        and not hasattr(modules[node.value.id], node.attr)
    }
    assert missing == set()
