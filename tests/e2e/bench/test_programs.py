"""The benchmarks that need a cluster run to their end at their smallest size; print figures."""

import bench_program
import pytest
from bench_program import NUMBER

pytestmark = pytest.mark.e2e

FIGURES = {
    "agentload": rf"\| 100 pods run, a minute \| {NUMBER} requests",
    "clusterload": rf'"filter_p50_ms": {NUMBER}',
    "schedulerburst": rf"with us .*'per_second': {NUMBER}",
    "sidecar": rf"\| .* \| .*{NUMBER}",
    "claimpods": rf"\| .* \| {NUMBER} s",  # the last: kubelet keeps its resources for minutes
}


@pytest.mark.parametrize("name", FIGURES)
def test_program_prints_its_figures_and_records_nothing(name):
    bench_program.check(name, ("--quick",), FIGURES[name])
