import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import forked
import pytest
import rights

from pyvgpu import errors, locks, quota, region, share
from pyvgpu._region import ffi
from pyvgpu.device import Device
from pyvgpu.machine import admission, holders, quota_socket, reservations, users

GIB = 1 << 30
UUID = "GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
DEVICE = Device(UUID, 0, "H100", 80 * GIB, 512 << 20)
SECOND = Device(UUID.replace("0f1e", "1f1e"), 1, "H100", 80 * GIB, 512 << 20)


@pytest.fixture
def place():
    """Return a folder that every user can access; pytest's own is private to the user."""
    with tempfile.TemporaryDirectory(prefix="pyvgpu-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def registries(place):
    return reservations.Registries(place / "root", place / "all")


def request(vmemory=4 * GIB, vcore=10, devices=(DEVICE,)):
    return holders.RunRequest(quota.Quota(vcore, vmemory), devices, "999.1")


def reserve(registries, name, **wanted):
    return registries.reserve(request(**wanted), holders.Holder(name, "train", tree="/nowhere"))


def preamble(place, vmemory):
    """Return the first lines of a program that makes a reservation."""
    return (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from pyvgpu import errors, quota\nfrom pyvgpu.machine import holders, reservations\n"
        "from pyvgpu.run import mount_namespace\n"
        "from pyvgpu.device import Device\n"
        f"place = Path({str(place)!r})\n"
        "registries = reservations.Registries(place / 'root', place / 'all')\n"
        f"device = Device({UUID!r}, 0, 'H100', {80 * GIB}, {512 << 20})\n"
        f"request = holders.RunRequest(quota.Quota(10, {vmemory}), (device,), '999.1')\n"
    )


@contextlib.contextmanager
def as_other_user(action):
    """Run *action* as another user until the block ends; yield what it returned."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            forked.become(forked.OTHER_UID)
            answer = str(action())
        except BaseException as exc:
            answer = f"{type(exc).__name__}: {exc}"
        os.write(writing, answer.encode())
        signal.pause()
    answer = os.read(reading, 65536).decode()
    os.close(reading)
    os.close(writing)
    try:
        yield answer
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_reservation_is_stored_with_quota_usage_and_holder(registries):
    made = reserve(registries, "train-1")
    assert sorted(path.name for path in made.folder.iterdir()) == [
        "quota",
        "reservation.json",
        "usage",
    ]
    assert made.folder.stat().st_mode & 0o777 == 0o755
    (found,) = registries.live()
    assert (found.run_id, found.uid, found.holder.name) == (made.run_id, os.geteuid(), "train-1")
    assert found.holder.pid == os.getpid()
    assert found.holder.tree == f"/nowhere/{made.run_id}"
    assert found.limits.devices[0].vmemory == 4 * GIB
    os.close(made.quota)


def test_registry_is_sticky_and_open_to_all(registries, place):
    os.close(reserve(registries, "one").quota)
    (registry,) = place.iterdir()
    assert registry.name == ("root" if os.geteuid() == 0 else "all")
    assert registry.stat().st_mode & 0o7777 == 0o1777


def test_reservations_add_up_to_at_most_the_device(registries):
    made = [reserve(registries, f"run-{i}", vmemory=40 * GIB) for i in range(2)]
    with pytest.raises(errors.UnavailableError) as caught:
        reserve(registries, "third", vmemory=GIB)
    message = str(caught.value)
    assert "vmemory 1GiB: device 0 (H100) has 0 bytes of 80GiB free" in message
    assert "run-0 40GiB" in message
    assert "run-1 40GiB" in message
    os.close(made[0].quota)
    os.close(reserve(registries, "third", vmemory=40 * GIB).quota)
    os.close(made[1].quota)


def write_words(file, field, *words, at=0):
    place = ffi.offsetof("struct usage_file", field) + 8 * at
    os.pwrite(file, b"".join(word.to_bytes(8, "little") for word in words), place)


@pytest.fixture
def lowered(registries):
    """Return a reservation of 2 GiB and its open usage file, in which slot 0 is alive."""
    made = reserve(registries, "big", vmemory=2 * GIB)
    usage = os.open(made.folder / "usage", os.O_RDWR)
    slot = os.open(made.folder / "usage", os.O_RDWR)
    assert locks.take(slot, ffi.integer_const("USAGE_LOCK_SLOT"))
    yield made, usage
    for file in (made.quota, usage, slot):
        os.close(file)


def free_bytes(registries):
    """Return the device's free bytes by the registry."""
    with pytest.raises(errors.UnavailableError) as caught:
        reserve(registries, "other", vmemory=80 * GIB)
    return int(re.search(r"has (\d+)( bytes|GiB) of 80GiB free", str(caught.value))[1])


@pytest.mark.parametrize(
    ("field", "at", "words", "free"),
    [
        pytest.param("charged", 0, [GIB], 78, id="less than the quota"),
        pytest.param("charged", 0, [50 * GIB], 30, id="a process that lives"),
        pytest.param("charged", 1, [50 * GIB], 78, id="a process that is dead"),
        pytest.param("charged", 1024, [50 * GIB], 78, id="another device of the region"),
        pytest.param("orphaned", 0, [50 * GIB], 30, id="exports of the dead that are open"),
        pytest.param("charged", 0, [(1 << 52) + 50 * GIB], 30, id="a charge undecided for good"),
        pytest.param("charged", 0, [(1 << 52) - 1], 0, id="nonsense: no more than the device"),
        pytest.param("header", 0, [0], 78, id="a ledger that cannot be read"),
    ],
)
def test_memory_held_beyond_a_quota_is_reserved(registries, lowered, field, at, words, free):
    _, usage = lowered
    write_words(usage, field, *words, at=at)
    assert free_bytes(registries) == free


def test_memory_measured_beyond_all_charges_is_reserved(registries, lowered):
    made, usage = lowered
    write_words(usage, "charged", 2 * GIB)
    region.publish_extra(made.quota, {(0, 0): GIB})
    assert free_bytes(registries) == 77


def test_run_over_its_quota_may_lower_it_and_grow_into_free_memory(registries, lowered):
    made, usage = lowered
    write_words(usage, "charged", 50 * GIB)
    other = reserve(registries, "other", vmemory=30 * GIB)
    write_words(usage, "charged", 60 * GIB)  # as measured: more than the device has
    other = registries.change(other, quota.QuotaChange(vmemory=20 * GIB)).made
    assert registries.change(made, quota.QuotaChange(vcore=20, vmemory=2 * GIB)).held == 60 * GIB
    other = registries.change(other, quota.QuotaChange(vcore=15)).made
    with pytest.raises(errors.UnavailableError, match="big 60GiB .held; its quota is 2GiB"):
        registries.change(other, quota.QuotaChange(vmemory=21 * GIB))
    assert (
        registries.change(made, quota.QuotaChange(vmemory=60 * GIB)).made.share.vmemory == 60 * GIB
    )
    os.close(other.quota)


def test_each_device_of_a_run_reserves_its_held_memory():
    shares = [share.Share(device, 10, 2 * GIB) for device in (DEVICE, SECOND)]
    limits = region.limits_of(1, 0, "999.1", shares)
    holder = holders.Holder("big", "train")
    run = holders.LiveReservation("0" * 16, Path("/"), 0, holder, limits, (GIB, 50 * GIB))
    assert run.reserved == (2 * GIB, 50 * GIB)
    admission.check_memory(share.Share(DEVICE, 10, 78 * GIB), [run])
    with pytest.raises(errors.UnavailableError, match="has 30GiB of 80GiB free"):
        admission.check_memory(share.Share(SECOND, 10, 78 * GIB), [run])


def test_refusal_names_a_size_that_fits(registries):
    made = reserve(registries, "first", vmemory=70 * GIB)
    with pytest.raises(errors.UnavailableError, match=r"valid would be --vmemory 10GiB$"):
        reserve(registries, "second", vmemory=20 * GIB)
    os.close(made.quota)


def test_vcore_adds_up_to_100(registries):
    made = reserve(registries, "first", vcore=70)
    os.close(reserve(registries, "asks-for-memory-alone", vcore=None).quota)
    with pytest.raises(errors.UnavailableError, match="vcore 40: .* has 30 of 100 free.*first 70"):
        reserve(registries, "second", vcore=40)
    os.close(reserve(registries, "second", vcore=30).quota)
    os.close(made.quota)


def test_next_device_is_taken_when_the_first_is_full(registries):
    first = reserve(registries, "first", vmemory=80 * GIB, devices=(DEVICE, SECOND))
    second = reserve(registries, "second", vmemory=80 * GIB, devices=(DEVICE, SECOND))
    assert (first.share.device, second.share.device) == (DEVICE, SECOND)
    with pytest.raises(errors.UnavailableError, match="none of the other devices"):
        reserve(registries, "third", vmemory=GIB, devices=(DEVICE, SECOND))
    os.close(first.quota)
    os.close(second.quota)


def test_two_equal_names_are_refused_while_the_first_lives(registries):
    made = reserve(registries, "train")
    with pytest.raises(errors.UsageError, match="--name 'train': another run of user .* has it"):
        reserve(registries, "train")
    os.close(made.quota)
    os.close(reserve(registries, "train").quota)


@rights.as_root
def test_each_user_has_names_of_their_own(registries):
    made = reserve(registries, "train")
    with as_other_user(lambda: reserve(registries, "train").run_id) as theirs:
        found = {entry.name: entry.run_id for entry in registries.live()}
        name = users.name(forked.OTHER_UID)
        assert found == {"train": made.run_id, f"{name}/train": theirs}
        live = registries.live()
        assert quota_socket.find("train", live).run_id == made.run_id
        assert quota_socket.find(f"{name}/train", live).run_id == theirs
        assert quota_socket.find(f"{forked.OTHER_UID}/train", live).run_id == theirs
        with pytest.raises(errors.UsageError, match=f"valid: {name}/train, train"):
            quota_socket.find("nobody-else/train", live)
    os.close(made.quota)


def test_a_name_is_also_another_users_if_no_other_run_has_it(registries):
    (made,) = [reserve(registries, "train")]
    (own,) = registries.live()
    theirs = [dataclasses.replace(own, uid=own.uid + each) for each in (1, 2)]
    assert quota_socket.named("train", theirs[:1]) is theirs[0]
    assert quota_socket.named("train", theirs) is None
    assert quota_socket.named("train", [*theirs, own]) is own
    os.close(made.quota)


def test_only_the_user_and_root_can_read_the_command_line(registries):
    command = ["python", "jobs/my train.py", "--key", "secret\n"]
    made = registries.reserve(request(), holders.Holder("", "python", tree="/nowhere"), command)
    file = made.folder / "command"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text() == "python 'jobs/my train.py' --key 'secret?'"
    (found,) = registries.live()
    assert found.holder.name.startswith("my-train-")
    assert "secret" not in (made.folder / "reservation.json").read_text()
    os.close(made.quota)
    assert registries.live() == ()
    assert not made.folder.exists()


def test_a_long_command_line_is_truncated(registries):
    holder = holders.Holder("long", "python", tree="/nowhere")
    made = registries.reserve(request(), holder, ["python", "x" * 100_000])
    assert (made.folder / "command").stat().st_size == reservations.LONGEST_COMMAND
    os.close(made.quota)


def test_default_names_are_made_from_the_command(registries):
    made = [reserve(registries, "") for _ in range(3)]
    found = {entry.holder.name for entry in registries.live()}
    assert len(found) == 3
    assert all(name.startswith("train-") for name in found)
    for entry in made:
        os.close(entry.quota)


@pytest.mark.parametrize("kind", ["fifo", "folder", "empty"])
def test_unexpected_entries_in_a_folder_are_ignored(registries, kind):
    made = reserve(registries, "first")
    os.close(made.quota)
    folder = made.folder.parent / ("f" * 16)
    folder.mkdir()
    for name in ("quota", "usage", "reservation.json"):
        if kind == "fifo":
            os.mkfifo(folder / name)
        elif kind == "folder":
            (folder / name).mkdir()
        else:
            (folder / name).touch()
    os.close(reserve(registries, "second").quota)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a.b", "a b", "ä", "a" * 64, "a\n"])
def test_bad_names_are_refused(name):
    with pytest.raises(errors.UsageError, match="must be lower-case letters"):
        holders.check_name(name, "--name")


@pytest.mark.parametrize("command", ["python", "/usr/bin/My App", "...", "x" * 200, "ümlaut"])
def test_derived_names_are_valid(command):
    holders.check_name(holders.derive_name(command), "--name")


def test_dead_reservation_is_removed_by_the_next_scan(registries):
    made = reserve(registries, "train")
    os.close(made.quota)
    assert registries.live() == ()
    assert not made.folder.exists()


def test_reservation_lasts_while_any_process_of_the_run_lives(registries):
    made = reserve(registries, "train", vmemory=80 * GIB)
    usage = os.open(made.folder / "usage", os.O_RDWR)
    assert locks.take(usage, ffi.integer_const("USAGE_LOCK_SLOT") + 5)
    os.close(made.quota)
    assert not registries.forget(made.folder)
    with pytest.raises(errors.UnavailableError):
        reserve(registries, "other", vmemory=GIB)
    os.close(usage)
    assert registries.forget(made.folder)
    assert not made.folder.exists()


def test_reservation_of_a_killed_supervisor_does_not_count(registries, place):
    code = (
        f"{preamble(place, 80 * GIB)}"
        "registries.reserve(request, holders.Holder('doomed', 'x'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    os.close(reserve(registries, "next", vmemory=80 * GIB).quota)


@pytest.mark.parametrize("make", ["link", "file", "not sticky"])
def test_invalid_registry_is_refused(registries, place, make):
    registry = place / ("root" if os.geteuid() == 0 else "all")
    if make == "link":
        (place / "elsewhere").mkdir()
        registry.symlink_to(place / "elsewhere")
    elif make == "file":
        registry.touch()
    else:
        registry.mkdir(mode=0o755)
    with pytest.raises(errors.DataError, match=r"mode 1777"):
        reserve(registries, "train")


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param("{", id="not JSON"),
        pytest.param("[]", id="not an object"),
        pytest.param("{}", id="nothing in it"),
        pytest.param('{"name": 5}', id="wrong type"),
        pytest.param("[" * 60000, id="deep"),
        pytest.param("9" * 60000, id="long number"),
    ],
)
def test_reservation_without_a_readable_holder_does_not_stop_others(registries, forged):
    made = reserve(registries, "train", vmemory=80 * GIB)
    (made.folder / "reservation.json").write_text(forged)
    os.close(reserve(registries, "next", vmemory=80 * GIB).quota)
    os.close(made.quota)


@pytest.mark.parametrize(
    "false",
    [
        {"name": "\x1b[2J"},
        {"name": ""},
        {"command": "\x1b]0;x\x07"},
        {"vcore": -100},
        {"vcore": True},
        {"pid": "1"},
        {"created": float("inf")},
    ],
)
def test_invalid_holder_is_not_shown(registries, false):
    made = reserve(registries, "train")
    path = made.folder / "reservation.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **false}))
    assert registries.live() == ()
    os.close(made.quota)


@rights.needs_namespace
def test_full_disk_fails_the_run_and_leaves_nothing(tmp_path):
    code = (
        f"{preamble(tmp_path, GIB)}"
        "mount_namespace.enter([])\n"
        "mount_namespace._mount('tmpfs', str(place), 'tmpfs', 0, 'size=64k,mode=1777')\n"
        "try:\n    registries.reserve(request, holders.Holder('train', 'x'))\n"
        "except errors.UnavailableError as exc:\n"
        "    print(exc, list((place / 'root').glob('*')) + list((place / 'all').glob('*')))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert ran.stderr == ""
    assert "No space left on device; make room there []" in ran.stdout


@rights.as_root
def test_reservations_of_two_users_add_up(registries, place):
    (place / "all").mkdir()
    (place / "all").chmod(0o1777)
    with as_other_user(lambda: reserve(registries, "theirs", vmemory=70 * GIB).folder) as folder:
        assert Path(folder).parent.name == "all"
        with pytest.raises(errors.UnavailableError, match="has 10GiB of 80GiB free.*theirs 70GiB"):
            reserve(registries, "ours", vmemory=20 * GIB)
        ours = reserve(registries, "ours", vmemory=10 * GIB)
        assert ours.folder.parent.name == "root"
        assert {found.uid for found in registries.live()} == {0, forked.OTHER_UID}
        with as_other_user(lambda: reserve(registries, "more", vmemory=GIB)) as refusal:
            assert "UnavailableError" in refusal
            assert "ours 10GiB" in refusal
        os.close(ours.quota)
    assert not Path(folder).exists() or registries.live() == ()


@rights.as_root
def test_ordinary_user_removes_only_own_entries_of_roots_registry(registries):
    ours = reserve(registries, "ours")
    os.close(ours.quota)  # dead, and root's
    with as_other_user(lambda: reserve(registries, "theirs").folder) as folder:
        assert Path(folder).parent.name == "root"
        assert ours.folder.exists()
    assert registries.live() == ()
    assert not ours.folder.exists()
    assert not Path(folder).exists()


@rights.as_root
def test_reservation_linked_to_files_of_another_user_is_ignored(registries):
    ours = reserve(registries, "ours", vmemory=40 * GIB)
    folder = ours.folder.parent / ("f" * 16)

    def forge():
        folder.mkdir()
        for name in ("quota", "usage", "reservation.json"):
            (folder / name).symlink_to(ours.folder / name)
        return "forged"

    with as_other_user(forge) as answer:
        assert answer == "forged"
        assert [found.run_id for found in registries.live()] == [ours.run_id]
    os.close(ours.quota)


@rights.as_root
def test_usage_file_of_roots_reservation_may_belong_to_the_user_of_its_processes(registries):
    ours = reserve(registries, "ours", vmemory=40 * GIB)
    os.chown(ours.folder / "usage", forked.OTHER_UID, -1)
    assert [found.run_id for found in registries.live()] == [ours.run_id]
    os.close(ours.quota)


@rights.as_root
def test_reservation_of_another_user_with_files_of_root_is_ignored(registries):
    ours = reserve(registries, "ours", vmemory=40 * GIB)
    os.chown(ours.folder, forked.OTHER_UID, -1)
    assert registries.live() == ()
    os.close(ours.quota)


@rights.as_root
def test_roots_registry_must_belong_to_root(registries, place):
    (place / "root").mkdir()
    (place / "root").chmod(0o1777)
    os.chown(place / "root", forked.OTHER_UID, forked.OTHER_UID)
    with pytest.raises(
        errors.DataError, match="of user root, but it has mode 1777 and belongs to user nobody"
    ):
        registries.live()


@rights.as_root
def test_roots_registry_may_belong_to_the_owner_of_its_parent(registries, place):
    # As in a user namespace without root, where root's files belong to the overflow user.
    (place / "root").mkdir()
    (place / "root").chmod(0o1777)
    for folder in (place, place / "root"):
        os.chown(folder, forked.OTHER_UID, forked.OTHER_UID)
    place.chmod(0o755)
    assert registries.live() == ()
    place.chmod(0o1777)
    with pytest.raises(
        errors.DataError, match="of user root, but it has mode 1777 and belongs to user nobody"
    ):
        registries.live()


def test_concurrent_runs_never_reserve_too_much(registries, place):
    code = (
        f"{preamble(place, 30 * GIB)}"
        "try:\n    registries.reserve(request, holders.Holder(f'run-{os.getpid()}', 'x'))\n"
        "except errors.UnavailableError:\n    print('refused', flush=True)\n"
        "else:\n    print('reserved', flush=True)\n"
        "sys.stdin.read()\n"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    answers = [run.stdout.readline().strip() for run in runs]
    for run in runs:
        run.communicate()
    assert sorted(answers) == ["refused"] * 4 + ["reserved"] * 2


def test_region_of_a_live_reservation_is_readable_by_its_folder(registries):
    made = reserve(registries, "train")
    folder = os.open(made.folder, os.O_RDONLY)
    assert region.is_alive(folder)
    os.close(folder)
    os.close(made.quota)


def test_time_while_a_run_was_stopped_does_not_count_as_waiting(registries, place):
    """It stops before its second attempt, for longer than its limit; then the lock is free."""
    os.close(reserve(registries, "first").quota)
    (registry,) = place.iterdir()
    body = (
        "import fcntl, time\n"
        f"held = os.open({str(registry)!r}, os.O_RDONLY)\n"
        "fcntl.flock(held, fcntl.LOCK_EX)\n"
        "reservations.LOCK_SECONDS = 0.05\n"
        "tries = 0\n"
        "def hook(event, _):\n"
        "    global tries\n"
        "    if event == 'fcntl.flock':\n"
        "        tries += 1\n"
        "        if tries == 2:\n"
        "            time.sleep(2 * reservations.LOCK_SECONDS)\n"
        "        if tries == 3:\n"
        "            os.close(held)\n"
        "sys.addaudithook(hook)\n"
        "print(len(registries.live()))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", preamble(place, GIB) + body],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "0\n"), ran.stderr


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py", "--epochs", "3"], "train"),
        (["/usr/bin/python3.11", "-u", "-X", "dev", "jobs/Eval 2.py"], "Eval 2"),
        (["python3", "-m", "torch.distributed.run", "a.py"], "torch.distributed.run"),
        (["python3", "-c", "print(1)"], "python3"),
        (["bash", "night.sh"], "night"),
        (["sh", "-c", "sleep 3"], "sh"),
        (["python3"], "python3"),
        (["python3", "-m"], "python3"),
        (["./evaluate", "--batch", "8"], "./evaluate"),
        (["pythonic", "train.py"], "pythonic"),
    ],
)
def test_a_run_without_a_name_is_named_after_its_script(command, name):
    assert holders.script(command) == name


def test_run_under_mps_beside_one_of_another_user_is_refused():
    wanted = share.Share(DEVICE, 30, GIB, isolation=quota.Isolation.MPS)
    limits = region.limits_of(1, 0, "999.1", [wanted])
    run = holders.LiveReservation("0" * 16, Path("/"), 1000, holders.Holder("big", "x"), limits)
    admission.check_isolation(wanted, 1000, [run])
    with pytest.raises(errors.UnavailableError, match="serves one user at a time"):
        admission.check_isolation(wanted, 1001, [run])


def test_oversubscribed_run_that_does_not_fit_alone_beside_others_is_refused_as_that():
    limits = region.limits_of(1, 0, "999.1", [share.Share(DEVICE, 30, 50 * GIB)])
    run = holders.LiveReservation("0" * 16, Path("/"), 0, holders.Holder("big", "x"), limits)
    with pytest.raises(errors.UnavailableError, match="has 30GiB .*each has to fit alone"):
        admission.choose_oversubscribed(request(vmemory=40 * GIB), 2.0, [run])


def test_oversubscribed_run_beside_one_under_mps_is_refused():
    limits = region.limits_of(
        1, 0, "999.1", [share.Share(DEVICE, 30, GIB, isolation=quota.Isolation.MPS)]
    )
    run = holders.LiveReservation("0" * 16, Path("/"), 0, holders.Holder("big", "x"), limits)
    with pytest.raises(errors.UnavailableError, match="big uses .* with sharing mps"):
        admission.choose_oversubscribed(request(), 2.0, [run])
    found, _ = admission.choose_oversubscribed(request(devices=(DEVICE, SECOND)), 2.0, [run])
    assert found.device is SECOND
