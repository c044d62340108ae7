"""Claim templates: created before the pods that name them, collected when no pod does."""

import datetime
import threading

import pytest
import waiting

from pyvgpu import errors
from pyvgpu.controller.claims import template_collector, template_maker, templates
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
def test_the_time_of_use_is_read(text, used):
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
def test_a_recent_use_is_not_noted_again(template, noted):
    assert templates.is_noted(template, NOW) is noted


def test_templates_unused_for_long_that_no_pod_names_are_collected():
    listed = [
        known(used=NOW - minutes(61)),
        known(OTHER, NOW - minutes(59)),
        known("users-own", NOW - minutes(999)),
        known(OTHER, NOW - minutes(61), "other"),
    ]
    old = templates.old(listed, NOW)
    assert {space: [one.name for one in those] for space, those in old.items()} == {
        "team": [NAME],
        "other": [OTHER],
    }
    assert templates.unused(old["team"], {NAME}) == []
    assert templates.unused(old["team"], {OTHER}) == old["team"]


def test_templates_are_kept_longer_than_a_noted_use_is_valid():
    assert templates.KEPT >= 3 * templates.NOTED


@pytest.fixture
def maker(small):
    made = template_maker.TemplateMaker(small[1], informer.Counting())
    stop = threading.Event()
    threading.Thread(target=made.run, args=(stop,)).start()
    waiting.wait_until(lambda: made.synced)
    yield made
    stop.set()


PATH = templates.path("team", NAME)


def test_a_template_is_created_once_and_then_cached(small, maker):
    api, _ = small
    maker.ensure("team", {NAME: SPEC}, False)
    made = api.read(PATH)
    assert made["spec"] == {"spec": SPEC}
    assert "pyvgpu.io/claim-template" in made["metadata"]["labels"]
    waiting.wait_until(lambda: maker._seen.get(f"team/{NAME}"))
    before = len(api.asked)
    maker.ensure("team", {NAME: SPEC}, False)
    assert len(api.asked) == before


def test_an_old_template_gets_a_new_time_of_use_and_keeps_its_spec(small, maker):
    api, _ = small
    api.put(PATH, thing(ago=30))
    waiting.wait_until(lambda: maker._seen.get(f"team/{NAME}"))
    maker.ensure("team", {NAME: {"devices": "others"}}, False)
    assert templates.is_noted(templates.read(api.read(PATH)), datetime.datetime.now(datetime.UTC))
    assert api.read(PATH)["spec"] == {"spec": SPEC}


def test_a_deleted_template_is_created_again(small, maker):
    api, _ = small
    maker.ensure("team", {NAME: SPEC}, False)
    waiting.wait_until(lambda: maker._seen.get(f"team/{NAME}"))
    api.delete(PATH)
    waiting.wait_until(lambda: not maker._seen.get(f"team/{NAME}"))
    maker.ensure("team", {NAME: SPEC}, False)
    assert api.read(PATH)


def test_a_template_created_by_another_replica_is_accepted(small, maker):
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
def test_a_refusal_of_the_api_server_is_reported(small, maker, method, code, kind):
    small[0].refusing[method] = [code]
    with pytest.raises(kind, match=f"template {NAME} of its claim could not"):
        maker.ensure("team", {NAME: SPEC}, False)


def test_a_dry_run_only_dry_runs_the_creation(small, maker):
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
    made = template_collector.TemplateCollector(small[1], lambda: True, lambda: counted.append(1))
    made.counted = counted
    return made


def pod(template):
    return {"spec": {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": template}]}}


def test_only_old_templates_that_no_pod_names_are_collected(small, collector):
    api, _ = small
    for name, ago in ((NAME, 99), (OTHER, 99), ("pyvgpu-share-3", 1)):
        api.put(templates.path("team", name), thing(name, ago))
    for number in range(4):  # more than a page
        api.put(f"/api/v1/namespaces/team/pods/p{number}", {"spec": {}})
    api.put("/api/v1/namespaces/team/pods/q", pod(OTHER))
    api.put("/api/v1/namespaces/other/pods/q", pod(NAME))
    collector.sweep()
    left = {template["metadata"]["name"] for template in api.under(templates.path("team"))}
    assert left == {OTHER, "pyvgpu-share-3"}
    assert len(collector.counted) == 1


def test_a_template_used_during_the_sweep_is_not_deleted(small, collector):
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


def test_a_replica_without_the_lease_deletes_nothing(small):
    api, connection = small
    api.put(PATH, thing(ago=99))
    template_collector.TemplateCollector(connection, lambda: False, lambda: None).sweep()
    assert api.read(PATH)


def test_a_failed_sweep_is_retried(small, monkeypatch):
    api, connection = small
    monkeypatch.setattr(template_collector, "AGAIN_SECONDS", 0.05)
    api.put(PATH, thing(ago=99))
    api.refusing["GET"] = [500]
    stop = threading.Event()
    made = template_collector.TemplateCollector(connection, lambda: True, stop.set)
    made.run(stop)
    assert not api.under(templates.path("team"))
