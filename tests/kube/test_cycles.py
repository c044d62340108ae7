"""While a list is read nobody looks for cycles, however many are read at once."""

import gc

import pytest
from waiting import wait_until

from pyvgpu.kube import cycles


def test_nobody_looks_until_the_last_list_is_read():
    first, second = cycles.left_alone(), cycles.left_alone()
    with first:
        second.__enter__()
        with cycles.left_alone():
            assert not gc.isenabled()
    assert not gc.isenabled()  # the first that began is done, and the second goes on
    second.__exit__(None, None, None)
    wait_until(gc.isenabled)


def test_others_look_again_after_a_list_that_was_broken_off():
    with pytest.raises(ValueError, match="lost"), cycles.left_alone():
        raise ValueError("lost")
    wait_until(gc.isenabled)
