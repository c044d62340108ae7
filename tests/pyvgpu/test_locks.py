import contextlib
import itertools
import os

import pytest

from pyvgpu import locks


@pytest.mark.parametrize("order", [*itertools.permutations((2, 5, 9))])
def test_all_locks_are_found_in_any_order_of_locking(tmp_path, order):
    with contextlib.ExitStack() as stack:

        def descriptor() -> int:
            opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
            stack.callback(os.close, opened)
            return opened

        asker = descriptor()
        assert locks.all_held(asker, 0, 16) == []
        for byte in order:
            assert locks.take(descriptor(), byte)
        assert locks.all_held(asker, 0, 16) == [2, 5, 9]
        assert locks.all_held(asker, 2, 4) == [2, 5]
        assert locks.all_held(asker, 3, 2) == []
