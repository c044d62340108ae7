"""The hint that kube-scheduler sampled only some nodes, where that is why a pod waits."""

import pytest

from pyvgpu.controller.scheduler import sampling


@pytest.mark.parametrize(
    ("asked", "known", "others", "named"),
    [
        pytest.param(500, 5000, ["b", "a"], True, id="a sample"),
        pytest.param(100, 151, ["a"], True, id="the smallest sample"),
        pytest.param(100, 151, [], False, id="no other node fits"),
        pytest.param(151, 151, ["a"], False, id="all were asked about"),
        pytest.param(3, 151, ["a"], False, id="so few that a selector has chosen them"),
        pytest.param(0, 0, [], False, id="no nodes"),
    ],
)
def test_the_hint_appears_where_sampling_may_be_the_cause(asked, known, others, named):
    text = sampling.hint(asked, known, others)
    assert ("percentageOfNodesToScore: 100" in text) is named
    assert all(other in text for other in others) or not named
