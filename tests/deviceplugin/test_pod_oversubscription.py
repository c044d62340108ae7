"""Pods whose reservations exceed a device: idle ones are suspended, and no neighbour fails."""

import judge
import pytest
import suspended_pod
import waiting
from fake_kubelet import StartError

GIB = 1 << 30
SHARE = (60, 36)  # two do not fit on a device at once
IDLE = ("--oversubscribe", "2", "--oversubscribe-idle", "1", "--oversubscribe-slice", "2")


@pytest.fixture(name="room")
def fixture_room(node, cluster, tmp_path):
    with suspended_pod.room(node, cluster, tmp_path, (*IDLE, "--oversubscribe-moves=60")) as made:
        yield made


def test_idle_pods_make_room_and_continue_with_every_byte(room):
    """Two pods on each of the two devices, of which one fits."""
    with (
        room.tenant("a", share=SHARE) as a,
        room.tenant("b", share=SHARE) as b,
        room.tenant("c", share=SHARE) as c,
    ):
        suspended = [x for x in (a, b) if x.answer.get("state") == "suspended"]
        assert len(suspended) == 1
        assert any("it was idle, and others need the room" in text for text in suspended[0].events)
        for tenant in (a, b, c, suspended[0]):
            assert tenant.program.ask("is_intact(p)") is True
