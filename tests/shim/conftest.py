import parties
import pytest
import shim_room

from pyvgpu.simulation import simulator


@pytest.fixture
def machine(tmp_path):
    """Return a machine with one simulated H100."""
    return simulator.open_machine("h100", root=tmp_path / "machines")


@pytest.fixture
def room(tmp_path, machine):
    """Return a quota of 2 GiB on that H100."""
    with shim_room.room(tmp_path / "room", machine) as made:
        yield made


@pytest.fixture
def make_room(tmp_path):
    """Return a function that makes rooms on a machine, closed at the end."""
    made = []

    def make(machine, **options):
        one = shim_room.Room(tmp_path / f"room-{len(made)}", machine, **options)
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


@pytest.fixture
def rooms(make_room, machine):
    """Return two containers on one device, each with room for several processes."""
    return make_room(machine, vmemory=parties.QUOTA), make_room(machine, vmemory=parties.QUOTA)


@pytest.fixture
def post(tmp_path, monkeypatch):
    """Return how one party hands a descriptor to another: its number there."""
    monkeypatch.chdir(tmp_path)  # paths of sockets are short
    boxes = {}

    def hand(owner, user, descriptor):
        if user not in boxes:
            boxes[user] = f"{len(boxes)}"
            user.ask(f"expect({boxes[user]!r})")
        owner.ask(f"send({boxes[user]!r}, {descriptor})")
        return user.ask("receive()")

    return hand
