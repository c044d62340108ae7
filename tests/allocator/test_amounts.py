"""Amounts of resources: valid numbers, and suggestions for sizes and too large numbers."""

import pytest

from pyvgpu import errors
from pyvgpu.allocator import amounts

NAME = "pyvgpu.io/vmemory"
MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [("16", 16), (16, 16), ("0", 0), ("1k", 1000), ("640k", 640_000), ("2M", 2_000_000)],
)
def test_numbers_in_the_format_of_the_api_server(text, expected):
    assert amounts.units(text, NAME, 256 * MIB) == expected
    assert amounts.whole(text, NAME) == expected


@pytest.mark.parametrize(
    ("text", "unit", "meant"),
    [
        ("4Gi", 256 * MIB, "counts units of 256MiB and .*; 4Gi is 16"),
        ("4096Mi", 256 * MIB, "4096Mi is 16"),
        ("300Mi", 256 * MIB, "300Mi is 2"),
        ("1.5Gi", 256 * MIB, "1.5Gi is 6"),
        ("256Mi", 256 * MIB, "256Mi is 1 \\(or pyvgpu.io/vmemory-mib: 256\\)$"),
        ("1.5Gi", 256 * MIB, "1.5Gi is 6 \\(or pyvgpu.io/vmemory-mib: 1536\\)$"),
        ("1Ki", 256 * MIB, "a number without a suffix, such as 16$"),
        ("255Mi", 256 * MIB, "a number without a suffix, such as 16$"),
        ("0Gi", 256 * MIB, "a number without a suffix, such as 16$"),
        ("1Ti", 256 * MIB, "1Ti is 4096"),
        ("4Gi", MIB, "counts units of 1MiB and .*; 4Gi is 4096"),
        ("4Gi", 1 << 30, "counts units of 1GiB and .*; 4Gi is 4"),
        ("4Gi", None, r"counts units of 256MiB \(the default\) .*; 4Gi is 16"),
    ],
)
def test_a_size_is_refused_with_the_equivalent_number(text, unit, meant):
    with pytest.raises(errors.UsageError, match=f"{NAME} '{text}'.*{meant}"):
        amounts.units(text, NAME, unit)


@pytest.mark.parametrize("text", ["1.5", "1500m", "-1", "1e3", "4GiB", "", "x", "1Kb", "9" * 40])
def test_fractions_are_refused(text):
    for read in (amounts.whole, lambda written, name: amounts.units(written, name, MIB)):
        with pytest.raises(errors.UsageError, match="must be a whole number, such as"):
            read(text, NAME)


@pytest.mark.parametrize(
    ("unit", "example"), [(256 * MIB, 16), (MIB, 4096), (1 << 30, 4), (8 << 30, 1), (None, 16)]
)
def test_the_example_is_a_usual_amount_in_that_unit(unit, example):
    with pytest.raises(errors.UsageError, match=f"must be a whole number, such as {example}$"):
        amounts.units("1.5", NAME, unit)


def test_other_resources_get_no_proposal_in_mebibytes():
    with pytest.raises(errors.UsageError, match="4Gi is 16$"):
        amounts.units("4Gi", "tencent.com/vcuda-memory", 256 * MIB)


@pytest.mark.parametrize("text", ["1Ki", "25Ki", "4Gi"])
def test_sizes_of_other_resources_are_not_numbers(text):
    with pytest.raises(errors.UsageError, match="must be a whole number, such as 50"):
        amounts.whole(text, "pyvgpu.io/vcore")


@pytest.mark.parametrize(
    ("count", "unit", "devices", "said"),
    [
        (
            4096,
            256 * MIB,
            1,
            "'4096': 4096 units of 256MiB are 1TiB; no GPU has that much; 4096 MiB are 16 units "
            r"\(or pyvgpu.io/vmemory-mib: 4096\)$",
        ),
        (4294967296, 256 * MIB, 1, "4294967296 bytes are 16 units "),
        (268435456, 256 * MIB, 1, "268435456 bytes are 1 unit "),
        (4_000_000, 256 * MIB, 1, "no GPU has that much; ask for less, such as 16$"),
        (16384, 256 * MIB, 4, "are 1TiB on each of 4 devices; .*16384 MiB are 64 units "),
        (
            1 << 32,
            MIB,
            1,
            "units of 1MiB are 4096TiB.*4294967296 bytes are 4096 units ",
        ),
    ],
)
def test_more_than_a_device_has_is_refused_with_a_suggestion(count, unit, devices, said):
    with pytest.raises(errors.UsageError, match=said):
        amounts.check_units(count, unit, devices, NAME)


@pytest.mark.parametrize(
    ("count", "unit", "devices"),
    [
        (4095, 256 * MIB, 1),
        (16383, 256 * MIB, 4),
        (8 * 288 * 1024, MIB, 8),
        (0, 256 * MIB, 1),
    ],
)
def test_amounts_that_fit_a_device_are_accepted(count, unit, devices):
    amounts.check_units(count, unit, devices, NAME)
