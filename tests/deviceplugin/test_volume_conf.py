import json
import os
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvgpu.deviceplugin.gpu_manager import volume_conf
from pyvgpu.volumes import installation

# Like gpu-manager's: two volumes; the first has files that gpu-manager itself brings.
LIKE_GPU_MANAGERS = {
    "volume": [
        {
            "name": "nvidia",
            "base": "/etc/gpu-manager/vdriver",
            "mode": "ro",
            "components": {
                "binaries": ["nvidia-smi", "gpu-client"],
                "libraries": ["libnvidia-ml.so", "libcuda.so", "libcuda-control.so"],
            },
        },
        {
            "name": "origin",
            "base": "/etc/gpu-manager/vdriver",
            "mode": "ro",
            "components": {"binaries": ["nvidia-smi"], "libraries": ["libcuda.so"]},
        },
    ]
}


@pytest.fixture
def file(tmp_path):
    """Write a file and return its path."""

    def write(content):
        path = tmp_path / "volume.conf"
        path.write_bytes(content)
        return path

    return write


def test_configuration_of_gpu_manager_is_accepted_as_it_is(file):
    base = PurePosixPath("/etc/gpu-manager/vdriver")
    assert volume_conf.read(file(json.dumps(LIKE_GPU_MANAGERS, indent=2).encode())) == (
        installation.ConfiguredVolume(
            "nvidia", base, "ro", ("nvidia-smi",), ("libnvidia-ml.so", "libcuda.so"), shared=True
        ),
        installation.ConfiguredVolume(
            "origin", base, "ro", ("nvidia-smi",), ("libcuda.so",), shared=False
        ),
    )


def test_volume_named_nvidia_has_the_shim(file):
    shared, exclusive = volume_conf.parse(LIKE_GPU_MANAGERS)
    assert (shared.shared, exclusive.shared) == (True, False)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        pytest.param("libcuda.so.580.65.06", True, id="its release"),
        pytest.param("libcuda.so", True, id="itself"),
        pytest.param("libcudadebugger.so.580.65.06", False, id="longer stem"),
        pytest.param("libnvidia-encode.so.1", False, id="not named"),
    ],
)
def test_libraries_are_named_by_their_beginning(name, wanted):
    _, exclusive = volume_conf.parse(LIKE_GPU_MANAGERS)
    assert exclusive.wants_library(name) == wanted


def test_volume_without_libraries_selects_none():
    (volume,) = volume_conf.parse({"volume": [changed(components={})]})
    assert not volume.wants_library("libcuda.so.1")


def test_null_is_like_a_missing_field():
    (volume,) = volume_conf.parse({"volume": [changed(mode=None, components={"binaries": None})]})
    assert (volume.mode, volume.binaries) == ("ro", ())


def test_unknown_component_is_ignored_with_a_warning(caplog):
    (volume,) = volume_conf.parse({"volume": [changed(components={"devices": ["/dev/null"]})]})
    assert volume.libraries == ()
    assert "ignored volume[0].components.'devices'" in caplog.text


def changed(**fields):
    return {"name": "a", "base": "/b", "components": {}} | fields


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        pytest.param([], "the document: must be an object", id="list"),
        pytest.param({}, "the document.volume: is missing; must be a list", id="no volume"),
        pytest.param({"volume": {}}, "volume: is dict; must be a list", id="volume is no list"),
        pytest.param({"volume": []}, "must name at least one volume", id="no volumes"),
        pytest.param({"volume": ["a"]}, "volume[0]: must be an object", id="volume is a word"),
        pytest.param({"volume": [changed(name=1)]}, "volume[0].name: is int", id="name"),
        pytest.param({"volume": [changed(name="")]}, "the name of a folder", id="no name"),
        pytest.param({"volume": [changed(name="..")]}, "the name of a folder", id="parent"),
        pytest.param({"volume": [changed(name=".a")]}, "the name of a folder", id="hidden"),
        pytest.param({"volume": [changed(name="a/b")]}, "the name of a folder", id="two folders"),
        pytest.param({"volume": [changed(name="a\n")]}, "the name of a folder", id="newline"),
        pytest.param(
            {"volume": [changed(), changed()]}, "names must be unique: a, a", id="one name twice"
        ),
        pytest.param({"volume": [changed(base="b")]}, "must be an absolute path", id="relative"),
        pytest.param({"volume": [changed(base="/../b")]}, "must be an absolute path", id="up"),
        pytest.param({"volume": [changed(mode="rwx")]}, "must be ro or rw", id="mode"),
        pytest.param(
            {"volume": [changed(components=[])]}, "components: is list; must be a", id="components"
        ),
        pytest.param(
            {"volume": [changed(components={"libraries": "libcuda.so"})]},
            "libraries: is str; must be a list",
            id="libraries",
        ),
        pytest.param(
            {"volume": [changed(components={"libraries": [""]})]},
            "'' must be the name of a file",
            id="empty, which all names start with",
        ),
        pytest.param(
            {"volume": [changed(components={"binaries": ["../../etc/passwd"]})]},
            "must be the name of a file",
            id="path",
        ),
        pytest.param(
            {"volume": [changed(components={"binaries": [["a"]]})]},
            "must be the name of a file",
            id="list in a list",
        ),
    ],
)
def test_invalid_values_are_refused_by_name(document, problem, file):
    path = file(json.dumps(document).encode())
    with pytest.raises(volume_conf.VolumeConfigError) as caught:
        volume_conf.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"volume: []\n", id="YAML"),
        pytest.param(json.dumps(LIKE_GPU_MANAGERS).encode()[:-1], id="cut"),
        pytest.param(b"\xff\xfe\xfd", id="no text"),
        pytest.param(b'{"volume":' * 100_000, id="deeper than any"),
    ],
)
def test_invalid_json_is_refused(content, file):
    with pytest.raises(volume_conf.VolumeConfigError, match="must be JSON"):
        volume_conf.read(file(content))


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(volume_conf.VolumeConfigError, match="cannot be read: No such file"):
        volume_conf.read(tmp_path / "volume.conf")


def test_huge_file_is_refused_unread(file):
    path = file(b"{")
    os.truncate(path, 1 << 40)
    with pytest.raises(volume_conf.VolumeConfigError, match="has more than 1024 KiB"):
        volume_conf.read(path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner)
    | st.dictionaries(
        st.sampled_from(["name", "base", "mode", "components", "binaries", "libraries"]), inner
    ),
)


@pytest.mark.slow
@given(_JSON)
def test_any_document_is_parsed_or_refused(value):
    for document in (value, {"volume": value}, {"volume": [value]}):
        try:
            volume_conf.parse(document)
        except volume_conf.VolumeConfigError:
            continue
