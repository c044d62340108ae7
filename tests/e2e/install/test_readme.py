"""The cluster lines of README.md, from the images to the first pod, as they stand.

Only what the test machine lacks differs: the host paths of the rig, the image of the examples,
which no registry has, and `make images`, which `make e2e` has just done.
"""

import time

import charts
import documented
import example_files
import pytest
import rig

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

README = "../README.md"


@pytest.fixture
def reader(images, tmp_path):
    """Return a reader of the page in a folder with the files of a checkout."""
    example_files.make_image(tmp_path)
    charts.clear()
    with rig.space() as space:
        made = example_files.Reader(tmp_path, space.name)
        made.begin()
        made.do("kubectl delete configmap examples")
        (tmp_path / "deploy").symlink_to(documented.ROOT / "deploy")
        yield made
    charts.uninstall()


def test_lines_of_the_readme_lead_to_a_refused_allocation(reader, record_property):
    values = {key: value for key, value in charts.values().items() if key != "simulate"}
    file = charts.write(reader.folder / "rig.yaml", values)
    (shown,) = (
        text
        for _, language, text in documented.blocks(documented.ROOT / "README.md")
        if language == "text" and "4096 MiB" in text
    )
    begun = time.monotonic()
    config = {"KUBECONFIG": str(reader.kubeconfig)}
    said = [
        documented.follow(step, reader.folder, file, **config) for step in documented.steps(README)
    ]
    record_property("seconds", round(time.monotonic() - begun, 1))
    assert said[-1].endswith(shown)
