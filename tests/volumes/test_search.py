"""The folders in which a driver is searched for, and the step that named each."""

import caches
import pytest

from pyvgpu.volumes import catalogue, root, search

Step = search.SearchStep


@pytest.fixture
def machine(tmp_path):
    for name, text in {
        "ld.so.conf": "/opt/first\ninclude ld.so.conf.d/*.conf\ninclude /etc/ld.so.conf\nlib\n",
        "ld.so.conf.d/b.conf": "/opt/b\n/opt/cached\n",
        "ld.so.conf.d/a.conf": "# a comment\n/opt/a # another\n\nhwcap 0 nosegneg\n",
    }.items():
        file = tmp_path / "etc" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def steps(path):
    found = search.search(root.Root.at(path))
    return {f"/{folder.relative_to(path)}": step for folder, step in found.steps.items()}, found


def test_the_steps_are_in_the_loaders_order(machine):
    line = caches.Line("libcuda.so.1", "/opt/cached/libcuda.so.1")
    (machine / "etc/ld.so.cache").write_bytes(caches.new([line]))
    (machine / "home/kubernetes/bin/nvidia/lib64").mkdir(parents=True)
    found, searched = steps(machine)
    order = list(dict.fromkeys(found.values()))
    assert order == [Step.CACHE, Step.USUAL, Step.CONFIGURATION, Step.PATTERN]
    of = {step: [name for name, by in found.items() if by is step] for step in Step}
    assert of[Step.CACHE] == ["/opt/cached"]  # and not again, though the configuration has it
    assert of[Step.USUAL] == [str(folder) for folder in catalogue.USUAL_FOLDERS]
    assert of[Step.CONFIGURATION] == ["/opt/first", "/opt/a", "/opt/b"]
    assert searched.folders == tuple(searched.steps)
    assert not searched.remarks


def test_search_needs_neither_cache_nor_configuration(tmp_path):
    found, searched = steps(tmp_path)
    assert set(found.values()) <= {Step.USUAL, Step.PATTERN}
    assert searched.cache == f"{tmp_path}/etc/ld.so.cache (missing)"
    assert not searched.remarks
