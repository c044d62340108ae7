#!/usr/bin/env python3
"""Assemble and check the folder of files that a release publishes: `make dist`.

distribution.py ready KEY URL              complain about the arguments of the next command
distribution.py assemble DIST FOLDER KEY URL
                                           write FOLDER from the wheels, the sdist, the images and
                                           the bill of materials in DIST
distribution.py check FOLDER PUBLIC        list what is wrong with FOLDER

KEY is a private key in PEM (EC or RSA), PUBLIC its public key, URL the address at which the files
of FOLDER will be downloadable: the krew manifest names it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from typing import Any

import image
import release
import yaml

CHART = pathlib.Path(__file__).parent / "chart" / "pyvgpu"
SUMS, SIGNATURE, PUBLIC = "SHA256SUMS", "SHA256SUMS.sig", "release-key.pem"
KREW = "vgpu.yaml"  # krew requires the plugin's name
IMAGES = ("pyvgpu", "pyvgpu-fast-exit")
# Every file of a release: each pattern matches one.
FILES = (
    r"pyvgpu-[^-]+-[^-]+-[^-]+-[^-]*manylinux[^-]*_x86_64\.whl",
    r"pyvgpu-[^-]+-[^-]+-[^-]+-[^-]*manylinux[^-]*_aarch64\.whl",
    r"pyvgpu-[^-]+\.tar\.gz",
    r"pyvgpu-[^-]+-linux-(?:amd64|arm64)\.oci\.tar",
    r"pyvgpu-fast-exit-[^-]+-linux-(?:amd64|arm64)\.oci\.tar",
    r"pyvgpu-[^-]+\.tgz",
    r"pyvgpu-[^-]+\.cdx\.json",
    r"kubectl-vgpu-[^-]+-linux-(?:amd64|arm64)\.tar\.gz",
    re.escape(KREW),
    re.escape(PUBLIC),
)
EMPTY = set(image.FOLDERS)  # of images, for container runtimes; etc has the loader's cache
# The plugin is the image's file tree with its own Python, loader and libraries: it needs nothing.
PLUGIN = "kubectl-vgpu"
LAUNCHER = """#!/bin/sh
# Runs the kubectl plugin with the Python beside this file.
here=$(dirname "$(readlink -f "$0")")
unset PYTHONPATH
export PYTHONHOME="$here/usr/local"
exec "$here/{loader}" --library-path "$here/usr/local/lib/native" "$here/{python}" -BPs \\
    -c 'import sys; from pyvgpu import __main__ as it; sys.exit(it.kubectl())' "$@"
"""


def main() -> None:
    """Run the command given on the command line."""
    match sys.argv[1:]:
        case ["ready", key, url]:
            wrong = unready(key, url)
        case ["assemble", dist, folder, key, url]:
            wrong = unready(key, url)
            if not wrong:
                assemble(pathlib.Path(dist), pathlib.Path(folder), pathlib.Path(key), url)
                wrong = problems(pathlib.Path(folder), pathlib.Path(folder) / PUBLIC)
        case ["check", folder, public]:
            wrong = problems(pathlib.Path(folder), pathlib.Path(public))
        case _:
            sys.exit(__doc__)
    sys.exit("\n".join(f"distribution: {problem}" for problem in wrong) or 0)


def unready(key: str, url: str) -> list[str]:
    """Return what is wrong with the key and the address that were given."""
    wrong = []
    if not re.fullmatch(r"https://[^\s/]+(?:/\S*)?", url):
        wrong.append(
            f"URL={url!r}: must be the address of the files, such as "
            "URL=https://downloads.example/pyvgpu/0.1.0"
        )
    if not _openssl("dgst", "-sha256", "-sign", key, text=b"a probe"):
        wrong.append(
            f"KEY={key!r}: must be the file of a private key, EC or RSA in PEM, such as `openssl "
            "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem` writes"
        )
    return wrong


def assemble(dist: pathlib.Path, folder: pathlib.Path, key: pathlib.Path, url: str) -> None:
    """Write all files of a release into *folder*, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    version = release.version()
    for pattern in ("pyvgpu-*.whl", "pyvgpu-[0-9]*.tar.gz", "pyvgpu-*.cdx.json"):
        for file in dist.glob(pattern):
            shutil.copy(file, folder)
    architecture = ""
    for name in IMAGES:
        architecture = Image(dist / f"{name}.tar").architecture
        shutil.copy(
            dist / f"{name}.tar", folder / f"{name}-{version}-linux-{architecture}.oci.tar"
        )
    (folder / f"pyvgpu-{version}.tgz").write_bytes(chart())
    archive = folder / f"{PLUGIN}-{version}-linux-{architecture}.tar.gz"
    plugin(Image(dist / f"{IMAGES[0]}.tar"), archive)
    (folder / KREW).write_text(krew(archive, version, architecture, url))
    seal(folder, key)


def seal(folder: pathlib.Path, key: pathlib.Path) -> None:
    """Write the public key, the checksums of all files in *folder*, and their signature."""
    (folder / PUBLIC).write_bytes(_openssl("pkey", "-in", str(key), "-pubout"))
    files = sorted(file for file in folder.iterdir() if file.name not in (SUMS, SIGNATURE))
    (folder / SUMS).write_text("".join(f"{digest(file)}  {file.name}\n" for file in files))
    signed = _openssl("dgst", "-sha256", "-sign", str(key), str(folder / SUMS))
    (folder / SIGNATURE).write_bytes(signed)


class Image:
    """An OCI archive with one image, as image.py writes it."""

    def __init__(self, archive: pathlib.Path) -> None:
        with tarfile.open(archive) as tar:
            self.blobs = {
                member.name.removeprefix("blobs/sha256/"): tar.extractfile(member).read()  # type: ignore[union-attr]
                for member in tar
                if member.name.startswith("blobs/sha256/")
            }
            (entry,) = json.load(tar.extractfile("index.json"))["manifests"]  # type: ignore[arg-type]
        self.reference = str(entry["annotations"]["io.containerd.image.name"])
        manifest = self._document(entry)
        self.architecture = str(self._document(manifest["config"])["architecture"])
        self.layers = [self.blobs[_hex(layer)] for layer in manifest["layers"]]

    def damaged(self) -> list[str]:
        """Return the blobs whose content is not that of their name."""
        return [
            name for name, blob in self.blobs.items() if hashlib.sha256(blob).hexdigest() != name
        ]

    def _document(self, descriptor: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.blobs[_hex(descriptor)])
        return found


def chart() -> bytes:
    """Return the chart as helm packages it; `helm push` makes an OCI artefact of it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for file in sorted(path for path in CHART.rglob("*") if path.is_file()):
            name = f"{CHART.name}/{file.relative_to(CHART)}"
            tar.add(file, name, filter=image.rootless)
    return gzip.compress(buffer.getvalue(), mtime=0)


def plugin(source: Image, archive: pathlib.Path) -> None:
    """Write the archive of the kubectl plugin from the files of the image *source*."""
    loader = python = ""
    with (
        gzip.GzipFile(archive, "wb", compresslevel=4, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for layer in source.layers:
            with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layer))) as files:
                for member in files:
                    if member.name.partition("/")[0] in EMPTY:
                        continue
                    tar.addfile(member, files.extractfile(member) if member.isfile() else None)
                    if re.fullmatch(r"(?:.*/)?ld-linux-[^/]+", member.name):
                        loader = member.name
                    if re.fullmatch(r"usr/local/bin/python3\.\d+", member.name):
                        python = member.name
        launcher = LAUNCHER.format(loader=loader, python=python).encode()
        entry = tarfile.TarInfo(PLUGIN)
        entry.size, entry.mode = len(launcher), 0o755
        tar.addfile(entry, io.BytesIO(launcher))


def krew(archive: pathlib.Path, version: str, architecture: str, url: str) -> str:
    """Return the krew manifest of the plugin's *archive*."""
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": pathlib.Path(KREW).stem},
        "spec": {
            "version": f"v{version}",
            "shortDescription": "Show the vGPUs of pods, their usage, and why pods wait",
            "description": "Shows the share of a GPU that each pod has, its usage of time and "
            "memory, the devices of each node, quota violations, and the reason why a pod waits.",
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": "linux", "arch": architecture}},
                    "uri": f"{url.rstrip('/')}/{archive.name}",
                    "sha256": digest(archive),
                    "bin": PLUGIN,
                }
            ],
        },
    }
    return yaml.safe_dump(manifest, sort_keys=False)


def problems(folder: pathlib.Path, public: pathlib.Path) -> list[str]:
    """Return what is wrong with a release: files, checksums, signature, versions."""
    wrong = [*_files(folder), *_checksums(folder)]
    sums, signature = folder / SUMS, folder / SIGNATURE
    verify = ("dgst", "-sha256", "-verify", str(public), "-signature", str(signature), str(sums))
    if not _openssl(*verify):
        wrong.append(f"{SIGNATURE}: is not a signature of {SUMS} by the key in {public}")
    return wrong or [*_versions(folder), *_plugin(folder)]


def _files(folder: pathlib.Path) -> list[str]:
    """Return missing and surplus files."""
    names = {file.name for file in folder.iterdir()} - {SUMS, SIGNATURE}
    wrong = []
    for pattern in FILES:
        found = {name for name in names if re.fullmatch(pattern, name)}
        names -= found
        if len(found) != 1:
            wrong.append(f"{pattern}: must match one file, matches {sorted(found) or 'none'}")
    return wrong + [f"{name}: is not a file of a release" for name in sorted(names)]


def _checksums(folder: pathlib.Path) -> list[str]:
    """Return files whose checksum is wrong or missing, and checksums without a file."""
    lines = (folder / SUMS).read_text().splitlines() if (folder / SUMS).exists() else []
    given = {name: checksum for checksum, _, name in (line.partition("  ") for line in lines)}
    actual = {
        file.name: digest(file) for file in folder.iterdir() if file.name not in (SUMS, SIGNATURE)
    }
    return [
        f"{name}: its SHA-256 is {actual.get(name, 'none')}, {SUMS} has {given.get(name, 'none')}"
        for name in sorted(given.keys() | actual.keys())
        if given.get(name) != actual.get(name)
    ]


def _versions(folder: pathlib.Path) -> list[str]:
    """Return versions that do not belong together."""
    with tarfile.open(_one(folder, r"pyvgpu-[^-]+\.tgz")) as tar:
        stated = yaml.safe_load(tar.extractfile("pyvgpu/Chart.yaml"))  # type: ignore[arg-type]
    version = str(stated["version"])
    built = {file.name.split("-")[1] for file in folder.glob("*.whl")}
    sdist = _one(folder, r"pyvgpu-[^-]+\.tar\.gz").name
    built.add(sdist.removeprefix("pyvgpu-").removesuffix(".tar.gz"))
    bill = json.loads(_one(folder, r"pyvgpu-.*\.cdx\.json").read_text())
    built.add(str(bill["metadata"]["component"]["version"]))
    wrong = []
    if len(built) != 1 or not all(
        re.fullmatch(rf"{re.escape(version)}(?:\.dev\d+)?", found) for found in built
    ):
        wrong.append(f"wheels, sdist and bill of materials have {sorted(built)}, not {version}")
    if f"pyvgpu-{version}.tgz" not in {file.name for file in folder.iterdir()}:
        wrong.append(f"the chart is of version {version}, its file name says another")
    if str(stated["appVersion"]) != version:
        wrong.append(f"the chart installs {stated['appVersion']}, not {version}")
    for file in sorted(folder.glob("*.oci.tar")):
        found = Image(file)
        name, _, tag = found.reference.rpartition("/")[2].partition(":")
        if file.name != f"{name}-{version}-linux-{found.architecture}.oci.tar" or tag != version:
            wrong.append(f"{file.name}: is the image {found.reference} for {found.architecture}")
        wrong += [f"{file.name}: blob {blob} is damaged" for blob in found.damaged()]
    return wrong


def _plugin(folder: pathlib.Path) -> list[str]:
    """Return what is wrong with the krew manifest."""
    manifest = yaml.safe_load((folder / KREW).read_text())
    (platform,) = manifest["spec"]["platforms"]
    archive = _one(folder, rf"{PLUGIN}-.*\.tar\.gz")
    wrong = []
    if platform["uri"].rpartition("/")[2] != archive.name:
        wrong.append(f"{KREW}: uri {platform['uri']}: must end in {archive.name}")
    if platform["sha256"] != digest(archive):
        wrong.append(f"{KREW}: sha256 {platform['sha256']}: is not that of {archive.name}")
    with tarfile.open(archive) as tar:
        if platform["bin"] not in tar.getnames():
            wrong.append(f"{archive.name}: has no {platform['bin']}")
    if f"-{manifest['spec']['version'].removeprefix('v')}-" not in archive.name:
        wrong.append(f"{KREW}: version {manifest['spec']['version']}: is not {archive.name}'s")
    return wrong


def digest(file: pathlib.Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _one(folder: pathlib.Path, pattern: str) -> pathlib.Path:
    """Return the file whose name matches."""
    (found,) = (file for file in folder.iterdir() if re.fullmatch(pattern, file.name))
    return found


def _hex(descriptor: dict[str, Any]) -> str:
    return str(descriptor["digest"]).removeprefix("sha256:")


def _openssl(*arguments: str, text: bytes | None = None) -> bytes:
    """Return the output of openssl; empty if it fails."""
    with tempfile.TemporaryFile() as given:
        given.write(text or b"")
        given.seek(0)
        done = subprocess.run(["openssl", *arguments], stdin=given, capture_output=True)
    return done.stdout if done.returncode == 0 else b""


if __name__ == "__main__":
    main()
