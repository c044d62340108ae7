"""A container cannot fill the node's disk through its usage file."""

import threading
import time

import pytest
from granted import grant_of, share_of
from waiting import PROMPT, beside, wait_until

from pyvgpu import region
from pyvgpu.deviceplugin.containers import usage_file_guard

MIB = 1 << 20


def guarded(places):
    return beside(usage_file_guard.UsageFileGuard(places))


def usage_of(places, grant):
    return places.path(grant.id) / "usage"


def is_cut(places, grant):
    return usage_of(places, grant).stat().st_size == region.USAGE_BYTES


def grow(file):
    with file.open("ab") as content:
        content.write(bytes(MIB))


@pytest.fixture
def rarely(monkeypatch):
    """Scan so rarely that only inotify events count."""
    monkeypatch.setattr(usage_file_guard, "RESCAN_SECONDS", 1000.0)


def ready(places, grant):
    """Return once the grant is watched: appended bytes are truncated."""

    def cut():
        grow(usage_of(places, grant))
        time.sleep(0.01)
        return is_cut(places, grant)

    wait_until(cut)


@pytest.mark.usefixtures("rarely")
def test_extended_usage_file_is_truncated_on_inotify_event(places, machine, driver):
    old, new = (grant_of(share_of(machine), number=number) for number in (1, 2))
    places.make(old, driver)
    grow(usage_of(places, old))
    stopping = usage_file_guard.UsageFileGuard(places)
    thread = threading.Thread(target=stopping.run)
    thread.start()
    wait_until(lambda: is_cut(places, old))
    ready(places, old)
    places.make(new, driver)
    ready(places, new)
    places.remove(new.id)
    places.make(new, driver)
    ready(places, new)
    stopping.stop()
    thread.join(PROMPT)
    assert not thread.is_alive()


def test_without_inotify_usage_files_are_polled(places, machine, driver, monkeypatch):
    monkeypatch.setattr(usage_file_guard, "POLL_SECONDS", 0.02)
    grant = grant_of(share_of(machine))
    places.make(grant, driver)

    def refuse(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(usage_file_guard, "INotify", refuse)
    with guarded(places):
        grow(usage_of(places, grant))
        wait_until(lambda: is_cut(places, grant))


def test_endless_appends_are_truncated_with_one_warning(
    places, machine, driver, monkeypatch, caplog
):
    monkeypatch.setattr(usage_file_guard, "RESCAN_SECONDS", 0.5)
    grant = grant_of(share_of(machine))
    places.make(grant, driver)
    with guarded(places), usage_of(places, grant).open("ab", buffering=0) as content:
        for _ in range(300):
            content.write(bytes(64 << 10))
            time.sleep(0.001)
        wait_until(lambda: is_cut(places, grant))
    assert caplog.text.count("extended it") == 1


def test_guard_leaves_quotas_and_mapped_files_alone(places, machine, driver):
    grant = grant_of(share_of(machine))
    places.make(grant, driver)
    before = usage_of(places, grant).read_bytes()
    with guarded(places):
        places.make(grant, driver)
        ready(places, grant)
    assert usage_of(places, grant).read_bytes() == before
