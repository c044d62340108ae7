"""It is named that kube-scheduler asks about some nodes alone, where that is why a pod waits."""

import pytest

from pyvgpu.controller.scheduler import sampling


@pytest.mark.parametrize(
    ("asked", "known", "others", "named"),
    [
        pytest.param(500, 5000, ["b", "a"], True, id="a sample"),
        pytest.param(100, 151, ["a"], True, id="the smallest sample"),
        pytest.param(100, 151, [], False, id="nobody else would do"),
        pytest.param(151, 151, ["a"], False, id="all were asked about"),
        pytest.param(3, 151, ["a"], False, id="so few that a selector has chosen them"),
        pytest.param(0, 0, [], False, id="no nodes"),
    ],
)
def test_it_is_named_where_it_may_be(asked, known, others, named):
    text = sampling.hint(asked, known, others)
    assert ("percentageOfNodesToScore: 100" in text) is named
    assert all(it in text for it in others) or not named
