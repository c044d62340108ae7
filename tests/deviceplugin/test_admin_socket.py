"""Orders from a node's administrator to its agent, and errors for invalid ones."""

import dataclasses
import os
import stat

import forked
import pytest
import rights
from held_grants import DEVICES, GIB, UNIT, UUID, grant

from pyvgpu import errors, quota
from pyvgpu.deviceplugin import admin_socket, grants
from pyvgpu.deviceplugin.devices import cordoned_devices
from pyvgpu.deviceplugin.grants import resize
from pyvgpu.machine import users


class Agent:
    """An agent with only the state that orders change."""

    def __init__(self, state):
        self.grants = {made.id: made for made in (grant(), other())}
        self.cordons = cordoned_devices.Cordons(state)
        self.orders = admin_socket.Orders(
            state,
            admin_socket.Hands(
                lambda: self.grants.values(),
                self.change,
                lambda: DEVICES,
                lambda uuid: self.cordons.change(uuid, cordoned=True),
                self.uncordon,
            ),
        )

    def uncordon(self, uuid):
        self.cordons.change(uuid, cordoned=False)
        return uuid not in self.cordons.uuids

    def change(self, before, wanted):
        after = resize.changed(before, wanted, DEVICES, UNIT)
        self.grants[after.id] = after
        return after


def other():
    owner = grants.Owner("uid-2", "team", "two", "side")
    return dataclasses.replace(grant(), id=f"{8:016x}", owner=owner)


@pytest.fixture
def agent(tmp_path):
    made = Agent(tmp_path)
    made.orders.start()
    yield made
    made.orders.stop()


def set_order(name="team/pod/main", **change):
    return {"order": "set", "name": name, "change": change}


def test_set_order_changes_the_quota(agent, tmp_path):
    assert admin_socket.send(tmp_path, set_order(vcore=20, vmemory=GIB)) == (
        f"team/pod/main: vcore 20, vmemory 1GiB of {UUID.format(0)}"
    )
    assert agent.grants[f"{7:016x}"].shares[0].vcore == 20
    elastic = set_order(policy=1, vcore_limit=60)
    assert "vcore 20, elastic to 60, " in admin_socket.send(tmp_path, elastic)


@pytest.mark.parametrize("name", ["team/pod/main", "team/pod", f"{7:016x}"])
def test_container_is_named_by_pod_or_grant(agent, name):
    assert admin_socket.find(name, agent.grants.values()) == agent.grants[f"{7:016x}"]


def test_unknown_or_ambiguous_name_lists_valid_ones(agent):
    with pytest.raises(errors.UsageError, match="valid: team/pod/main, team/two/side"):
        admin_socket.find("team/pod/mian", agent.grants.values())
    owner = grants.Owner("uid", "team", "pod", "more")
    several = [*agent.grants.values(), dataclasses.replace(other(), owner=owner)]
    with pytest.raises(
        errors.UsageError, match="must also name one of its containers: main, more"
    ):
        admin_socket.find("team/pod", several)


@pytest.mark.parametrize(
    ("order", "kind", "said"),
    [
        (set_order(vcore=51), errors.UsageError, "was created with 50"),
        (set_order(vcore=0), errors.UsageError, "vcore=0"),
        (set_order(vcore="5"), errors.DataError, "not a change of a quota"),
        (set_order("unknown", vcore=5), errors.UsageError, "no container of that name"),
        ({"order": "set", "name": 7}, errors.DataError, "not a change of a quota"),
        ({"order": "reboot"}, errors.DataError, "'reboot': this agent has no such command"),
        ({}, errors.DataError, "None: this agent has no such command"),
        ({"order": "cordon", "uuid": "GPU-x", "undo": False}, errors.UsageError, "valid: GPU-0"),
        (
            {"order": "cordon", "uuid": UUID.format(0)},
            errors.DataError,
            "cordon command is not valid",
        ),
    ],
)
def test_invalid_order_changes_nothing(agent, tmp_path, order, kind, said):
    before = dict(agent.grants)
    with pytest.raises(kind, match=said):
        admin_socket.send(tmp_path, order)
    assert agent.grants == before
    assert agent.cordons.uuids == frozenset()


def test_cordon_lasts_until_it_is_undone(agent, tmp_path):
    uuid = UUID.format(1)
    order = {"order": "cordon", "uuid": uuid, "undo": False}
    assert admin_socket.send(tmp_path, order) == f"{uuid}: cordoned, no new container gets it"
    assert admin_socket.send(tmp_path, order) == f"{uuid}: cordoned, no new container gets it"
    assert agent.cordons.uuids == cordoned_devices.Cordons(tmp_path).uuids == {uuid}
    assert admin_socket.send(tmp_path, {**order, "undo": True}) == (
        f"{uuid}: uncordoned, new containers can get it"
    )
    assert agent.cordons.uuids == cordoned_devices.Cordons(tmp_path).uuids == frozenset()


def test_annotated_cordon_is_not_undone_by_an_order(agent, tmp_path):
    uuid = UUID.format(0)
    agent.cordons.follow(frozenset({uuid}))
    with pytest.raises(errors.UsageError, match="annotation pyvgpu.io/cordoned, too; remove it"):
        admin_socket.send(tmp_path, {"order": "cordon", "uuid": uuid, "undo": True})


def test_missing_device_can_be_uncordoned(agent, tmp_path):
    agent.cordons.change("GPU-gone", cordoned=True)
    admin_socket.send(tmp_path, {"order": "cordon", "uuid": "GPU-gone", "undo": True})
    assert agent.cordons.uuids == frozenset()


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"[" * 9999, b"\xff"])
def test_unreadable_cordons_are_refused(tmp_path, content):
    (tmp_path / "cordoned.json").write_bytes(content)
    with pytest.raises(errors.DataError, match="fix it, or remove it"):
        cordoned_devices.Cordons(tmp_path)


def test_without_an_agent_the_error_names_the_folder(tmp_path):
    with pytest.raises(errors.UnavailableError, match="no agent of this node.*--state"):
        admin_socket.send(tmp_path, set_order(vcore=1))
    with pytest.raises(errors.UnavailableError, match="no agent of this node"):
        admin_socket.send(tmp_path / "nowhere", set_order(vcore=1))


@rights.as_root
def test_only_root_may_give_orders(agent, tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(0o755)

    def order():
        admin_socket.send(tmp_path, set_order(vcore=1))

    assert "only root may send commands" in str(forked.call(order, uid=forked.OTHER_UID))
    (tmp_path / "control").chmod(0o666)
    refused = str(forked.call(order, uid=forked.OTHER_UID))
    assert (
        f"user {users.name(forked.OTHER_UID)} may not change what the agent holds of user root"
        in refused
    )
    assert agent.grants[f"{7:016x}"].shares[0].vcore == 50


def test_stopped_agent_executes_no_order(agent, tmp_path):
    agent.orders.stop()
    with pytest.raises(errors.UnavailableError):
        admin_socket.send(tmp_path, set_order(vcore=1))
    assert agent.grants[f"{7:016x}"].shares[0].vcore == 50
    assert os.path.lexists(tmp_path / "control")


def test_next_agent_replaces_the_socket_of_a_killed_one(agent, tmp_path):
    agent.orders.stop()
    following = Agent(tmp_path)
    following.orders.start()
    assert admin_socket.send(tmp_path, set_order(policy=int(quota.TimePolicy.ELASTIC)))
    following.orders.stop()
