"""What the verbs remember of a pod between two requests."""

import json

import pytest
import schedulerpods as pods

from pyvgpu.controller.scheduler import cache, extender
from pyvgpu.controller.scheduler.shell import verbs


def question(policy, version):
    pod = pods.pod("p", notes={"pyvgpu.io/placement": policy})
    if version is not None:
        pod["metadata"]["resourceVersion"] = version
    return json.dumps({"Pod": pod, "NodeNames": ["used", "empty"]}).encode()


@pytest.mark.parametrize("versions", [("1", "2"), (None, None), ("", ""), ("1", None)])
def test_a_pod_that_has_changed_since_it_was_evaluated_is_parsed_again(versions):
    known = cache.Cache()
    known.see_node("empty", pods.published(2))
    placed = {"u": {"main": (pods.share(0, 30, 1),)}}
    known.see_node("used", pods.published(2, placed=placed))
    asked = verbs.Verbs(extender.Decider(known), None, tuple, tuple, ())
    asked.filter(question("binpack", versions[0]))
    scores = json.loads(asked.prioritize(question("spread", versions[1])).content)
    assert max(scores, key=lambda score: score["Score"])["Host"] == "empty"
