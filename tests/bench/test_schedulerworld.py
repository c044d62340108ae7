"""The synthetic cluster of the scheduler benchmark is consistent."""

import json

import pytest

pytest.importorskip("cryptography", reason="needs the kubernetes extra")

import scheduler
import schedulerserver
import schedulerworld

from pyvgpu.controller.scheduler import cache

NODES, PODS = 10, 200


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(schedulerworld, "MOST_NEWS", 400)
    path = tmp_path / "world"
    schedulerworld.write(path, NODES, PODS)
    known = cache.Cache()
    news = schedulerserver.read(known, path)
    next(news)
    return known, news


def check(known):
    rooms = [room for info in known.nodes.values() for room in info.free]
    assert len(rooms) == NODES * schedulerworld.DEVICES
    assert all(room.vcore >= 0 and room.vmemory >= 0 for room in rooms)
    assert sum(room.tenants for room in rooms) == len(known.pods)


def test_every_pod_fits_its_device_while_pods_come_and_go(world):
    known, news = world
    assert PODS // 2 < len(known.pods) <= PODS
    before = set(known.pods)
    check(known)
    schedulerserver.tell(known, news, per_second=1e6)
    check(known)
    assert len(known.pods) == len(before)
    assert set(known.pods) != before


def test_requests_name_every_node_in_random_order():
    one, two = (json.loads(body)["NodeNames"] for body in scheduler.bodies(NODES, 2))
    assert one != two
    assert sorted(one) == sorted(two) == [schedulerworld.name_of(at) for at in range(NODES)]
