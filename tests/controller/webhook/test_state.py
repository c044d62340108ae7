"""Removal of annotations that only components may write."""

import copy

import pytest
import small_kubelet

from pyvgpu.controller.webhook import devices, drafts

FORGED = {
    "pyvgpu.io/devices": "{}",
    "pyvgpu.io/sidecar-stop": "{}",
    "pyvgpu.io/swapped": "{}",
    "tencent.com/gpu-assigned": "true",
    "tencent.com/predicate-gpu-idx-0": "1",
    "tencent.com/predicate-node": "n",
    "tencent.com/predicate-time": "7",
}
OTHERS = {
    "pyvgpu.io/swap": "{}",
    "pyvgpu.io/vcore-policy": "elastic",
    "pyvgpu.io/devices-of-mine": "x",
    "tencent.com/vcuda-core-limit": "50",
    "a": "b",
}


def test_state_annotations_are_removed_and_others_kept():
    pod = {"metadata": {"annotations": {**FORGED, **OTHERS}}}
    draft = drafts.Draft(pod)
    assert set(devices.strip_state(draft)) == set(FORGED)
    assert small_kubelet.apply(copy.deepcopy(pod), draft.operations) == draft.document
    assert draft.document == {"metadata": {"annotations": OTHERS}}
    assert devices.strip_state(draft) == ()


@pytest.mark.parametrize("metadata", [None, {}, {"annotations": None}])
def test_a_pod_without_them_is_unchanged(metadata):
    draft = drafts.Draft({"metadata": metadata})
    assert devices.strip_state(draft) == ()
    assert not draft.operations
