import pytest

from pyvgpu import errors, quantity

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "size"),
    [
        pytest.param("1", 1, id="a byte"),
        pytest.param("2000000000", 2_000_000_000, id="plain bytes"),
        pytest.param("4Gi", 4 * GIB, id="Kubernetes"),
        pytest.param("512Mi", 512 << 20, id="Kubernetes, small"),
        pytest.param("1G", 10**9, id="decimal"),
        pytest.param("4e9", 4 * 10**9, id="exponent"),
        pytest.param("4GiB", 4 * GIB, id="common"),
        pytest.param("512MB", 512 * 10**6, id="common, decimal"),
        pytest.param("8 GiB", 8 * GIB, id="with a space"),
        pytest.param("1Ti", 1 << 40, id="a terabyte"),
    ],
)
def test_sizes_are_read(text, size):
    assert quantity.parse_size(text, "--vmemory") == size


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("-4GiB", "must be above zero", id="negative"),
        pytest.param("0", "must be above zero", id="zero"),
        pytest.param("0Gi", "must be above zero", id="zero with a unit"),
        pytest.param("0e3", "must be above zero", id="zero with an exponent"),
        pytest.param("1.5GiB", "must be a whole number", id="fraction"),
        pytest.param("0.5", "must be a whole number", id="part of a byte"),
        pytest.param("5.", "must be a whole number", id="a dot too many"),
        pytest.param("99999Pi", "is more than any device has", id="enormous"),
        pytest.param("1e99999", "is more than any device has", id="enormous exponent"),
        pytest.param("9" * 6000, "is more than any device has", id="thousands of digits"),
        pytest.param("4GiBB", "'GiBB' is not a unit", id="misspelt"),
        pytest.param("4gib", "did you mean 4GiB?", id="small letters"),
        pytest.param("512m", "did you mean 512Mi?", id="thousandths"),
        pytest.param("", "must be a size", id="nothing"),
        pytest.param("half", "must be a size", id="a word"),
        pytest.param("4 Gi B", "must be a size", id="torn"),
        pytest.param("0x10", "must be a size", id="hexadecimal"),
        pytest.param("٤GiB", "must be a size", id="other digits"),
        pytest.param("nan", "must be a size", id="not a number"),
        pytest.param("1_000", "must be a size", id="underscore"),
    ],
)
def test_bad_sizes_say_what_was_given_the_rule_and_an_example(text, problem):
    with pytest.raises(errors.UsageError) as caught:
        quantity.parse_size(text, "--vmemory")
    message = str(caught.value)
    assert problem in message
    assert message.startswith(f"--vmemory '{text[:30]}")
    assert "such as 4GiB" in message
    assert len(message) < 250


@pytest.mark.parametrize(("text", "vcore"), [("1", 1), ("50", 50), ("100", 100), ("007", 7)])
def test_vcore_is_read(text, vcore):
    assert quantity.parse_vcore(text, "--vcore") == vcore


@pytest.mark.parametrize(
    "text", ["0", "-1", "101", "0.5", "50%", "half", "", "9" * 5000, "1e1", " 5", "٥"]
)
def test_bad_vcore_says_the_rule_and_an_example(text):
    with pytest.raises(errors.UsageError, match="whole percentage of one device, from 1 to 100"):
        quantity.parse_vcore(text, "--vcore")


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("30%", "such as 50 (did you mean 30?)"),
        ("0.3", "such as 50 (did you mean 30?)"),
        (".05", "such as 50 (did you mean 5?)"),
        ("0.0", "such as 50"),
        ("250%", "such as 50"),
        ("12.5", "such as 50"),
    ],
)
def test_a_percent_sign_or_a_fraction_of_a_device_is_asked_about(text, end):
    with pytest.raises(errors.UsageError) as caught:
        quantity.parse_vcore(text, "--vcore")
    assert str(caught.value).endswith(end)


@pytest.mark.parametrize(
    ("size", "text"),
    [(2 * GIB, "2GiB"), (3 * GIB // 2, "1.5GiB"), (512 << 20, "512MiB"), (700, "700 bytes")],
)
def test_sizes_are_written_for_people(size, text):
    assert quantity.format_size(size) == text


@pytest.mark.parametrize("size", [1, 1023, 1 << 20, 3 * GIB // 2, 84943044608])
def test_exact_form_reads_back_as_the_same_bytes(size):
    assert quantity.parse_size(quantity.format_exact(size), "size") == size


@pytest.mark.parametrize(
    ("size", "question"),
    [
        (8, " (did you mean 8GiB?)"),
        (1023, " (did you mean 1023GiB?)"),
        (4096, " (did you mean 4096MiB?)"),
        (1 << 20, ""),
        (512 << 20, ""),
    ],
)
def test_a_number_without_a_unit_is_asked_about(size, question):
    assert quantity.meant(size) == question
