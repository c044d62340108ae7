"""The tested platforms in README.md's Status section agree with the tests and records."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def status():
    """Return the Status section of README.md, on one line."""
    (found,) = re.findall(r"^## Status\n(.*?)^## ", (ROOT / "README.md").read_text(), re.M | re.S)
    return " ".join(found.split())


def test_driver_releases_match_the_tests(status):
    spec = importlib.util.spec_from_file_location("drivers", ROOT / "tests/drivers/conftest.py")
    drivers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drivers)
    first, last = min(drivers.PACKAGES), max(drivers.PACKAGES)
    assert f"driver releases {first} to {last}, on a machine without a GPU" in status


def test_kubernetes_release_matches_the_e2e_cluster(status):
    script = (ROOT / "tests/e2e/cluster/cluster").read_text()
    (release,) = re.findall(r"^NEWEST=(\d+\.\d+)\.", script, re.M)
    assert f"a real Kubernetes {release} " in status


def test_commands_are_targets_of_the_makefile(status):
    named = re.findall(r"`make ([-a-z0-9]+)`", status)
    assert named == ["test", "test-drivers", "e2e", "gpu-kit", "test-gpu"]
    targets = re.findall(r"^([-a-z0-9]+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(named) <= set(targets)


def test_tried_gpus_match_the_records(status):
    records = [
        json.loads(path.read_text()) for path in (ROOT / "benchmarks/results").rglob("*.json")
    ]
    drivers = {record["driver"] for record in records if "driver" in record}
    assert drivers, "no benchmark names its driver"
    assert all(driver.startswith("simulated ") for driver in drivers), drivers
    gpus = list((ROOT / "benchmarks/results/gpu").glob("*.json"))
    assert ("has not run on a GPU yet" in status) == (not gpus)
    if gpus:
        (counted,) = re.findall(r"pyvgpu ran on (\w+) GPUs? so far", status)
        assert counted == ["no", "one", "two", "three", "four"][len(gpus)]
