"""The containers example: two Podman containers share a simulated device without Kubernetes."""

import re
import secrets
import subprocess

import example_files
import podman_rig
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

IMAGE = "localhost/vgpu-examples:latest"
PARTS = ("small", "large")


@pytest.fixture
def environment(tmp_path):
    """Return the environment of a Podman with private storage that has the image."""
    made = podman_rig.environment(tmp_path)
    archive = tmp_path / "image.tar"
    example_files.write_image(archive, IMAGE, f"--file={example_files.PROGRAMS}=/examples")
    podman(made, "load", "--input", archive)
    yield made
    podman(made, "rmi", "--all", "--force")


def podman(environment, *arguments):
    command = ["podman", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_containers_have_their_shares_of_one_device(environment, tmp_path):
    script = (example_files.FOLDER / "containers.sh").read_text()
    for name in PARTS:  # run names are shared by the whole machine, and so by concurrent tests
        script = script.replace(f"--name {name} ", f"--name {name}-{secrets.token_hex(4)} ")
    done = subprocess.run(
        ["sh", "-c", script],
        env={**environment, "ENGINE": "podman", "SIMULATE": "h100"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(re.findall(r"free of (\d+) MiB", done.stdout)) == {"4096", "8192"}
    assert done.stdout.count("done, and the weights are right") == len(PARTS)
