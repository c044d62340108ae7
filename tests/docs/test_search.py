"""The site's search finds what people type, by their own words and by ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason="needs the documentation tools (make .venv/.docs-tools)")
import site_search

ROOT = Path(__file__).parents[2]
FIRST = 3  # results that a reader sees
QUERIES = {
    "utilization": "words.html",
    "nvidia-smi": "nvml.html",
    "oversubscribe": "oversubscribe.html",
    "overcommit": "words.html",
    "fractional": "words.html",
    "VRAM": "words.html",
    "MIG": "mig.html",
    "MPS": "words.html",
    "time-slicing": "words.html",
    "slurm": "slurm.html",
    "glossary": "words.html",
    "throttle": "words.html",
    "out of memory": "troubleshooting.html",
    "CUDA_ERROR_OUT_OF_MEMORY": "troubleshooting.html",
    "pending": "troubleshooting.html",
    "pod pending": "troubleshooting.html",
    "pytorch": "troubleshooting.html",
    "exit code": "reference/messages.html",
    "install": "install.html",
    "helm": "install.html",
    "uninstall": "install.html",
    "upgrade": "install.html",
    "without a gpu": "start-laptop.html",
    "simulator": "simulator.html",
    "jupyter": "examples.html",
    "students": "examples.html",
    "vllm": "examples.html",
    "docker": "containers.html",
    "priority": "placement.html",
    "gang scheduling": "placement.html",
    "metrics": "reference/metrics.html",
    "prometheus": "monitoring.html",
    "dashboard": "monitoring.html",
    "hami": "migrate-hami.html",
    "gke": "managed-clusters.html",
    "openshift": "managed-clusters.html",
    "dra": "dra.html",
    "sidecar": "sidecar.html",
    "kubectl plugin": "kubectl.html",
    "security": "security.html",
}


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """Build the site once, and return its search."""
    site = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", site],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    return site_search.SiteSearch(site)


@pytest.mark.slow
def test_search_finds_the_page_for_each_query(search):
    shown = {query: search.pages(query)[:FIRST] for query in QUERIES}
    missed = {query: shown[query] for query, page in QUERIES.items() if page not in shown[query]}
    assert missed == {}


@pytest.mark.slow
def test_search_leaves_out_source_files(search):
    found = search.pages("import")
    assert found
    assert [page for page in found if page.startswith("source/")] == []
    assert search.pages("qwertzuiop") == []
