"""Generates docs/sidecar-rows.md: the edge cases of sidecars, and the tests that observe each.

A test marks its case with ``@pytest.mark.row(N)``; its name states the observation. Write the
page with ``python tests/support/edge_cases.py > docs/sidecar-rows.md``.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/sidecar-rows.md"


class Needs(enum.Enum):
    """The environment in which a case can be observed."""

    KUBELET = "kubelet"  # and its container runtime
    SERVER = "API server"
    NOTHING = "unit"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """An edge case."""

    number: int
    needs: Needs
    case: str


@dataclasses.dataclass(frozen=True, slots=True)
class Test:
    """A test that observes an edge case."""

    path: Path
    name: str

    @property
    def in_a_cluster(self) -> bool:
        """Whether the test needs the e2e cluster."""
        return self.path.is_relative_to(ROOT / "tests/e2e")

    @property
    def sentence(self) -> str:
        """The observation, from the test's name."""
        return self.name.removeprefix("test_").replace("_", " ")


_CASES = """
K Never: main ends with 0 or 3; the sidecar with 0, 143 or 137; by stop, swap and hybrid
K OnFailure: main ends with 1, then with 0
K OnFailure with a backoffLimit of 0, 1 and 6, by stop, swap and hybrid
K the sidecar: ImagePullBackOff, CrashLoopBackOff, CreateContainerConfigError, not started yet
S one main container is done, another has no image
S Never: of several main containers one fails while another runs
S all containers marked; none; `Always`; a static pod
S native sidecars, init containers and a debug container beside a marked one
K one process namespace for the pod: PID 1 is not the sidecar's
K deletion, eviction and preemption during a stop
K the node is down: no node part, no kubelet
S a controller that is killed; two controllers, with the lease and without
K the node part is killed in a hook, or in a stop; the runtime is killed during a stop
F the sidecar restarted between the request and the stop
S another pod of the same name
F the API server answers 403, 409, 422, 429, 500, or nothing
S 410 of a list and of a watch; broken connections; the API server restarts
S thousands of pods: a list of many pages
S the webhook is down: `Fail` and `Ignore`
S the webhook's certificate is renewed under load
K arguments: `$(X)`, `$$(X)`, `$$$$`, non-ASCII, newlines, 100 KB, empty; command, args or both
S a second admission; another webhook puts a container first
K runAsNonRoot, a read-only root, no capabilities, seccomp, fsGroup
K the fast-exit image is unavailable
S the sidecar has ended already
S the sidecar crashed before the main container was done
S annotations near 256 KiB
S the lease is lost in the middle of a decision
F no method writes the pod's status: kubelet would overwrite it
F a sidecar that has devices is swapped
"""
_LETTERS = {"K": Needs.KUBELET, "S": Needs.SERVER, "F": Needs.NOTHING}
ROWS = tuple(
    Row(number, _LETTERS[line[0]], line[2:])
    for number, line in enumerate(_CASES.strip().splitlines(), 1)
)

_HEAD = """\
<!-- nav: In a cluster, 85 -->

# Edge cases of sidecars, and what was observed

Observed on Kubernetes 1.36.3 with containerd 2.4.2, in a cluster of the real servers and one real
kubelet. *On* names what a case needs: `kubelet`, with its container runtime; `API server`, where
tests write the status of pods themselves; `unit`, for our own code alone. An observation is the
name of a test that asserts it: `make e2e SUITE=sidecar` and `SUITE=deploy` repeat them, `make
test` those that need no cluster. `python tests/support/edge_cases.py` writes this page, and a test
compares it.

| # | case | on | observed |
|---|---|---|---|
"""


def found() -> dict[int, list[Test]]:
    """Return the tests that observe each row."""
    rows: dict[int, list[Test]] = {}
    for path in sorted((ROOT / "tests").glob("**/test_*.py")):
        text = path.read_text()
        if "mark.row(" in text:
            for number, name in _marked(ast.parse(text)):
                rows.setdefault(number, []).append(Test(path, name))
    return rows


def page() -> str:
    """Return the page as it should be."""
    tests = found()
    lines = [
        f"| {row.number} | {row.case} | {row.needs.value} | {_cell(tests.get(row.number, []))} |"
        for row in ROWS
    ]
    return _HEAD + "\n".join(lines) + "\n"


def _cell(tests: list[Test]) -> str:
    return "; ".join(f"[{test.sentence}](../{test.path.relative_to(ROOT)})" for test in tests)


def _marked(module: ast.Module) -> Iterator[tuple[int, str]]:
    everywhere: list[int] = []
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            everywhere = list(_numbers(node.value))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            own = [number for decorator in node.decorator_list for number in _numbers(decorator)]
            for number in sorted({*everywhere, *own}):
                yield number, node.name


def _numbers(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.row":
            yield from (ast.literal_eval(argument) for argument in node.args)


if __name__ == "__main__":
    print(page(), end="")
