import errno
import os
from pathlib import Path

import pytest

from pyvgpu import errors
from pyvgpu.volumes import root


@pytest.fixture
def within(tmp_path):
    (tmp_path / "secret").write_text("of the host")
    (tmp_path / "root" / "usr" / "lib").mkdir(parents=True)
    (tmp_path / "root" / "usr" / "lib" / "file").write_text("of the root")
    return root.Root.at(tmp_path / "root")


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("/usr/lib/file", id="absolute: from the root"),
        pytest.param("lib/file", id="relative"),
        pytest.param("../usr/lib/file", id="up and down"),
        pytest.param("../../../../../usr/lib/file", id="up beyond the root"),
        pytest.param("/../../usr/lib/file", id="absolute, up beyond the root"),
        pytest.param("lib/../lib/./file", id="with detours"),
    ],
)
def test_links_resolve_as_after_a_chroot(within, target):
    (within.path / "usr" / "link").symlink_to(target)
    assert within.real(within.path / "usr" / "link") == within.path / "usr" / "lib" / "file"


@pytest.mark.parametrize(
    "target", ["../../secret", "{host}/secret", "/proc/self/root/{host}/secret"]
)
def test_links_out_of_the_root_are_never_followed(within, tmp_path, target):
    (within.path / "usr" / "link").symlink_to(target.format(host=tmp_path))
    with pytest.raises(FileNotFoundError):
        within.real(within.path / "usr" / "link")


def test_intermediate_folder_may_be_a_link(within):
    (within.path / "lib").symlink_to("/usr/lib")
    assert within.real(within.path / "lib" / "file") == within.path / "usr" / "lib" / "file"
    assert within.names(within.path / "lib") == ["file"]


@pytest.mark.parametrize("inside", [True, False], ids=["root", "host"])
def test_links_in_a_circle_end_in_an_error(within, inside):
    (within.path / "a").symlink_to("b")
    (within.path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links") as caught:
        (within if inside else root.HOST).real(within.path / "a")
    assert caught.value.errno == errno.ELOOP


def test_chain_of_links_is_followed_as_far_as_the_kernel_does(within):
    (within.path / "0").write_text("end")
    for i in range(1, 42):
        (within.path / str(i)).symlink_to(str(i - 1))
    assert within.real(within.path / "40") == within.path / "0"
    with pytest.raises(OSError, match="symbolic links"):
        within.real(within.path / "41")


def test_paths_are_translated_in_both_directions(within):
    assert within.outside("/usr/lib") == within.path / "usr" / "lib"
    assert within.inside(within.path / "usr" / "lib") == Path("/usr/lib")


def test_patterns_match_in_each_part(within):
    for name in ("a/one.json", "b/two.json", "b/two.txt"):
        (within.path / name).parent.mkdir(exist_ok=True)
        (within.path / name).touch()
    found = within.matching(within.path, "[ab]/*.json")
    assert [path.name for path in found] == ["one.json", "two.json"]
    assert list(within.matching(within.path / "nowhere", "*")) == []


@pytest.mark.parametrize("name", ["nowhere", "usr/lib/file", "circle"])
def test_root_must_be_a_folder(within, name):
    (within.path / "circle").symlink_to("circle")
    with pytest.raises(errors.UnavailableError, match="folder"):
        root.Root.at(within.path / name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(b"/lib/a b", "/lib/a b", id="plain"),
        pytest.param(b"/lib/a\nb\x1b[1m", r"/lib/a\nb\x1b[1m", id="control characters"),
        pytest.param(b"/lib/\xff", r"/lib/\xff", id="not UTF-8"),
        pytest.param("/lib/ä".encode(), "/lib/ä", id="letters"),
    ],
)
def test_paths_are_shown_on_one_line(name, text):
    assert root.shown(Path(os.fsdecode(name))) == text
