import contextlib
import os
import queue
import subprocess
import sys
import threading

import pytest
import rights
from installed import installation_of

from pyvgpu.volumes import driver_follower, find, folder_watch, node_mirror

pytestmark = pytest.mark.slow

PATIENCE = 60  # seconds; awaited events come within ten


class Folder:
    """A finder of the driver in one folder."""

    def __init__(self, path):
        self._path = path

    def find(self):
        return installation_of(self._path)

    def folders(self):
        return (self._path.parent, self._path)


class Followed:
    """A follower that runs in a thread, and its reports."""

    def __init__(self, path, mirrored, *, inotify):
        self.node = mirrored
        self._news = queue.Queue()
        self._watch = folder_watch.FolderWatch(inotify=inotify)
        self._follower = driver_follower.DriverFollower(
            Folder(path), mirrored, self._watch, self._news.put
        )
        self._thread = threading.Thread(target=self._follower.run)
        self._thread.start()

    def next(self, wanted):
        """Return the first *wanted* report; earlier ones are about a half installed driver."""
        while True:
            news = self._news.get(timeout=PATIENCE)
            if wanted(news.state):
                return news

    def release(self, release):
        return self.next(lambda state: (state.driver, state.release) == ("present", release))

    def stop(self):
        self._follower.stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self._watch.__exit__(None, None, None)


@pytest.fixture
def mirrored(tmp_path, shim):
    return node_mirror.NodeMirror(tmp_path / "output", shim)


@pytest.fixture(params=[True, False], ids=["inotify", "polling"])
def start(request, mirrored):
    with contextlib.ExitStack() as stack:

        def follow_in(path):
            followed = Followed(path, mirrored, inotify=request.param)
            stack.callback(followed.stop)
            return followed

        yield follow_in


def empty(folder):
    for path in folder.path.iterdir():
        path.unlink()


def test_new_release_is_mirrored_without_a_restart(driver_folder, start):
    followed = start(driver_folder.path)
    followed.release("580.65.06")
    empty(driver_folder)
    driver_folder.add_driver("580.95.05")
    followed.release("580.95.05")
    assert followed.node.current().name.startswith("580.95.05-")


def test_folder_that_appears_later_is_mirrored(driver_folder, start):
    aside = driver_folder.path.rename(driver_folder.path.with_name("aside"))
    followed = start(driver_folder.path)
    followed.next(lambda state: state.driver == "missing")
    assert not followed.node.output.exists()
    aside.rename(driver_folder.path)
    followed.release("580.65.06")


def test_missing_driver_is_reported_and_its_tree_kept(driver_folder, start):
    followed = start(driver_folder.path)
    made = followed.release("580.65.06").state
    empty(driver_folder)
    gone = followed.next(lambda state: state.driver == "missing").state
    assert gone.tree == made.tree
    assert followed.node.state() == gone
    assert (followed.node.current() / "shared/origin/libcuda.so.580.65.06").exists()
    driver_folder.add_driver()
    assert followed.release("580.65.06").state == made


def test_half_upgraded_driver_is_reported_and_mirrored_when_complete(driver_folder, start):
    followed = start(driver_folder.path)
    followed.release("580.65.06")
    (driver_folder.path / "libcuda.so.1").unlink()
    (driver_folder.path / "libcuda.so.580.65.06").unlink()
    driver_folder.add("libcuda.so.580.95.05", "libcuda.so.1")
    said = followed.next(lambda state: state.driver == "unusable").state
    assert said.release == "580.65.06"
    assert "580.95.05" in said.reason
    empty(driver_folder)
    driver_folder.add_driver("580.95.05")
    followed.release("580.95.05")


def test_unusable_output_is_reported_and_retried(driver_folder, start, mirrored):
    mirrored.output.write_text("in the way")
    followed = start(driver_folder.path)
    assert "File exists" in followed.next(lambda state: state.driver == "unusable").state.reason
    mirrored.output.unlink()
    followed.release("580.65.06")


def test_failed_write_of_the_specification_is_reported_and_retried(driver_folder, tmp_path, shim):
    blocked = tmp_path / "not watched" / "cdi"
    blocked.parent.mkdir()
    blocked.write_text("in the way")
    mirrored = node_mirror.NodeMirror(tmp_path / "output", shim, blocked / "driver.json")
    mirrored.output.mkdir()  # later it would be noticed as a change
    followed = Followed(driver_folder.path, mirrored, inotify=True)
    try:
        assert "Not a directory" in followed.release("580.65.06").state.specification
        blocked.unlink()
        followed.next(lambda state: state.driver == "present" and not state.specification)
    finally:
        followed.stop()


class ChangingFinder:
    """A finder that finds nothing and acts on each call; the second call ends the follower."""

    def __init__(self, folder, act):
        self._folder = folder
        self._act = act
        self._left = 2
        self.stop = None

    def find(self):
        self._act()
        self._left -= 1
        if not self._left:
            self.stop()
        raise find.DriverMissingError("none")

    def folders(self):
        return (self._folder,)


class Restless(folder_watch.FolderWatch):
    """A watch that reports several consecutive changes."""

    changes = 5

    def wait(self, seconds):
        self.changes -= 1
        return self.changes >= 0 or super().wait(seconds)


def poll_twice(mirrored, watched, finder):
    with watched:
        follower = driver_follower.DriverFollower(finder, mirrored, watched, lambda news: None)
        finder.stop = follower.stop
        thread = threading.Thread(target=follower.run)
        thread.start()
        thread.join(PATIENCE / 2)
        in_time = not thread.is_alive()
        follower.stop()
        thread.join(PATIENCE)
    assert in_time


def test_driver_is_examined_when_changes_have_ceased(tmp_path, mirrored):
    watched, seen = Restless(inotify=False), []
    poll_twice(mirrored, watched, ChangingFinder(tmp_path, lambda: seen.append(watched.changes)))
    assert seen[0] == 5
    assert seen[1] < 0


@pytest.mark.parametrize("inotify", [True, False])
def test_change_during_a_search_is_noticed(tmp_path, mirrored, inotify):
    def change():
        (tmp_path / "file").touch()

    poll_twice(
        mirrored, folder_watch.FolderWatch(inotify=inotify), ChangingFinder(tmp_path, change)
    )


def test_wake_ends_a_wait():
    with folder_watch.FolderWatch() as watched:
        threading.Timer(0.05, watched.wake).start()
        assert watched.wait(PATIENCE)
        assert not watched.wait(0)


@pytest.mark.parametrize("inotify", [True, False])
def test_change_between_watch_and_wait_is_noticed(tmp_path, inotify):
    with folder_watch.FolderWatch(inotify=inotify) as watched:
        watched.watch([tmp_path, tmp_path / "not there"])
        assert not watched.wait(0)
        (tmp_path / "file").write_text("")
        assert watched.wait(PATIENCE)
        (tmp_path / "not there").mkdir()
        assert watched.wait(PATIENCE)


def test_unwatched_folder_sends_no_events(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    with folder_watch.FolderWatch() as watched:
        watched.watch([one])
        watched.watch([other])
        watched.wait(0)  # the kernel's event for the end of the watch
        (one / "file").write_text("")
        assert not watched.wait(0)
        (other / "file").write_text("")
        assert watched.wait(0)


def test_writing_to_a_file_in_place_is_noticed(tmp_path):
    (tmp_path / "file").write_text("old")
    with folder_watch.FolderWatch() as watched:
        watched.watch([tmp_path])
        (tmp_path / "file").write_text("new")
        assert watched.wait(PATIENCE)


def test_hard_links_of_a_mirror_are_not_a_change(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "file").write_text("")
    with folder_watch.FolderWatch() as watched:
        watched.watch([tmp_path / "lib"])
        os.link(tmp_path / "lib" / "file", tmp_path / "link")
        assert not watched.wait(0)


NO_INOTIFY = """
import logging, sys, pathlib
from pyvgpu.volumes import folder_watch
folder = pathlib.Path(sys.argv[1])
with folder_watch.FolderWatch() as watched:
    watched.watch([folder])
    (folder / "file").write_text("")
    print(watched.wait(30))
"""


@rights.needs_user_namespace
def test_without_inotify_the_watch_warns_and_polls(tmp_path):
    command = ["unshare", "--user", "--map-root-user", "sh", "-c"]
    text = 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"'
    done = subprocess.run(
        [*command, text, "sh", sys.executable, "-c", NO_INOTIFY, tmp_path],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "True\n"
    assert "inotify is not available" in done.stderr
