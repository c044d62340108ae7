"""The pool of grant folders: each is used by one grant, and none is left behind."""

import concurrent.futures
import dataclasses

import dying
import pytest
from granted import grant_of, share_of

from pyvgpu import region
from pyvgpu.deviceplugin.containers import cdi_edits, grant_pool, store


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(grant_pool, "SIZE", 3)
    monkeypatch.setattr(grant_pool, "QUIET_SECONDS", -1.0)


def blanks(folder):
    return {path.name for path in folder.glob(".pyvgpu-*")}


def identities(path):
    with (path / "quota").open("rb") as held, (path / "usage").open("rb") as used:
        return region.read_quota_id(held.fileno()), region.read_usage_id(used.fileno())


def test_grant_from_the_pool_equals_a_fresh_one(places, machine, driver):
    places.fill(driver)
    ready = blanks(places.folder)
    assert len(ready) == 3
    assert not places.present()
    made = [grant_of(share_of(machine, vcore=5), number=number) for number in range(1, 5)]
    for grant in made:
        places.make(grant, driver)
    assert not blanks(places.folder)  # three were taken, and one more was created
    found = [identities(places.path(made_grant.id)) for made_grant in made]
    assert all(first == second for first, second in found)
    assert len(set(found)) == 4
    inside = [sorted(path.name for path in places.path(grant.id).iterdir()) for grant in made]
    assert inside == [["clock", "driver", "quota", "usage"]] * 4
    modes = [
        [(path.name, path.stat().st_mode) for path in places.path(grant.id).iterdir()]
        for grant in made
    ]
    assert all(sorted(mode) == sorted(modes[-1]) for mode in modes)


def test_pooled_folder_of_a_whole_device_has_no_quota(places, machine, driver):
    places.fill(driver)
    grant = grant_of(share_of(machine, vcore=100))
    places.make(grant, driver)
    assert not (places.path(grant.id) / "quota").exists()
    assert len(blanks(places.folder)) == 2


@pytest.mark.parametrize("filled", [True, False])
def test_new_driver_replaces_the_pool(places, machine, driver, tmp_path, filled):
    places.fill(driver)
    old = blanks(places.folder)
    tree = tmp_path / "another"
    tree.mkdir()
    other = dataclasses.replace(driver, tree=tree)
    if filled:
        places.fill(other)
        assert len(blanks(places.folder) - old) == 3
    grant = grant_of(share_of(machine))
    places.make(grant, other)
    assert not blanks(places.folder) & old
    assert (places.path(grant.id) / "driver").readlink() == tree


def test_cached_template_gives_the_same_specification(places, machine, driver):
    late = dataclasses.replace(driver)  # with an empty cache
    places.fill(driver)
    assert (len(driver.texts), len(late.texts)) == (len(driver.devices), 0)
    grant = grant_of(share_of(machine))
    ready, made = (
        cdi_edits.written(grant, places.path(grant.id), each) for each in (driver, late)
    )
    assert ready == made
    assert len(driver.texts) == len(driver.devices)


def test_cached_templates_are_bounded(places, machine, driver, monkeypatch):
    monkeypatch.setattr(cdi_edits, "MOST_TEXTS", 2)
    first, second = (device.uuid for device in machine.devices)
    for uuids in ((first,), (second,), (first, second), (second, first)):
        shares = tuple(dataclasses.replace(share_of(machine), uuid=uuid) for uuid in uuids)
        grant = dataclasses.replace(grant_of(share_of(machine)), shares=shares)
        assert grant.id.encode() in cdi_edits.written(grant, places.path(grant.id), driver)
        assert len(driver.texts) <= 2


def test_each_folder_is_taken_once(tmp_path, driver):
    one = grant_pool.GrantPool(tmp_path)
    one.fill(driver.tree)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: one.take(driver.tree), range(24)))
    assert len({blank.path for blank in taken}) == len({blank.region_id for blank in taken}) == 24
    one.fill(driver.tree)
    one.close()
    assert blanks(tmp_path) == {blank.path.name for blank in taken}


def test_pool_is_not_refilled_during_a_burst(tmp_path, driver, monkeypatch):
    one = grant_pool.GrantPool(tmp_path)
    one.take(driver.tree)
    monkeypatch.setattr(grant_pool, "QUIET_SECONDS", 3600.0)
    one.fill(driver.tree)
    assert len(blanks(tmp_path)) == 1


def test_pool_leaves_the_last_disk_space(small_disk, machine, driver, tmp_path):
    mine = store.GrantStore(small_disk / "grants", tmp_path / "cdi")
    mine.fill(driver)
    assert not blanks(small_disk / "grants")
    mine.make(grant_of(share_of(machine)), driver)
    mine.close()


def test_failed_grant_leaves_no_files(places, machine, driver):
    places.fill(driver)
    with pytest.raises(Exception, match="no device"):
        places.make(grant_of(share_of(machine)), dataclasses.replace(driver, devices={}))
    assert len(blanks(places.folder)) == 2
    assert not places.present()


@pytest.mark.slow
def test_pool_of_a_killed_agent_is_removed(machine, driver, tmp_path):
    grant = grant_of(share_of(machine))

    def work(base):
        mine = store.GrantStore(base / "grants", base / "cdi")
        mine.fill(driver)
        mine.make(grant, driver)
        mine.remove(grant.id)
        mine.fill(driver)
        mine.close()

    for step in range(1, 1000):
        base = tmp_path / str(step)
        died = dying.die_at(step, lambda base=base: work(base))
        for specification in base.glob("cdi/*.json"):
            first, second = identities(base / "grants" / grant.id)
            assert first == second, specification
        mine = store.GrantStore(base / "grants", base / "cdi")
        mine.collect(set)
        assert not list((base / "grants").iterdir())
        assert not list((base / "cdi").glob("*.json"))
        mine.close()
        if not died:
            break
    else:
        pytest.fail("there was no end")
    assert step > 60
