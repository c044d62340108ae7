"""Model check over every order of events: kubelet, two controllers, node part, crashes, time.

Whatever the order, a pod ends by its main containers alone, nothing is ended before its time, and
the pod is written to at most twice.
"""

import pod_objects as make
import pytest
import small_kubelet as model

MOVED = {
    "command": ["$(START_COMMAND_0)"],
    "env": [
        {
            "name": "START_COMMAND_0",
            "valueFrom": {
                "fieldRef": {"fieldPath": "metadata.annotations['pyvgpu.io/start_command.a.0']"}
            },
        },
        {"name": "SIDECAR_TERMINATION", "value": "true"},
    ],
}
ZERO = {"SIDECAR_TERMINATION_EXITS_ZERO": "true"}
HURRIED = {"SIDECAR_TERMINATION_GRACE_SECONDS": "2"}


def scene(*sidecars, mains=((0,),), policy="Never", live=True, signal=143, broken=(), **more):
    codes = {f"main-{number}": tuple(codes) for number, codes in enumerate(mains)}
    pod = make.pod(*map(make.container, codes), *sidecars, policy=policy)
    return model.Scene(
        pod=pod,
        codes=codes,
        on_signal={spec["name"]: signal for spec, _ in sidecars},
        around=model.around(live=live, **more.pop("around", {})),
        broken=frozenset(broken),
        **more,
    )


def log(**environment):
    return make.sidecar("log", environment=environment)


SCENES = [
    pytest.param(scene(log(**ZERO), signal=0), id="stop"),
    pytest.param(scene(log(**ZERO), signal=0, mains=((3,),)), id="stop, main fails"),
    pytest.param(scene(log(**ZERO), signal=None), id="stop, says it ends with 0 and never does"),
    pytest.param(scene(log(**ZERO), signal=0, policy="OnFailure"), id="stop, OnFailure"),
    pytest.param(
        scene(log(**ZERO), signal=143, policy="OnFailure"), id="stop, comes back with 143"
    ),
    pytest.param(scene(log(), signal=143), id="swap"),
    pytest.param(scene(log(), signal=143, mains=((3,),)), id="swap, main fails"),
    pytest.param(scene(log(), signal=None), id="swap, ignores signals"),
    pytest.param(scene(log(), live=False), id="swap, no node part"),
    pytest.param(scene(log(), around={"virtual": True}, live=False), id="swap, virtual node"),
    pytest.param(scene(log(), policy="OnFailure", mains=((1, 0),)), id="swap, second run is well"),
    pytest.param(scene(log(), broken=["log:1"]), id="swap, never started"),
    pytest.param(scene(make.container("log", **MOVED)), id="swap, argv moved"),
    pytest.param(scene(log(**HURRIED), signal=143), id="hybrid"),
    pytest.param(scene(log(**HURRIED), signal=None), id="hybrid, ignores signals"),
    pytest.param(scene(log(**HURRIED), policy="OnFailure", signal=143), id="hybrid, OnFailure"),
    pytest.param(scene(log(), mains=((0,), (0,))), id="two mains"),
    pytest.param(scene(log(), mains=((0,), (2,))), id="two mains, one fails"),
    pytest.param(
        scene(log(**ZERO), make.sidecar("mesh"), signal=0), id="two sidecars on two paths"
    ),
    pytest.param(
        scene(log(), make.sidecar("mesh"), policy="OnFailure", backoff_limit=0),
        id="backoffLimit 0",
    ),
    pytest.param(scene(log(**HURRIED), policy="OnFailure", backoff_limit=1), id="backoffLimit 1"),
    pytest.param(
        scene(log(**ZERO), signal=None, policy="OnFailure", backoff_limit=0),
        id="backoffLimit 0, says it ends with 0 and never does",
    ),
    pytest.param(scene(log(), make.sidecar("mesh")), id="two swaps"),
    pytest.param(
        scene(
            log(**ZERO, SIDECAR_TERMINATION_ORDER="1"),
            make.sidecar("mesh", environment=ZERO),
            signal=0,
        ),
        id="two stops, one after the other",
    ),
    pytest.param(scene(log(**ZERO), signal=0, by_itself=0), id="stop, may end by itself"),
    pytest.param(scene(log(), by_itself=0), id="swap, may end by itself"),
    pytest.param(scene(log(**HURRIED), by_itself=0), id="hybrid, may end by itself"),
    pytest.param(
        scene(log(**ZERO), signal=0, by_itself=1, policy="OnFailure"), id="stop, may crash once"
    ),
    pytest.param(
        scene(log(**HURRIED), by_itself=1, policy="OnFailure"), id="hybrid, may crash once"
    ),
    pytest.param(scene(log(), policy="OnFailure", kubelet_dies=True), id="swap, kubelet dies"),
    pytest.param(scene(log(), deletes=True), id="swap, deleted"),
    pytest.param(scene(log(**ZERO), signal=None, deletes=True), id="stop, deleted"),
]


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES)
def test_the_pods_result_depends_only_on_its_main_containers(scene):
    seen, following = model.explore(scene)
    for state, history in seen.values():
        events = model.story(history)
        assert state["writes"] <= 2, events
        assert not model.fails_its_job(state), events
        if model.is_over(state) and not model.deleted(state):
            succeeded = all(code == 0 for code in model.last_codes(scene, state))
            assert model.phase_of(state) == ("Succeeded" if succeeded else "Failed"), events
        for name in scene.codes:
            assert "stopped" not in state["runtime"].get(name, {}), events
    stuck = model.cannot_end(seen, following)
    assert not stuck, model.story(seen[stuck[0]][1])


def test_a_sidecar_that_cannot_be_ended_safely_is_left_running():
    left = scene(make.sidecar("log", command=["/opt/log"]))
    seen, following = model.explore(left)
    assert not [state for state, _ in seen.values() if state["writes"]]
    assert not [state for state, _ in seen.values() if model.is_over(state)]
    assert not [state for state, _ in seen.values() if state["stops"]]


def test_without_the_controller_the_pod_hangs():
    """The model can fail: only the controller ends the sidecar."""
    alone = scene(log(), around={"has_fast_exit": False}, live=False)
    seen, _ = model.explore(alone)
    assert not [state for state, _ in seen.values() if model.is_over(state)]
