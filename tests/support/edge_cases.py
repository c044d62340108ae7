"""docs/sidecar-rows.md: the edge cases of sidecars, and the tests in which each was observed.

A test says with ``@pytest.mark.row(N)`` which case it shows; its name is what was observed. The
page is written from that: ``python tests/support/edge_cases.py > docs/sidecar-rows.md``.
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
    """What a case can be observed on."""

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
    """A test that shows one."""

    path: Path
    name: str

    @property
    def in_a_cluster(self) -> bool:
        """Whether it runs in a real one."""
        return self.path.is_relative_to(ROOT / "tests/e2e")

    @property
    def sentence(self) -> str:
        """What was observed."""
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
K the node is away: no node part, no kubelet
S a controller that is killed; two controllers, with the lease and without
K the node part is killed in a hook, or in a stop; the runtime is killed during a stop
F the sidecar started again between the request and the stop
S another pod of the same name
F the API server answers 403, 409, 422, 429, 500, or nothing
S 410 of a list and of a watch; connections that break; the API server starts again
S thousands of pods: a list in many pages
S the webhook is away: `Fail` and `Ignore`
S the webhook's certificate is renewed under load
K arguments: `$(X)`, `$$(X)`, `$$$$`, no ASCII, new lines, 100 KB, empty; command, args or both
S a second admission; another webhook puts a container first
K runAsNonRoot, a read-only root, no capabilities, seccomp, fsGroup
K the fast-exit image cannot be had
S the sidecar has ended already
S the sidecar crashed before the main container was done
S annotations near 256 KiB
S the lease is lost in the middle of a decision
F no path writes the pod's status: kubelet would write it again
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

Observed on Kubernetes 1.36.3 with containerd 2.4.2, in a cluster made of the real servers and one
real kubelet. *On* says what a case takes: `kubelet`, with its container runtime; `API server`,
where tests may write the status of pods themselves; `unit`, where our own code alone matters. What
was observed is what the tests of that name assert: `make e2e SUITE=sidecar` and `SUITE=deploy` see
it again, `make test` what needs no cluster. `python tests/support/edge_cases.py` writes this page,
and a test compares it.

| # | case | on | observed |
|---|---|---|---|
"""


def found() -> dict[int, list[Test]]:
    """Return the tests that show each row."""
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
    return "; ".join(f"[{it.sentence}](../{it.path.relative_to(ROOT)})" for it in tests)


def _marked(module: ast.Module) -> Iterator[tuple[int, str]]:
    everywhere: list[int] = []
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            everywhere = list(_numbers(node.value))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            own = [number for it in node.decorator_list for number in _numbers(it)]
            for number in sorted({*everywhere, *own}):
                yield number, node.name


def _numbers(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.row":
            yield from (ast.literal_eval(argument) for argument in node.args)


if __name__ == "__main__":
    print(page(), end="")
