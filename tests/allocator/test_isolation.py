import pytest

from pyvgpu import errors, quota
from pyvgpu.allocator import isolation


@pytest.mark.parametrize(
    ("annotations", "read"),
    [
        pytest.param({}, quota.Isolation.QUOTA, id="none"),
        pytest.param({"pyvgpu.io/isolation": "quota"}, quota.Isolation.QUOTA, id="quota"),
        pytest.param({"pyvgpu.io/isolation": "hardware"}, quota.Isolation.HARDWARE, id="hardware"),
    ],
)
def test_an_annotation_names_the_isolation(annotations, read):
    assert isolation.read(annotations) is read


def test_mps_is_refused_in_a_cluster():
    with pytest.raises(errors.UsageError, match="mps: must be quota or hardware in a cluster"):
        isolation.read({"pyvgpu.io/isolation": "mps"})


@pytest.mark.parametrize("text", ["", "MPS", "mig", "2"])
def test_another_word_is_refused_with_the_valid_ones(text):
    with pytest.raises(errors.UsageError, match="must be quota, hardware or mps, such as quota"):
        isolation.read({"pyvgpu.io/isolation": text})
