"""The folder of a release, made of this checkout's wheels and signed with a throwaway key."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import distribution
import documented
import pytest
import release
import yaml

from pyvgpu.cli import manifests

from .conftest import DIST

pytestmark = pytest.mark.wheels
URL = "https://downloads.example/pyvgpu"
DEPLOY = Path(distribution.__file__).parent


def new_key(file, *algorithm):
    command = ["openssl", "genpkey", *algorithm, "-out", file]
    subprocess.run(command, check=True, capture_output=True)
    return file


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
    return new_key(tmp_path_factory.mktemp("key") / "key.pem", *curve)


@pytest.fixture(scope="module")
def released(wheels, key, tmp_path_factory):
    """Assemble a release; the images are those of `make images`, or made now."""
    dist, folder = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("release")
    for file in (*wheels.values(), *DIST.glob("pyvgpu-[0-9]*.tar.gz")):
        os.link(file, dist / file.name)
    wheel = wheels[sysconfig.get_platform().removeprefix("linux-")]
    images = [DIST / f"{name}.tar" for name in distribution.IMAGES]
    if all(image.exists() for image in images):
        for image in images:
            shutil.copy(image, dist)
    else:
        subprocess.run([sys.executable, DEPLOY / "images.py", dist, wheel], check=True)
    # Of this environment instead of the wheel's own, which pip would have to install again.
    release.bill(dist, Path(sys.executable), wheel.name.split("-")[1])
    distribution.assemble(dist, folder, key, URL)
    return folder


@pytest.fixture
def copy(released, tmp_path):
    """Return a copy of the release, to damage it; its large files are links."""

    def take(source, target):
        if os.path.getsize(source) > 1 << 20:  # noqa: PTH202 - called with names
            os.link(source, target)
        else:
            shutil.copy(source, target)

    return shutil.copytree(released, tmp_path / "release", copy_function=take)


def found(folder, key):
    return distribution.problems(folder, folder / distribution.PUBLIC)


def test_assembled_release_is_consistent(released, key):
    assert found(released, key) == []
    assert {file.stat().st_size > 0 for file in released.iterdir()} == {True}


def test_commands_of_the_page_verify_it(released):
    page = documented.ROOT / "docs/release.md"
    (step,) = [text for mark, _, text in documented.blocks(page) if mark == "release"]
    checked = subprocess.run(["sh", "-ec", step], cwd=released, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    first, *files = checked.stdout.splitlines()
    assert first == "Verified OK"
    assert sorted(files) == sorted(
        f"{file.name}: OK"
        for file in released.iterdir()
        if file.name not in (distribution.SUMS, distribution.SIGNATURE)
    )


def test_plugin_runs_from_its_archive_with_its_own_python(released, tmp_path):
    with tarfile.open(next(released.glob("kubectl-vgpu-*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="tar")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "kubectl-vgpu"  # krew links the program, too
    program.symlink_to(tmp_path / "kubectl-vgpu")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    shown = subprocess.run([program, "--help"], env=environment, capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "explain" in shown.stdout
    command = [program, "ps", "--kubeconfig", "/nowhere/config"]
    refused = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert refused.returncode in range(64, 79)
    assert "/nowhere/config" in refused.stderr


def test_helm_reads_the_chart(released):
    helm = shutil.which("helm", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if helm is None:
        pytest.skip("needs helm (make .venv/.cluster-tools)")
    (chart,) = released.glob("pyvgpu-*.tgz")
    shown = subprocess.run([helm, "show", "chart", chart], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert yaml.safe_load(shown.stdout)["version"] == release.version()
    command = [helm, "template", "pyvgpu", chart, "--kube-version", manifests.KUBERNETES]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.stdout.count("kind: DaemonSet") >= 2, made.stderr


def test_missing_and_surplus_files_are_found(copy, key):
    (bill,) = copy.glob("*.cdx.json")
    bill.unlink()
    (copy / "notes.txt").write_text("x")
    distribution.seal(copy, key)
    assert [problem for problem in found(copy, key) if "cdx" in problem]
    assert [problem for problem in found(copy, key) if problem.startswith("notes.txt: ")]


def test_changed_file_is_found(copy, key):
    (chart,) = copy.glob("pyvgpu-*.tgz")
    chart.write_bytes(chart.read_bytes() + b"x")
    (problem,) = found(copy, key)
    assert problem.startswith(f"{chart.name}: its SHA-256 is ")


def test_signature_by_another_key_is_found(copy, tmp_path):
    other = new_key(tmp_path / "other.pem", "-algorithm", "RSA")
    public = tmp_path / "public.pem"
    shutil.copy(copy / distribution.PUBLIC, public)
    distribution.seal(copy, other)
    (problem,) = distribution.problems(copy, public)
    assert problem.startswith(f"{distribution.SIGNATURE}: is not a signature of SHA256SUMS")


def test_krew_manifest_of_another_archive_is_found(copy, key):
    manifest = copy / distribution.KREW
    said = yaml.safe_load(manifest.read_text())
    said["spec"]["platforms"][0]["sha256"] = "0" * 64
    said["spec"]["version"] = "v9.9.9"
    manifest.write_text(yaml.safe_dump(said))
    distribution.seal(copy, key)
    problems = found(copy, key)
    assert len(problems) == 2
    assert all(problem.startswith(distribution.KREW) for problem in problems)


def test_files_of_another_version_are_found(copy, key):
    (sdist,) = (file for file in copy.glob("pyvgpu-*.tar.gz"))
    sdist.rename(copy / "pyvgpu-9.9.9.tar.gz")
    (image,) = copy.glob("pyvgpu-fast-exit-*.oci.tar")
    image.rename(copy / image.name.replace(release.version(), "9.9.9"))
    distribution.seal(copy, key)
    versions, named = found(copy, key)
    assert "9.9.9" in versions
    assert "pyvgpu-fast-exit-9.9.9" in named


@pytest.mark.parametrize(
    ("url", "algorithm", "wrong"),
    [
        pytest.param(URL, ["RSA"], [], id="rsa"),
        pytest.param("", ["RSA"], ["URL='': must be"], id="no address"),
        pytest.param("http://x/y", ["RSA"], ["URL='http://x/y': must be"], id="without TLS"),
        pytest.param(URL, None, ["KEY='/nowhere': must be"], id="no key"),
    ],
)
def test_key_and_address_are_checked_first(url, algorithm, wrong, tmp_path):
    file = new_key(tmp_path / "key", "-algorithm", *algorithm) if algorithm else "/nowhere"
    problems = distribution.unready(str(file), url)
    assert len(problems) == len(wrong)
    assert all(problem.startswith(begin) for problem, begin in zip(problems, wrong, strict=True))
