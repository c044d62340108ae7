#!/usr/bin/env python3
"""Make an OCI image archive from files, with nothing but the standard library.

image.py out.tar localhost/name:tag --file SOURCE=/path --link /path=target [--entrypoint A [B...]]

A folder given to --file is added with all it holds. The same files give the same bytes. `ctr -n
k8s.io images import` takes the result, as do skopeo and a registry's own tools.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import pathlib
import platform
import tarfile

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def layer(files: list[str], links: list[str]) -> bytes:
    """Return a layer with these files and links, everything root's and readable by all."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("tmp", "proc", "sys", "dev", "etc"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
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
    """Forget whose the file was, and when."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mtime = 0
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry


def main() -> None:
    """Write the archive that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("archive")
    parser.add_argument("reference", help="such as localhost/busybox:1")
    parser.add_argument("--file", action="append", default=[], metavar="SOURCE=/PATH")
    parser.add_argument("--link", action="append", default=[], metavar="/PATH=TARGET")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--user", default="")
    parser.add_argument("--entrypoint", nargs="+", default=[])
    options = parser.parse_args()

    blobs: dict[str, bytes] = {}

    def blob(content: bytes, media: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)}

    oci = "application/vnd.oci.image"
    unpacked = layer(options.file, options.link)
    files = blob(gzip.compress(unpacked, mtime=0), f"{oci}.layer.v1.tar+gzip")
    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {
            "Entrypoint": options.entrypoint or None,
            "User": options.user,
            "Env": ["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *options.env],
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(unpacked).hexdigest()}"],
        },
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), f"{oci}.config.v1+json"),
        "layers": [files],
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
