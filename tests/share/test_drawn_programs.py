"""Drawn programs: launch patterns drawn from a seed are held to their share.

They are played as by `benchmarks/replay.py pattern:drawn:SEED`, on a virtual clock. The bounds are
wide: they catch programs that escape from their share or starve, not errors of some points.
"""

import laws
import pytest
import replay

VCORE = 25
MOST = VCORE + 10  # percent of the device; the first launches are charged by guesses
LONGEST = 1.4  # of the ideal time


@pytest.mark.parametrize("seed", range(1, 13))
def test_drawn_program_is_held_to_its_share_and_gets_it(tmp_path, seed):
    player = replay.Player(laws.TODAY, tmp_path)
    piece = replay.open_piece(f"pattern:drawn:{seed}")
    (row,) = replay.alone(player, piece, VCORE, player.repeats(piece, 2))
    assert row["disorder"] == 0
    assert row["held"] < MOST
    assert row["to_ideal"] < LONGEST
