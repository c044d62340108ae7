"""The index finds grants by their current ids and pods, not by former ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.grants import grant_index
from pyvgpu.deviceplugin.kubelet.device_ids import ResourceKind

pytestmark = pytest.mark.slow

VCORE, VMEMORY, PODS = ["c0", "c1", "c2"], ["m0", "m1"], ["a", "b"]
SHARE = (datatypes.NodeShare("GPU-0", 1, 1),)


@st.composite
def made(draw):
    owner = draw(st.sampled_from([None, *PODS]))
    return grants.Grant(
        f"{draw(st.integers(0, 4)):016x}",
        frozenset(draw(st.sets(st.sampled_from(VCORE), min_size=0 if owner else 1))),
        1.0,
        grants.Owner(owner, "team", owner, "main") if owner else None,
        frozenset(draw(st.sets(st.sampled_from(VMEMORY)))),
        SHARE if owner else (),
    )


CHANGES = st.lists(st.tuples(st.lists(made(), max_size=2), st.sets(st.integers(0, 4), max_size=2)))


@given(CHANGES)
def test_index_matches_a_linear_search(changes):
    kept, plain = grant_index.GrantIndex(), {}
    for new, numbers in changes:
        gone = [f"{number:016x}" for number in numbers]
        before, copy = kept.grants, dict(plain)
        kept.change(new, gone)
        plain |= {grant.id: grant for grant in new}
        plain = {name: grant for name, grant in plain.items() if name not in gone}
        assert kept.grants == plain
        assert before == copy
        for kind, all_ids in ((ResourceKind.VCORE, VCORE), (ResourceKind.VMEMORY, VMEMORY)):
            for wanted in (*([wanted_id] for wanted_id in all_ids), all_ids, []):
                having = {
                    grant
                    for grant in plain.values()
                    if not (
                        grant.vcore_ids if kind is ResourceKind.VCORE else grant.vmemory_ids
                    ).isdisjoint(wanted)
                }
                for bound in (True, False):
                    found = kept.having(kind, wanted, bound=bound)
                    assert len(found) == len(set(found))
                    assert set(found) == {grant for grant in having if grant.bound is bound}
                assert kept.are_open(kind, wanted) == any(not grant.bound for grant in having)
        for uid in PODS:
            assert {grant.id for grant in kept.of_pod(uid)} == {
                grant.id for grant in plain.values() if grant.owner and grant.owner.uid == uid
            }
