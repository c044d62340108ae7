"""The claim example, followed as its head says."""

import example_files
import pytest
import webhooks

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.fixture
def reader(agent, space, tmp_path):
    example_files.make_image(tmp_path)
    made = example_files.Reader(tmp_path, space.name)
    made.begin()
    return made


def test_job_has_the_share_that_it_claims(reader):
    with webhooks.installed("dra/", setting="dra.enabled=true"):
        *_, said = reader.follow("claim.yaml")
    assert " of 4096 MiB" in said.splitlines()[0]
    assert "done, and the weights are right" in said
