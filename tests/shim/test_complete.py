"""Every function of CUDA and NVML is either a hook or listed with the reason why it is none."""

import re

import complete
import headers
import hook_table


def declared():
    return headers.cuda_symbols(headers.read_cuda(headers.folders()))


def test_tables_agree_with_the_headers():
    assert len(declared()) > 700
    assert complete.disagreements(declared()) == []


def test_unreviewed_function_is_named():
    (line,) = complete.disagreements({*declared(), "cuMemAllocElsewhere"})
    assert line.startswith("cuMemAllocElsewhere: neither a hook nor in reviewed.def")


def test_function_in_both_tables_and_function_written_twice_are_named(monkeypatch):
    rows = [*hook_table.reviewed(), ("cuMemAlloc_v2", "why not"), ("cuDeviceGet", "again")]
    monkeypatch.setattr(hook_table, "reviewed", lambda _: rows)
    assert complete.disagreements(declared()) == [
        "cuMemAlloc_v2: a hook, so it must leave reviewed.def",
        "cuDeviceGet: twice in reviewed.def",
    ]


def test_every_function_has_a_reason_and_every_reason_has_functions():
    assert {"cuStreamGetCtx_v2_ptsz", "cuMemHostAlloc"} <= dict(hook_table.reviewed()).keys()
    text = (hook_table.SHIM / "cuda" / "reviewed.def").read_text()
    assert len(set(dict(hook_table.reviewed()).values())) == text.count("\nREVIEWED(")


def test_every_handler_of_the_life_cycle_is_called():
    folder = hook_table.SHIM
    text = "".join(
        path.read_text() for path in [*folder.rglob("*.c"), *folder.glob("../core/*.c")]
    )
    for event, parameter in (
        ("take_limits", r"const struct quota_limits \*limits"),
        ("open", "void"),
        ("after_fork", "void"),
        ("context_ended", r"const struct context \*\w+"),
    ):
        macro = event.upper()
        listed = re.findall(rf"^{macro}\((\w+)\)$", (folder / "lifecycle.def").read_text(), re.M)
        defined = re.findall(rf"^void (\w+)_{event}\({parameter}\)$", text, re.M)
        assert listed
        assert sorted(set(defined) - {"lifecycle"}) == sorted(listed)


def test_every_module_that_can_make_room_is_called():
    text = "".join(path.read_text() for path in hook_table.SHIM.rglob("*.c"))
    defined = re.findall(r"^int (\w+)_make_room\(unsigned device\)$", text, re.M)
    table = (hook_table.SHIM / "lifecycle.def").read_text()
    listed = re.findall(r"^MAKE_ROOM\((\w+)\)$", table, re.M)
    assert sorted(set(defined) - {"lifecycle"}) == sorted(listed) != []


def nvml_declared():
    return headers.nvml_symbols(headers.read(headers.folders(), "nvml.h"))


def test_tables_of_nvml_agree_with_its_header():
    assert len(nvml_declared()) > 400
    assert complete.disagreements(nvml_declared(), "nvml") == []


def test_unreviewed_nvml_function_is_named():
    (line,) = complete.disagreements({*nvml_declared(), "nvmlDeviceGetOthers"}, "nvml")
    assert line.startswith("nvmlDeviceGetOthers: neither a hook nor in reviewed.def")


def test_nothing_of_nvml_that_changes_a_device_is_left_to_the_driver():
    verbs = re.compile(r"Set[A-Z]|Reset|Clear|Create[A-Z]|Destroy|Remove|Modify|Update|Write")
    left = {name for name, _ in hook_table.reviewed("nvml") if verbs.search(name)}
    assert {name for name in left if "EventSet" not in name} == {
        "nvmlDeviceSetCpuAffinity",  # of the calling thread
        "nvmlDeviceClearCpuAffinity",
    }
