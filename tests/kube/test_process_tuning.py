"""Python's cyclic garbage collector is disabled while lists are decoded, also concurrently."""

import gc

import pytest
from waiting import wait_until

from pyvgpu.kube import process_tuning


def test_gc_is_disabled_until_the_last_list_is_decoded():
    first, second = process_tuning.gc_disabled(), process_tuning.gc_disabled()
    with first:
        second.__enter__()
        with process_tuning.gc_disabled():
            assert not gc.isenabled()
    assert not gc.isenabled()  # the first has ended, the second has not
    second.__exit__(None, None, None)
    wait_until(gc.isenabled)


def test_gc_is_enabled_after_a_list_that_failed():
    with pytest.raises(ValueError, match="lost"), process_tuning.gc_disabled():
        raise ValueError("lost")
    wait_until(gc.isenabled)
