"""The checkpoint of grants survives crashes of the agent and failures of the disk."""

import concurrent.futures
import errno
import os
import re
import subprocess
import sys
import threading

import dying
import pytest
import small_disks
from waiting import PROMPT, wait_until

from pyvgpu import errors
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.grants import grant_log

GIB = 1 << 30
UUID = "GPU-00000000-0000-0000-0000-00000000000{}"


def unbound(number, ids=3):
    return grants.Grant(f"{number:016x}", frozenset(f"c{number}-{i}" for i in range(ids)), 17.5)


def bound(number, device=0, vcore=30):
    return grants.Grant(
        f"{number:016x}",
        frozenset(f"c{number}-{i}" for i in range(vcore)),
        17.5,
        grants.Owner("uid", "team", f"pod-{number}", "main"),
        frozenset({f"m{number}"}),
        (datatypes.NodeShare(UUID.format(device), vcore, GIB),),
    )


def opened(folder, node="node-1"):
    return grant_log.Checkpoint(folder, node)


def reread(folder, node="node-1"):
    with opened(folder, node) as again:
        return again.grants, again.trouble


def test_stored_grants_are_loaded_by_the_next_agent(tmp_path):
    with opened(tmp_path) as first:
        first.put(unbound(1), unbound(2))
        first.put(bound(2), bound(3))
        first.drop(unbound(1).id)
        held = first.grants
    assert held == {grant.id: grant for grant in (bound(2), bound(3))}
    assert reread(tmp_path) == (held, "")


def test_full_file_is_compacted(tmp_path):
    with opened(tmp_path) as first:
        size = (tmp_path / grant_log.FILE).stat().st_size
        for number in range(600):
            first.put(unbound(number, ids=100))
            if number >= 5:
                first.drop(unbound(number - 5).id)
        held = first.grants
    assert len(held) == 5
    assert (tmp_path / grant_log.FILE).stat().st_size == size
    assert reread(tmp_path) == (held, "")


def test_second_agent_is_refused_while_the_first_runs(tmp_path):
    with (
        opened(tmp_path) as first,
        pytest.raises(errors.UnavailableError, match=rf"another agent.*pid {os.getpid()}\)"),
    ):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_killed_agent_releases_the_lock(tmp_path):
    source = (
        "import os, pathlib, sys\n"
        "from pyvgpu.deviceplugin.grants import grant_log\n"
        "kept = grant_log.Checkpoint(pathlib.Path(sys.argv[1]), 'node-1')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", source, tmp_path], check=False, timeout=PROMPT)
    assert (tmp_path / "checkpoint.lock").read_text() != f"{os.getpid()}\n"
    opened(tmp_path).close()


def damaged_by(change):
    def write(path):
        content = bytearray(path.read_bytes())
        change(content)
        path.write_bytes(content)

    return write


def flip(at):
    def change(content):
        content[content.index(at)] ^= 1

    return change


def shorten(content):
    del content[len(content) // 2 :]


def become_a_folder(path):
    path.unlink()
    path.mkdir()


def become_a_link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("harm", "said", "left"),
    [
        pytest.param(damaged_by(shorten), "bytes, it was made with", 0, id="cut short"),
        pytest.param(lambda path: path.write_bytes(b""), "damaged", 0, id="empty"),
        pytest.param(lambda path: path.write_bytes(bytes(1 << 20)), "damaged", 0, id="zeros"),
        pytest.param(lambda path: path.write_text("{}\n"), "damaged", 0, id="of another program"),
        pytest.param(damaged_by(flip(b'"format"')), "damaged", 0, id="a bit in the first line"),
        pytest.param(damaged_by(flip(b'"pod-2"')), "damaged", 1, id="a bit in the last change"),
        pytest.param(damaged_by(flip(b'"pod-1"')), "damaged", 0, id="a bit in the first change"),
        pytest.param(become_a_folder, "cannot be read", 0, id="a folder"),
        pytest.param(become_a_link, "cannot be read", 0, id="a link"),
    ],
)
def test_damaged_checkpoint_is_kept_aside(tmp_path, harm, said, left):
    with opened(tmp_path) as first:
        first.put(bound(1))
        first.put(bound(2))
    harm(tmp_path / grant_log.FILE)
    found, trouble = reread(tmp_path)
    assert said in trouble
    assert len(found) == left
    assert os.path.lexists(tmp_path / "checkpoint.aside.1")
    assert reread(tmp_path) == (found, "")


@pytest.mark.parametrize(
    ("first_line", "said"),
    [
        ({"format": "else", "version": 1, "node": "node-1"}, "not a checkpoint"),
        ({"format": "pyvgpu.io/grants", "version": 2, "node": "node-1"}, "version 2.*supports 1"),
        ({"format": "pyvgpu.io/grants", "version": 1, "node": "far"}, "of node 'far'.*'node-1'"),
        (["no", "object"], "not a checkpoint"),
    ],
)
def test_foreign_checkpoint_is_kept_aside(tmp_path, first_line, said):
    (tmp_path / grant_log.FILE).write_bytes(grant_log._line(first_line) + bytes(9))
    with opened(tmp_path) as kept:
        assert kept.grants == {}
        assert re.search(said, kept.trouble)


def test_change_with_an_invalid_grant_is_damage(tmp_path):
    with opened(tmp_path) as first:
        first.put(bound(1))
        content = (tmp_path / grant_log.FILE).read_bytes()
    bad = grant_log._line({"put": [{"id": "../../etc"}], "drop": []})
    end = content.index(b"\0")
    (tmp_path / grant_log.FILE).write_bytes((content[:end] + bad).ljust(len(content), b"\0"))
    found, trouble = reread(tmp_path)
    assert set(found) == {bound(1).id}
    assert "invalid grant" in trouble


def test_number_of_aside_files_is_bounded(tmp_path):
    for _ in range(grant_log.ASIDES + 3):
        (tmp_path / grant_log.FILE).write_bytes(b"not ours")
        reread(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*aside*")) == [
        f"checkpoint.aside.{number}" for number in range(4, 8)
    ]


def test_agent_killed_at_any_step_leaves_acknowledged_state(tmp_path):
    """Between two answers either state may be found, but no other, and no draft stays."""

    def work(folder):
        with opened(folder) as kept:
            for step in (
                lambda: kept.put(bound(1)),
                lambda: kept.put(bound(2)),
                lambda: kept.drop(bound(1).id),
                lambda: kept._rewrite(kept.grants),
                lambda: kept.put(bound(3)),
            ):
                step()
                with (folder / "answered").open("a") as answered:
                    answered.write(".")

    expected = [set(), {1}, {1, 2}, {2}, {2}, {2, 3}]
    for step in range(1, 500):
        folder = tmp_path / str(step)
        folder.mkdir()
        died = dying.die_at(step, lambda folder=folder: work(folder))
        answered = folder / "answered"
        done = len(answered.read_text()) if answered.exists() else 0
        found, trouble = reread(folder)
        numbers = {int(grant_id, 16) for grant_id in found}
        assert not trouble
        assert numbers in (expected[done], expected[min(done + 1, 5)])
        assert not list(folder.glob(".pyvgpu-*"))
        if not died:
            break
    else:
        pytest.fail("there was no end")
    assert step > 10


def test_remains_of_a_failed_write_are_overwritten(tmp_path):
    """The remains may be longer than the next write."""
    with opened(tmp_path) as kept:
        kept.put(bound(1))
        os.pwrite(kept._file, b"x" * 4000, kept._end)
        kept.put(unbound(2))
        held = kept.grants
    assert reread(tmp_path) == (held, "")


def test_truncated_write_is_never_partly_trusted(tmp_path):
    with opened(tmp_path) as first:
        first.put(bound(1))
        before = (tmp_path / grant_log.FILE).read_bytes()
        first.put(bound(2), bound(3))
        after = (tmp_path / grant_log.FILE).read_bytes()
    begin, end = before.index(b"\0"), after.index(b"\0")
    for cut in {*range(begin + 1, end, 37), end - 1, end}:
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / grant_log.FILE).write_bytes(after[:cut] + before[cut:])
        found, trouble = reread(folder)
        assert len(found) == (3 if cut == end else 1)
        assert bool(trouble) == (cut != end)


def test_full_disk_fails_before_the_first_grant(small_disk):
    small_disks.fill(small_disk)
    with pytest.raises(errors.UnavailableError, match=r"No space left on device; make room"):
        opened(small_disk)
    (small_disk / "other").unlink()
    opened(small_disk).close()


def put_until_refused(kept):
    for number in range(10, 10_000):
        kept.put(unbound(number, ids=100))


def test_disk_that_fills_up_later_still_takes_changes(small_disk):
    with opened(small_disk) as kept:
        small_disks.fill(small_disk)
        kept.put(bound(1))
        with pytest.raises(errors.UnavailableError, match="make room"):
            put_until_refused(kept)
        held = kept.grants
    assert bound(1).id in held
    assert reread(small_disk) == (held, "")
    (small_disk / "other").unlink()
    with opened(small_disk) as kept:
        kept.put(bound(2))
        assert kept.grants == {**held, bound(2).id: bound(2)}


def test_read_only_folder_is_refused_with_a_message(small_disk):
    opened(small_disk).close()
    small_disks.allow_writing(small_disk, allowed=False)
    with pytest.raises(errors.PermissionDeniedError, match="Read-only file system"):
        opened(small_disk)


def test_disk_that_turns_read_only_changes_nothing(small_disk):
    with opened(small_disk) as kept:
        kept.put(bound(1))
        os.close(kept._file)
        kept._file = os.open(small_disk / grant_log.FILE, os.O_RDONLY)
        with pytest.raises(errors.UnavailableError, match="cannot be stored"):
            kept.put(bound(2))
        assert set(kept.grants) == {bound(1).id}


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "0123"},
        {"shares": []},
        {"owner": None},
        {"shares": [{"uuid": "GPU-1", "vcore": 0, "vmemory": 1}]},
        {"shares": [{"uuid": "GPU-1", "vcore": 1, "vmemory": 1}] * 2},
        {"policy": "soft"},
        {"created": "never"},
        {"owner": {"uid": "1"}},
    ],
)
def test_inconsistent_grant_is_refused(wrong):
    whole = grants.dump(bound(1))
    assert grants.load(whole) == bound(1)
    with pytest.raises(errors.DataError):
        grants.load({**whole, **wrong})


def test_concurrent_changes_share_one_fdatasync(tmp_path, monkeypatch):
    gate, waits = threading.Event(), []

    def slow(file):
        waits.append(file)
        gate.wait(PROMPT)

    with grant_log.Checkpoint(tmp_path, "node") as kept:
        monkeypatch.setattr(os, "fdatasync", slow)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for number in range(1, 9):
                kept.note(bound(number))
            done = [pool.submit(kept.settle) for _ in range(8)]
            wait_until(lambda: waits)
            gate.set()
            for future in done:
                future.result(PROMPT)
        assert len(waits) == 1
        kept.settle()
        assert len(waits) == 1


def test_file_is_rewritten_after_a_failed_sync(tmp_path, monkeypatch):
    def refuse(_):
        raise OSError(errno.EIO, "Input/output error")

    with grant_log.Checkpoint(tmp_path, "node") as kept:
        before = (tmp_path / grant_log.FILE).stat().st_ino
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", refuse)
            kept.note(bound(1))
            for _ in range(2):
                with pytest.raises(errors.UnavailableError, match="cannot be stored"):
                    kept.settle()
                patch.setattr(kept, "_rewrite", lambda _: refuse(None))
        kept.settle()
        assert (tmp_path / grant_log.FILE).stat().st_ino != before
    with grant_log.Checkpoint(tmp_path, "node") as kept:
        assert set(kept.grants) == {bound(1).id}
