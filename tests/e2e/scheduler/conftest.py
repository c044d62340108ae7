"""Fixtures: the extender as a process, and kube-scheduler configured as in docs/scheduler.md."""

import extenders
import pytest


@pytest.fixture(scope="session")
def running(tmp_path_factory, _cluster):
    folder = tmp_path_factory.mktemp("scheduler")
    made = extenders.Extender(folder, "--resync", "5")
    made.prepare()
    made.start()
    extenders.write_scheduler(made.config)
    extenders.restart_scheduler(made.config)
    try:
        yield made
    finally:
        extenders.restart_scheduler(None)
        made.stop()
        made.remove()
    said = made.log.read_text()  # the shipped RBAC rules suffice
    # A freshly started API server has not loaded the RBAC rules yet.
    assert " 403 " not in said or not made.undisturbed
    assert "Traceback" not in said


@pytest.fixture
def extender(running):
    return running
