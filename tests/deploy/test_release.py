"""What a release must be: one version wherever one is said."""

import pytest
import release

DAY = "## [0.2.0] - 2026-12-01\n\n### Added\n\n## [0.1.0] - 2026-11-22\n"
OPEN = DAY.replace("2026-12-01", "unreleased")
CHART = ("0.2.0", "0.2.0")


def test_what_is_checked_out_agrees_with_itself():
    assert release.disagreements(release.changelog(), release.charted()) == []


@pytest.mark.parametrize(
    ("text", "chart", "tagged", "wrong"),
    [
        pytest.param(DAY, CHART, ["v0.2.0"], [], id="a release"),
        pytest.param(OPEN, CHART, ["v0.2.0"], ["must have its day"], id="without its day"),
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
            ["no tag", "[0.1.0] - unreleased: must be a day"],
            id="two that are open",
        ),
        pytest.param(
            DAY.replace("[0.1.0]", "[0.3.0]"), CHART, ["v0.2.0"], ["must go down"], id="order"
        ),
        pytest.param(
            DAY.replace("[0.1.0]", "[first]"), CHART, ["v0.2.0"], ["[first]: must be"], id="name"
        ),
        pytest.param("", CHART, ["v0.2.0"], ["must be ", "must be ", "tag"], id="nothing"),
    ],
)
def test_a_release_has_one_version_everywhere(text, chart, tagged, wrong):
    found = release.complaints(text, chart, tagged)
    assert len(found) == len(wrong), found
    assert all(part in said for part, said in zip(wrong, found, strict=True)), found
