"""The host memory that suspended pods of a node may take together."""

import pytest

from pyvgpu.deviceplugin.suspension.pod_suspender import HostBudget
from pyvgpu.errors import UnavailableError

GIB = 1 << 30


def test_suspended_pods_and_suspensions_in_progress_count_once():
    taken = {"a": 4 * GIB}
    budget = HostBudget(10 * GIB, lambda: taken)
    budget.claim("b", 5 * GIB)
    taken["b"] = 5 * GIB  # it is suspended, and its claim not yet released
    budget.claim("c", GIB)
    with pytest.raises(UnavailableError) as caught:
        budget.claim("d", 1)
    assert str(caught.value) == (
        "it needs 1 bytes of host memory, other suspended pods have 10GiB, and all of them may "
        "have 10GiB on this node (--suspend-host-memory)"
    )


def test_a_released_claim_and_a_resumed_pod_make_room():
    taken = {"a": 6 * GIB}
    budget = HostBudget(10 * GIB, lambda: taken)
    budget.claim("b", 4 * GIB)
    budget.release("b")
    budget.claim("c", 4 * GIB)
    del taken["a"]
    budget.claim("d", 6 * GIB)


def test_a_pods_own_bytes_do_not_count_twice():
    budget = HostBudget(GIB, lambda: {"a": GIB})
    budget.claim("a", GIB)
    budget.claim("a", GIB)


def test_release_without_a_claim_changes_nothing():
    budget = HostBudget(0, dict)
    budget.release("a")
    with pytest.raises(UnavailableError):
        budget.claim("a", 1)
