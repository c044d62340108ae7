"""Image archives depend on the given files only, and are reproducible."""

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import image


def make(folder, *options):
    file = folder / "out.tar"
    command = [sys.executable, image.__file__, file, "localhost/some:1", *options]
    subprocess.run(command, check=True)
    return file.read_bytes()


def blobs(archive):
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}


def test_same_files_give_the_same_image(tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    first = make(tmp_path, "--file", f"{program}=/bin/program")
    program.touch()
    assert make(tmp_path, "--file", f"{program}=/bin/program") == first


def test_blobs_are_named_by_their_digest(tmp_path):
    found = blobs(make(tmp_path, "--user", "65534", "--entrypoint", "/a", "b"))
    for name, content in found.items():
        if name.startswith("blobs/"):
            assert Path(name).name == hashlib.sha256(content).hexdigest()
    entry = json.loads(found["index.json"])["manifests"][0]
    assert entry["annotations"]["io.containerd.image.name"] == "localhost/some:1"

    def blob(it):
        return found["blobs/" + it["digest"].replace(":", "/")]

    manifest = json.loads(blob(entry))
    config = json.loads(blob(manifest["config"]))
    assert config["config"]["Entrypoint"] == ["/a", "b"]
    assert config["config"]["User"] == "65534"
    unpacked = gzip.decompress(blob(manifest["layers"][0]))
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(unpacked).hexdigest()]


def test_files_belong_to_root_and_are_world_readable(tmp_path):
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0o600)
    layer = image.layer([f"{tmp_path}/secret=/etc/secret"], ["/bin/sh=/etc/secret"])
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        entry, link = tar.getmember("etc/secret"), tar.getmember("bin/sh")
    assert (entry.uid, entry.mode, entry.mtime) == (0, 0o644, 0)
    assert (link.issym(), link.linkname) == (True, "/etc/secret")


def test_no_path_repeats_in_a_layer(tmp_path):
    """Podman refuses an image with a repeated path."""
    (tmp_path / "some").write_text("x")
    layer = image.layer([f"{tmp_path}=/etc"], [])
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        names = tar.getnames()
    assert names.count("etc") == 1
    assert {"etc/some", "tmp"} <= set(names)
