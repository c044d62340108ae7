"""Templates of claims: made before the pods that name them, collected when nobody does."""

import datetime
import threading

import pytest
import waiting

from pyvgpu import errors
from pyvgpu.controller.claims import collecting, making, templates
from pyvgpu.kube import informer

NOW = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
NAME, OTHER = "pyvgpu-share-1", "pyvgpu-share-2"
SPEC = {"devices": {}}


def minutes(count):
    return datetime.timedelta(minutes=count)


def known(name=NAME, used=NOW, namespace="team"):
    return templates.Template(namespace, name, "u", "1", used)


def thing(name=NAME, ago=0):
    used = datetime.datetime.now(datetime.UTC) - minutes(ago)
    noted = {"pyvgpu.io/used": used.isoformat()}
    metadata = {"namespace": "team", "name": name, "uid": "u", "annotations": noted}
    return {"metadata": metadata, "spec": {"spec": SPEC}}


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("2026-11-22T12:00:00Z", NOW),
        ("2026-11-22T13:00:00+01:00", NOW),
        ("2026-11-22T12:00:00", NOW),
        ("garbage", datetime.datetime.fromtimestamp(0, datetime.UTC)),
        (None, datetime.datetime.fromtimestamp(0, datetime.UTC)),
    ],
)
def test_when_it_was_used_is_read(text, used):
    noted = {"annotations": {} if text is None else {"pyvgpu.io/used": text}}
    assert templates.read({"metadata": noted}).used == used


@pytest.mark.parametrize(
    ("template", "noted"),
    [
        (None, False),
        (known(), True),
        (known(used=NOW - minutes(9)), True),
        (known(used=NOW - minutes(11)), False),
        (known(used=NOW + minutes(9)), True),  # clocks differ
        (known(used=NOW + minutes(99)), False),
    ],
)
def test_a_use_that_was_noted_lately_is_not_noted_again(template, noted):
    assert templates.is_noted(template, NOW) is noted


def test_those_go_that_nobody_needed_for_long_and_no_pod_names():
    listed = [
        known(used=NOW - minutes(61)),
        known(OTHER, NOW - minutes(59)),
        known("somebodys", NOW - minutes(999)),
        known(OTHER, NOW - minutes(61), "other"),
    ]
    old = templates.old(listed, NOW)
    assert {space: [it.name for it in those] for space, those in old.items()} == {
        "team": [NAME],
        "other": [OTHER],
    }
    assert templates.unused(old["team"], {NAME}) == []
    assert templates.unused(old["team"], {OTHER}) == old["team"]


def test_no_template_goes_while_a_use_that_was_noted_may_be_relied_on():
    assert templates.KEPT >= 3 * templates.NOTED


@pytest.fixture
def maker(small):
    made = making.Maker(small[1], informer.Counting())
    stop = threading.Event()
    threading.Thread(target=made.run, args=(stop,)).start()
    waiting.wait_until(lambda: made.synced)
    yield made
    stop.set()


PATH = templates.path("team", NAME)


def test_a_template_is_made_once_and_then_known(small, maker):
    api, _ = small
    maker.ensure("team", {NAME: SPEC}, False)
    made = api.read(PATH)
    assert made["spec"] == {"spec": SPEC}
    assert "pyvgpu.io/claim-template" in made["metadata"]["labels"]
    waiting.wait_until(lambda: maker._seen.get(f"team/{NAME}"))
    before = len(api.asked)
    maker.ensure("team", {NAME: SPEC}, False)
    assert len(api.asked) == before


def test_one_that_was_used_long_ago_is_noted_and_stays_what_it_is(small, maker):
    api, _ = small
    api.put(PATH, thing(ago=30))
    waiting.wait_until(lambda: maker._seen.get(f"team/{NAME}"))
    maker.ensure("team", {NAME: {"devices": "others"}}, False)
    assert templates.is_noted(templates.read(api.read(PATH)), datetime.datetime.now(datetime.UTC))
    assert api.read(PATH)["spec"] == {"spec": SPEC}


def test_one_that_somebody_deletes_is_made_again(small, maker):
    api, _ = small
    maker.ensure("team", {NAME: SPEC}, False)
    waiting.wait_until(lambda: maker._seen.get(f"team/{NAME}"))
    api.delete(PATH)
    waiting.wait_until(lambda: not maker._seen.get(f"team/{NAME}"))
    maker.ensure("team", {NAME: SPEC}, False)
    assert api.read(PATH)


def test_one_that_another_of_us_makes_meanwhile_is_as_good(small, maker):
    api, _ = small
    api.refusing["POST"] = [409]
    maker.ensure("team", {NAME: SPEC}, False)
    assert ("POST", templates.path("team")) in api.asked


@pytest.mark.parametrize(
    ("method", "code", "kind"),
    [
        ("PATCH", 500, errors.UnavailableError),
        ("POST", 429, errors.UnavailableError),
        ("POST", 403, errors.PermissionDeniedError),
        ("POST", 422, errors.PermissionDeniedError),
    ],
)
def test_what_the_api_server_refuses_is_said(small, maker, method, code, kind):
    small[0].refusing[method] = [code]
    with pytest.raises(kind, match=f"template {NAME} of its claim could not"):
        maker.ensure("team", {NAME: SPEC}, False)


def test_a_dry_run_asks_for_a_dry_run(small, maker):
    api, _ = small
    api.refusing["POST"] = [403]
    with pytest.raises(errors.PermissionDeniedError):
        maker.ensure("team", {NAME: SPEC}, True)
    maker.ensure("team", {NAME: SPEC}, True)
    assert not api.under(templates.path("team"))
    api.put(PATH, thing(ago=30))
    waiting.wait_until(lambda: maker._seen.get(f"team/{NAME}"))
    before = api.read(PATH)
    maker.ensure("team", {NAME: SPEC}, True)
    assert api.read(PATH) == before


@pytest.fixture
def collector(small):
    counted = []
    made = collecting.Collector(small[1], lambda: True, lambda: counted.append(1))
    made.counted = counted
    return made


def pod(template):
    return {"spec": {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": template}]}}


def test_what_no_pod_names_is_collected_and_all_else_stays(small, collector):
    api, _ = small
    for name, ago in ((NAME, 99), (OTHER, 99), ("pyvgpu-share-3", 1)):
        api.put(templates.path("team", name), thing(name, ago))
    for number in range(4):  # more than a page
        api.put(f"/api/v1/namespaces/team/pods/p{number}", {"spec": {}})
    api.put("/api/v1/namespaces/team/pods/q", pod(OTHER))
    api.put("/api/v1/namespaces/other/pods/q", pod(NAME))
    collector.sweep()
    left = {it["metadata"]["name"] for it in api.under(templates.path("team"))}
    assert left == {OTHER, "pyvgpu-share-3"}
    assert len(collector.counted) == 1


def test_one_that_is_needed_while_it_is_looked_at_stays(small, collector):
    api, _ = small
    api.put(PATH, thing(ago=99))
    read = templates.unused

    def late(candidates, named):
        api.put(PATH, thing())
        return read(candidates, named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(templates, "unused", late)
        collector.sweep()
    assert api.read(PATH)
    assert not collector.counted


def test_who_does_not_hold_the_lease_deletes_nothing(small):
    api, connection = small
    api.put(PATH, thing(ago=99))
    collecting.Collector(connection, lambda: False, lambda: None).sweep()
    assert api.read(PATH)


def test_a_sweep_that_fails_is_tried_again(small, monkeypatch):
    api, connection = small
    monkeypatch.setattr(collecting, "AGAIN_SECONDS", 0.05)
    api.put(PATH, thing(ago=99))
    api.refusing["GET"] = [500]
    stop = threading.Event()
    made = collecting.Collector(connection, lambda: True, stop.set)
    made.run(stop)
    assert not api.under(templates.path("team"))
