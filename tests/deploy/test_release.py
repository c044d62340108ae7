"""Release checks: changelog, chart and git tag agree on one version."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import release

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
NOT_OURS = ("landing/3", "ci-17", "session-2026-11-22T10", "x1y", "v1", "2026.11.22", "v0.1.0-rc")

DAY = "## [0.2.0] - 2026-12-01\n\n### Added\n\n## [0.1.0] - 2026-11-22\n"
OPEN = DAY.replace("2026-12-01", "unreleased")
CHART = ("0.2.0", "0.2.0")


def test_checkout_is_consistent():
    assert release.disagreements(release.changelog(), release.charted()) == []


@pytest.mark.parametrize(
    ("text", "chart", "tagged", "wrong"),
    [
        pytest.param(DAY, CHART, ["v0.2.0"], [], id="a release"),
        pytest.param(OPEN, CHART, ["v0.2.0"], ["must have its date"], id="without its day"),
        pytest.param(DAY, CHART, ["v0.3.0"], ["tag v0.3.0: must be v0.2.0"], id="other tag"),
        pytest.param(
            DAY, CHART, ["v0.2.0", "v0.1.0"], ["v0.2.0 and v0.1.0: must be v0.2.0"], id="two tags"
        ),
        pytest.param(DAY, CHART, [], ["no tag"], id="no tag"),
        pytest.param(
            DAY,
            ("0.1.0", "0.2.0"),
            ["v0.2.0"],
            ["Chart.yaml version 0.1.0: must be 0.2.0"],
            id="chart",
        ),
        pytest.param(
            DAY, ("0.2.0", "0.1.0"), ["v0.2.0"], ["appVersion 0.1.0: must be 0.2.0"], id="program"
        ),
        pytest.param(
            OPEN.replace("2026-11-22", "unreleased"),
            CHART,
            [],
            ["no tag", "[0.1.0] - unreleased: must be a date"],
            id="two that are open",
        ),
        pytest.param(
            DAY.replace("[0.1.0]", "[0.3.0]"), CHART, ["v0.2.0"], ["must descend"], id="order"
        ),
        pytest.param(
            DAY.replace("[0.1.0]", "[first]"), CHART, ["v0.2.0"], ["[first]: must be"], id="name"
        ),
        pytest.param("", CHART, ["v0.2.0"], ["must be ", "must be ", "tag"], id="nothing"),
    ],
)
def test_release_has_one_version_everywhere(text, chart, tagged, wrong):
    found = release.problems(text, chart, tagged)
    assert len(found) == len(wrong), found
    assert all(part in said for part, said in zip(wrong, found, strict=True)), found


class Checkout:
    """A repository with this project's settings and one commit."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            "GIT_CONFIG_GLOBAL": os.devnull,
        }
        shutil.copy(PROJECT, folder)
        self.git("init", "--quiet")
        self.git("add", "pyproject.toml")
        self.commit()

    def git(self, *words):
        author = ("-c", "user.name=author", "-c", "user.email=author@example.com")
        command = ["git", *author, *words]
        subprocess.run(command, cwd=self.folder, env=self.environment, check=True)

    def commit(self):
        self.git("commit", "--quiet", "--allow-empty", "--message", "more")

    def version(self, **changes):
        done = subprocess.run(
            [sys.executable, "-m", "setuptools_scm"],
            cwd=self.folder,
            env={**self.environment, **changes},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_version_is_the_tag_and_then_the_next_development_version(checkout):
    assert checkout.version() == "0.1.0.dev1"
    checkout.git("tag", "v0.1.0")
    assert checkout.version() == "0.1.0"
    checkout.commit()
    assert checkout.version() == "0.2.0.dev1"


def test_other_tags_are_ignored(checkout):
    for tag in NOT_OURS:
        checkout.git("tag", tag)
    assert checkout.version() == "0.1.0.dev1"
    checkout.git("tag", "v0.1.0")
    checkout.commit()
    for tag in NOT_OURS:
        checkout.git("tag", "--force", tag)
    assert checkout.version() == "0.2.0.dev1"


@pytest.mark.slow
def test_shallow_clone_and_detached_head_have_a_version(checkout, tmp_path):
    checkout.commit()
    checkout.git("checkout", "--quiet", "--detach")
    assert checkout.version() == "0.1.0.dev2"
    checkout.git("clone", "--quiet", "--depth", "1", checkout.folder.as_uri(), "shallow")
    checkout.folder /= "shallow"
    assert checkout.version() == "0.1.0.dev1"


def test_version_without_git_is_zero(checkout, tmp_path):
    (tmp_path / "nothing").mkdir()
    assert checkout.version(PATH=str(tmp_path / "nothing")) == "0.0.0"
    shutil.rmtree(tmp_path / ".git")
    assert checkout.version() == "0.0.0"
