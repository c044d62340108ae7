"""CronJobs keep running because their Jobs end.

Their clock has minutes only, so the CronJobs of both tests start at once.
"""

import datetime

import pytest
import rig
import sidecars

from pyvgpu.kube import apiserver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

POLICIES = ("Forbid", "Replace")
EVERY_MINUTE = "* * * * *"


def create(space, policy):
    """Create a CronJob that has missed the previous minute and so starts at once."""
    main, side = rig.container("main", "sleep 1"), sidecars.sidecar(rig.IGNORES_TERM)
    job = rig.job("j", sidecars.admitted(space, rig.pod("p", main, side)))
    spec = {"schedule": EVERY_MINUTE, "concurrencyPolicy": policy}
    template = {"metadata": {}, "spec": job["spec"]}
    name = policy.lower()
    made = {"metadata": {"name": name}, "spec": {**spec, "jobTemplate": template}}
    space.create("cronjobs", made)
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=2)
    status = {"status": {"lastScheduleTime": before.strftime("%Y-%m-%dT%H:%M:%SZ")}}
    path = space.path("cronjobs", name)
    space.server.call("PATCH", f"{path}/status", body=status, kind=apiserver.MERGE_PATCH)


@pytest.fixture(scope="module")
def crons(parts):
    with rig.space() as made:
        for policy in POLICIES:
            create(made, policy)
        yield made


@pytest.mark.parametrize("policy", POLICIES)
def test_cron_jobs_that_forbid_or_replace_keep_running(crons, policy):
    """Without the controller, Forbid would run once and never again, and Replace never succeed."""
    seen = set()

    def is_done_again(job):
        if is_of(job, policy.lower()) and rig.condition(job, "Complete"):
            seen.add(job["metadata"]["uid"])
        return len(seen) >= 2

    assert crons.until_any("jobs", "", is_done_again, seconds=150)


def is_of(job, cron):
    return [reference["name"] for reference in job["metadata"]["ownerReferences"]] == [cron]
