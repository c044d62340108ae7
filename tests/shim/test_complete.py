"""No function of CUDA is overlooked: it is a hook, or somebody wrote down why it is none."""

import complete
import headers
import hook_table


def declared():
    return headers.cuda_symbols(headers.read_cuda(headers.folders()))


def test_tables_agree_with_the_headers():
    assert len(declared()) > 700
    assert complete.disagreements(declared()) == []


def test_function_that_nobody_looked_at_is_named():
    (line,) = complete.disagreements({*declared(), "cuMemAllocElsewhere"})
    assert line.startswith("cuMemAllocElsewhere: neither a hook nor in reviewed.def")


def test_function_written_twice_is_named(monkeypatch):
    rows = [*hook_table.reviewed(), ("cuDeviceGet", "again")]
    monkeypatch.setattr(hook_table, "reviewed", lambda: rows)
    assert complete.disagreements(declared()) == ["cuDeviceGet: twice in reviewed.def"]


def test_every_function_has_a_reason_and_every_reason_has_functions():
    assert {"cuMemcpyDtoHAsync_v2_ptsz", "cuMemHostAlloc"} <= dict(hook_table.reviewed()).keys()
    text = (hook_table.CSRC / "cuda" / "reviewed.def").read_text()
    assert len(set(dict(hook_table.reviewed()).values())) == text.count("\nREVIEWED(")
