"""CronJobs that begin with the first test, since their clock has minutes only."""

from pathlib import Path

import pytest
import rig
import sidecars

HERE = Path(__file__).parent
EVERY_MINUTE = "* * * * *"


def cron_job(space, policy):
    """Create a CronJob that was due in each of the last minutes and begins at once."""
    main, side = rig.container("main", "sleep 1"), sidecars.sidecar(rig.IGNORES_TERM)
    job = rig.job("j", sidecars.admitted(space, rig.pod("p", main, side)))
    made = {
        "metadata": {"name": "cron"},
        "spec": {
            "schedule": EVERY_MINUTE,
            "concurrencyPolicy": policy,
            "jobTemplate": {"metadata": {}, "spec": job["spec"]},
        },
    }
    space.server.call("POST", space.path("cronjobs"), body=made)


@pytest.fixture(scope="session")
def crons(parts):
    with rig.space() as forbids, rig.space() as replaces:
        cron_job(forbids, "Forbid")
        cron_job(replaces, "Replace")
        yield forbids, replaces


@pytest.fixture(autouse=True)
def _early(request):
    """Let them begin, where the test that looks at them is still to come."""
    items = request.session.items
    if request.path.parent == HERE and any("crons" in it.fixturenames for it in items):
        request.getfixturevalue("crons")
