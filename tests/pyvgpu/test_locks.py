import contextlib
import itertools
import os

import pytest

from pyvgpu import locks


@pytest.mark.parametrize("order", [*itertools.permutations((2, 5, 9))])
def test_first_lock_is_found_in_any_order_of_locking(tmp_path, order):
    with contextlib.ExitStack() as stack:

        def descriptor() -> int:
            opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
            stack.callback(os.close, opened)
            return opened

        asker = descriptor()
        assert locks.first_held(asker, 0, 16) is None
        for byte in order:
            assert locks.take(descriptor(), byte)
        found = [locks.first_held(asker, byte, 16 - byte) for byte in (0, 3, 6, 10)]
        assert found == [2, 5, 9, None]
        assert locks.first_held(asker, 3, 2) is None
