import dataclasses

import pytest

from pyvgpu import errors, quota
from pyvgpu.slurm import shards

MIB = 1 << 20
GIB = 1 << 30
SLURMD = """\
slurmd: Gres Name=shard Type=(null) Count=8 Index=0 ID=1918986455 File=/dev/nvidia0 (null)
slurmd: Gres Name=gpu Type=(null) Count=1 Index=0 ID=7696487 File=/dev/nvidia0 (null)
slurmd: Gres Name=shard Type=h100 Count=20 Index=3 ID=1918986455 File=/dev/nvidia13 Links=0,-1
slurmd: Gres Name=gpu Type=h100 Count=1 Index=3 ID=7696487 File=/dev/nvidia13 Links=0,-1
"""


@pytest.mark.parametrize(
    ("asked", "total", "memory", "expected"),
    [
        pytest.param(2, 8, 80 * GIB, shards.Entitlement(25, 20 * GIB), id="a quarter"),
        pytest.param(
            8, 8, 80 * GIB + 5, shards.Entitlement(100, 80 * GIB + 5), id="all, to the byte"
        ),
        pytest.param(1, 3, 10 * MIB, shards.Entitlement(33, 3 * MIB), id="rounded down"),
        pytest.param(2, 200, 200 * GIB, shards.Entitlement(1, 2 * GIB), id="many shards"),
    ],
)
def test_quota_is_in_proportion_to_the_shards(asked, total, memory, expected):
    assert shards.entitled(asked, total, memory) == expected


@pytest.mark.parametrize(
    ("asked", "total", "said"),
    [
        (9, 8, "9 shards: the GPU has 8, so must be at most --gres=shard:8"),
        (1, 150, "1 of 150 shards: must be at least 1 percent of the GPU, such as --gres=shard:2"),
    ],
)
def test_shards_that_give_no_quota_are_refused(asked, total, said):
    with pytest.raises(errors.UsageError, match=said):
        shards.entitled(asked, total, 80 * GIB)


def test_all_shards_together_never_exceed_the_device():
    for total in range(1, 101):
        one = shards.entitled(1, total, 81559 * MIB)
        assert one.vcore * total <= 100
        assert one.vmemory * total <= 81559 * MIB


def test_slurmd_shows_the_shards_of_each_gpu():
    found = shards.parse_gres(SLURMD)
    assert found == {0: 8, 13: 20}
    assert shards.of_device(found, 13) == 20
    with pytest.raises(errors.UnavailableError, match=r"no shards of GPU 1 \(known: 0: 8, 13: 20"):
        shards.of_device(found, 1)


@pytest.mark.parametrize("output", ["", "slurmd: error: nothing", "Gres Name=shard Count=8"])
def test_other_output_of_slurmd_is_no_shards(output):
    with pytest.raises(errors.UnavailableError, match=r"known: none"):
        shards.of_device(shards.parse_gres(output), 0)


def test_request_has_slurms_variables_and_the_users_options():
    assert shards.parse_request("4", "1", "30", "8GiB") == shards.StepRequest(4, 1, 30, 8 * GIB)
    assert shards.parse_request(None, None, None, None) == shards.StepRequest()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("4", "0,1", None, None), "4 shards of the GPUs 0,1: shards must be of one GPU"),
        (("4", "", None, None), "4 shards of the GPUs that Slurm did not name"),
        (("x", "0", None, None), "SLURM_SHARDS_ON_NODE=x: must be a number"),
        (("0", "0", None, None), "SLURM_SHARDS_ON_NODE=0: must be a number"),
        (("4", "0", "0", None), "--vcore '0': must be a whole percentage"),
        (("4", "0", None, "8GB!"), "--vmemory '8GB!': must be a size"),
    ],
)
def test_invalid_request_is_refused(given, said):
    with pytest.raises(errors.UsageError, match=said):
        shards.parse_request(*given)


def test_request_survives_its_document():
    request = shards.StepRequest(4, 1, 30, 8 * GIB)
    assert shards.load(shards.dump(request)) == request
    with pytest.raises(errors.DataError, match="not a step's request"):
        shards.load({**shards.dump(request), "vcore": "30"})


def test_explicit_values_are_at_most_the_part_of_the_shards():
    most = shards.Entitlement(25, 20 * GIB)
    held = shards.HeldShards(2, 8, 0)
    assert shards.limited(held, most) == quota.Quota(25, 20 * GIB)
    less = dataclasses.replace(held, vcore=25, vmemory=GIB)
    assert shards.limited(less, most) == quota.Quota(25, GIB)
    with pytest.raises(errors.UsageError, match=r"--vcore 26: must be at most 25"):
        shards.limited(dataclasses.replace(held, vcore=26), most)
    with pytest.raises(errors.UsageError, match=r"--vmemory 21GiB: must be at most 20GiB"):
        shards.limited(dataclasses.replace(held, vmemory=21 * GIB), most)


def test_steps_of_a_job_share_its_quota_and_a_contradiction_is_refused():
    held = shards.HeldShards(4, 8, 0, vcore=30)
    first = shards.StepRequest(4, 0, vcore=30)
    for joining in (first, shards.StepRequest(2, 0), shards.StepRequest()):
        shards.check_joins(joining, held, 7)
    for change, said in (
        ({"minor": 1}, r"shards of GPU 1: the quota of job 7 on this node is of GPU 0"),
        ({"vcore": 20}, r"--vcore 20: the steps of job 7 share one quota .* with --vcore 30"),
        ({"vmemory": GIB}, r"--vmemory 1073741824: .* with --vmemory the part of its shards"),
    ):
        with pytest.raises(errors.UsageError, match=said):
            shards.check_joins(dataclasses.replace(first, **change), held, 7)


def test_answer_has_a_line_for_each_change_of_a_task():
    lines = shards.answer_lines("/t/lib64", {"A": "b"}, [("/layer", "/closed", "/usr/lib")])
    assert lines == ["path /t/lib64", "env A\tb", "mount /layer\t/closed\t/usr/lib"]
