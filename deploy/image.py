#!/usr/bin/env python3
"""Build an OCI image archive from files, with the standard library only.

image.py out.tar localhost/name:tag [--on below.tar] --file SOURCE=/path --link /path=target
    [--level N] [--stop-signal NAME] [--entrypoint A [B...]]

A folder given to --file is added with its contents. Builds are reproducible: the same files give
the same bytes. `ctr -n k8s.io images import`, skopeo and registry tools accept the result.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import hashlib
import io
import json
import pathlib
import platform
import tarfile

# In every image: mount points of container runtimes, and /tmp, writable by all users.
FOLDERS = {"tmp": 0o1777, "proc": 0o755, "sys": 0o755, "dev": 0o755, "etc": 0o755}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def layer(files: list[str], links: list[str]) -> bytes:
    """Return a layer with these files and links, owned by root and readable by all."""
    buffer = io.BytesIO()
    given = {pair.partition("=")[2].strip("/") for pair in files}
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, mode in FOLDERS.items():
            if name in given:
                continue  # Podman rejects a layer that has a path twice
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            tar.addfile(folder)
        for pair in files:
            source, _, target = pair.partition("=")
            tar.add(pathlib.Path(source).resolve(), target.lstrip("/"), filter=rootless)
        for pair in links:
            path, _, target = pair.partition("=")
            link = tarfile.TarInfo(path.lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    return buffer.getvalue()


def rootless(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Set owner root, and drop the modification time."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mtime = 0
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry


@dataclasses.dataclass
class Below:
    """A base image."""

    layers: list[dict[str, object]] = dataclasses.field(default_factory=list)  # descriptors
    unpacked: list[str] = dataclasses.field(default_factory=list)  # their digests
    env: list[str] = dataclasses.field(
        default_factory=lambda: ["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    )
    blobs: dict[str, bytes] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, archive: str) -> Below:
        """Read an archive with one image that this script built."""
        with tarfile.open(archive) as tar:

            def content(name: str) -> bytes:
                file = tar.extractfile(name)
                assert file is not None
                return file.read()

            def blob(entry: dict[str, str]) -> bytes:
                return content("blobs/" + entry["digest"].replace(":", "/"))

            manifest = json.loads(blob(json.loads(content("index.json"))["manifests"][0]))
            config = json.loads(blob(manifest["config"]))
            layers = manifest["layers"]
            blobs = {
                descriptor["digest"].partition(":")[2]: blob(descriptor) for descriptor in layers
            }
        return cls(layers, config["rootfs"]["diff_ids"], config["config"]["Env"], blobs)


def main() -> None:
    """Write the archive given on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("archive")
    parser.add_argument("reference", help="such as localhost/busybox:1")
    parser.add_argument("--on", metavar="ARCHIVE", help="archive of the base image")
    parser.add_argument("--file", action="append", default=[], metavar="SOURCE=/PATH")
    parser.add_argument("--link", action="append", default=[], metavar="/PATH=TARGET")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--user", default="")
    parser.add_argument("--stop-signal", default="", metavar="NAME", help="such as SIGUSR1")
    parser.add_argument("--level", type=int, default=6, help="gzip compression level: 1 to 9")
    parser.add_argument("--entrypoint", nargs="+", default=[])
    options = parser.parse_args()

    below = Below.read(options.on) if options.on else Below()
    blobs = below.blobs

    def blob(content: bytes, media: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)}

    oci = "application/vnd.oci.image"
    unpacked = layer(options.file, options.link)
    files = blob(gzip.compress(unpacked, options.level, mtime=0), f"{oci}.layer.v1.tar+gzip")
    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {
            "Entrypoint": options.entrypoint or None,
            "User": options.user,
            "Env": [*below.env, *options.env],
            **({"StopSignal": options.stop_signal} if options.stop_signal else {}),
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": [*below.unpacked, f"sha256:{hashlib.sha256(unpacked).hexdigest()}"],
        },
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), f"{oci}.config.v1+json"),
        "layers": [*below.layers, files],
    }
    entry = blob(json.dumps(manifest).encode(), f"{oci}.manifest.v1+json")
    entry["annotations"] = {
        "io.containerd.image.name": options.reference,
        "org.opencontainers.image.ref.name": options.reference.rpartition(":")[2],
    }
    index = {"schemaVersion": 2, "manifests": [entry]}

    with tarfile.open(options.archive, "w") as tar:
        members = {
            "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
            "index.json": json.dumps(index).encode(),
        }
        members |= {f"blobs/sha256/{digest}": content for digest, content in blobs.items()}
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


if __name__ == "__main__":
    main()
