"""Fixtures: the extender as a process, and kube-scheduler configured as in docs/scheduler.md."""

import extenders
import pytest


@pytest.fixture(scope="session")
def running(tmp_path_factory, _cluster):
    with extenders.running(tmp_path_factory.mktemp("scheduler")) as made:
        yield made


@pytest.fixture
def extender(running):
    return running
