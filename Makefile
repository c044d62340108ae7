# The README's two commands are `make demo` and `make test`; `make help` lists the rest. Each target
# installs what it needs into .venv, and only when something changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# The C unit tests; CHECK_ONE_OF=20 leaves a twentieth of the cases of the longest ones, which
# `make fire` tries in full.
CTEST = $(BIN)/ctest --test-dir "$$(ls -d build/cp*/CTestTestfile.cmake | head -1 | xargs dirname)" \
    --output-on-failure --no-tests=error
COMPILED := $(foreach it,$(wildcard pyvgpu/*/*.pxd controller/*/*.pxd),$(it) $(it:.pxd=.py))
# A container image may forbid bytecode files; without them every process compiles all it imports.
export PYTHONDONTWRITEBYTECODE :=
NATIVE := $(shell find csrc tests/csrc -type f -not -name '*.md' -not -path '*/__pycache__/*') CMakeLists.txt $(wildcard pyvgpu/_api/*.proto pyvgpu/_api/CMakeLists.txt) $(COMPILED)

HELM := 3.22.0
MOBY := 2.0.0-beta.24

.DEFAULT_GOAL := help
.NOTPARALLEL:  # one venv, into which one pip at a time installs
.PHONY: help build demo test test-slow gpu-kit gpu-rehearsal fire test-share test-locks soak soak-claims soak-share test-browser browser-pictures terminal-pictures test-clients test-drivers test-slurm test-docker test-lowest wheels dist release manifests images cross sanitize test-gpu e2e e2e-kinds lint format docs reference bench bench-share bench-replay bench-sidecar bench-agent bench-agent-load bench-cluster-load bench-claims bench-claim-pods bench-webhook bench-filter bench-suspend bench-compiled bench-scheduler pictures clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

$(VENV)/.build-tools: pyproject.toml
	@echo "setting up $(VENV) (once, about a minute)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "PYTHON=$(PYTHON): must be Python 3.11 or later, such as PYTHON=python3.11"; exit 1; }
	@echo '#include <stdlib.h>' | $${CC:-gcc} -fsyntax-only -x c - \
	    || { echo "no C compiler that works here: apt-get install gcc libc6-dev"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
	    || { rm -rf $(VENV); echo "$(PYTHON) makes no venv here, for the reason above (Debian: apt-get install python3-venv)"; exit 1; }
	@$(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
	    print(*p["build-system"]["requires"], *p["project"]["dependencies"], sep="\n")' \
	    > $(VENV)/requirements.txt
	@$(PIP) install -r $(VENV)/requirements.txt
	@$(BIN)/python -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null \
	    || echo "no Python headers: hot loops are not compiled (Debian: apt-get install python3-dev)"
	@touch $@

$(VENV)/.built: $(VENV)/.build-tools $(NATIVE)
	@echo "building the native side"
	@$(PIP) install --no-build-isolation --no-deps --editable . $(PIPFLAGS)
	@test "$$($(BIN)/python -W ignore -m setuptools_scm)" != 0.0.0 \
	    || echo "not a git checkout with tags: the build has version 0.0.0 (docs/release.md)"
	@touch $@

# Install these groups of pyproject.toml's optional dependencies.
define install
@$(BIN)/python -c 'import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
    e = p["project"]["optional-dependencies"]; \
    print(*[r for n in sys.argv[1:] for r in e[n]], sep="\n")' $(1) > $@.txt
@$(PIP) install -r $@.txt
@touch $@
endef

# In place of numba-cuda's own .pth file, which makes each start of a Python 35 ms slower: it loads
# the module that redirects numba.cuda only once numba is imported.
NUMBA_PTH := import sys; sys.meta_path.insert(0, type("NumbaCuda", (), {"find_spec": lambda name, *_: \
    __import__("_numba_cuda_redirector") and None if name == "numba" else None}))

$(VENV)/.test-tools: pyproject.toml | $(VENV)/.built
	@echo "installing the test tools and real CUDA clients (once)"
	$(call install,lint test clients report kubernetes release)
	@echo '$(NUMBA_PTH)' > "$$(ls $(VENV)/lib/python*/site-packages/_numba_cuda_redirector.pth)"

$(VENV)/.wheel-tools: $(VENV)/.build-tools
	@echo "installing a compiler for other machines and older systems (once, 100 MB)"
	$(call install,wheels)

$(VENV)/.lowest-tools: pyproject.toml | $(VENV)/.test-tools
	@echo "installing a resolver for the lowest versions (once, 20 MB)"
	$(call install,lowest)

$(VENV)/.release-tools: $(VENV)/.wheel-tools
	@echo "installing the tool for bills of materials (once)"
	$(call install,release)

$(VENV)/.browser-tools: pyproject.toml | $(VENV)/.test-tools
	@echo "installing browser automation (once, 46 MB)"
	$(call install,browser)

$(VENV)/.go-tools: pyproject.toml | $(VENV)/.test-tools
	@echo "installing Go, which builds helm, a cluster and a client (once, 60 MB)"
	$(call install,e2e)

$(VENV)/.helm-$(HELM): | $(VENV)/.go-tools
	@echo "building helm $(HELM), which renders the chart (once, a minute or two)"
	@PATH="$(abspath $(BIN)):$$PATH" GOBIN="$(abspath $(BIN))" CGO_ENABLED=0 \
	    go install -trimpath -ldflags '-s -w' helm.sh/helm/v3/cmd/helm@v$(HELM)
	@touch $@

$(VENV)/.dockerd-$(MOBY): | $(VENV)/.go-tools
	@echo "building dockerd $(MOBY) (once, some minutes)"
	@PATH="$(abspath $(BIN)):$$PATH" GOBIN="$(abspath $(BIN))" CGO_ENABLED=0 \
	    go install -trimpath -ldflags '-s -w' github.com/moby/moby/v2/cmd/dockerd@v$(MOBY)
	@touch $@

$(VENV)/.cluster-tools: $(VENV)/.go-tools $(VENV)/.helm-$(HELM)
	@touch $@

$(VENV)/.docs-tools: pyproject.toml | $(VENV)/.built
	@echo "installing the documentation tools (once)"
	$(call install,docs kubernetes)

$(VENV)/.picture-tools: $(VENV)/.build-tools
	@echo "installing plotting tools (once)"
	$(call install,report)

build: $(VENV)/.built ## build the native side and install pyvgpu (editable) into .venv

demo: build ## tenants on one simulated GPU, held to their quotas, before your eyes
	@$(BIN)/pyvgpu demo

# The files with tests that have a mark, unless PYTESTFLAGS names some: to collect all tests takes each
# process of pytest more than ten seconds of a core.
marked = $(if $(findstring tests/,$(PYTESTFLAGS)),,$$(grep -rlE --include='test_*.py' 'mark\.$(1)\b' tests))

# What `make test` and `make test-slow` leave to targets of their own.
OTHERS := not browser and not clients and not docker and not drivers and not e2e and not gpu and not rehearsal and not slurm and not wheels

test: build $(VENV)/.cluster-tools ## C unit tests, then the Python tests that are quick and need no GPU
	@CHECK_ONE_OF=20 $(CTEST) --parallel $$(nproc)
	@$(BIN)/python -m pytest -m "$(OTHERS) and not slow" -n 4 $(PYTESTFLAGS)

test-slow: build $(VENV)/.cluster-tools ## the Python tests that take seconds each: programs that are killed, many processes, every function
	@$(BIN)/python -m pytest -m "$(OTHERS) and slow" -n 4 $(call marked,slow) $(PYTESTFLAGS)

fire: build $(VENV)/.test-tools ## kill -9 at every instruction of the ledger; a million operations by 16 processes that are killed, stopped and forked
	@$(CTEST) --parallel $$(nproc) --tests-regex 'death|fuzz'
	@PYVGPU_FIRE_OPERATIONS=1000000 $(BIN)/python -m pytest -m fire $(call marked,fire) $(PYTESTFLAGS)

test-share: build $(VENV)/.test-tools ## the rows of make bench-share that changes are most likely to break
	@$(BIN)/python benchmarks/share.py --quick

# A build without NDEBUG, whose shim aborts where a thread takes locks out of order (csrc/core/lock.h).
# Left out is one test that fills a device with arrays, for half a minute.
test-locks: build $(VENV)/.test-tools ## the shim's tests that take several locks, with a build that checks their order
	@$(BIN)/cmake -S . -B build/checked -G Ninja -DCMAKE_MAKE_PROGRAM="$$PWD/$(BIN)/ninja" \
	    -DPython_EXECUTABLE="$$PWD/$(BIN)/python" -DCMAKE_BUILD_TYPE=Debug >/dev/null
	@$(BIN)/cmake --build build/checked --target shim
	@$(BIN)/python -m pytest --shim build/checked/csrc/libcuda-control.so -n 4 $(PYTESTFLAGS) -k "not never_held" \
	    $(patsubst %,tests/shim/test_%.py,array context export external first_call fork graph green ipc \
	    limit loaders managed memory multicast own_pool pool pool_pressure races share_pool sparse vmm)

soak: build $(VENV)/.cluster-tools ## the node agent: 200 pods while agent, kubelet and containerd are killed
	@PYVGPU_SOAK_PODS=200 BIN=$(BIN) tests/e2e/run agent --session-timeout=3600 -n 0 -s -k "soak or restarts" $(PYTESTFLAGS)

soak-claims: build $(VENV)/.cluster-tools ## the same with 200 pods that have claims
	@PYVGPU_SOAK_PODS=200 BIN=$(BIN) tests/e2e/run dra --session-timeout=3600 -n 0 -s -k soak $(PYTESTFLAGS)

soak-share: build $(VENV)/.test-tools ## shares for minutes, while programs, supervisors and arbiters are killed
	@PYVGPU_SOAK_SECONDS=180 PYVGPU_SOAK_SEED=$${PYVGPU_SOAK_SEED:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')} \
	    $(BIN)/python -m pytest -m soak $(call marked,soak) $(PYTESTFLAGS)

test-browser: build $(VENV)/.browser-tools ## the status page in Chromium (apt-get install chromium)
	@$(BIN)/python -m pytest -m browser -n 2 $(call marked,browser) $(PYTESTFLAGS)

browser-pictures: build $(VENV)/.browser-tools ## retake the pictures of docs/status.md
	@PYVGPU_PICTURES="$$PWD/docs/pictures" $(BIN)/python -m pytest -q -m browser -k picture $(call marked,browser) $(PYTESTFLAGS)

terminal-pictures: build $(VENV)/.docs-tools ## retake the pictures of `pyvgpu top` and of the demo oversubscribe
	@$(BIN)/python docs/terminal_pictures.py

test-clients: build $(VENV)/.cluster-tools ## the real nvidia-smi (downloaded first), clients on the bare simulator
	@PATH="$$PATH:$$PWD/$(BIN)" $(BIN)/python -m pytest -m clients $(call marked,clients) $(PYTESTFLAGS)

test-drivers: build $(VENV)/.test-tools ## NVIDIA's own libraries under the shim (downloaded first; no GPU)
	@$(BIN)/python -m pytest -m drivers $(call marked,drivers) $(PYTESTFLAGS)

test-slurm: build $(VENV)/.test-tools ## Debian's Slurm with the SPANK plugin, on simulated GPUs (root; apt-get install slurmctld slurmd libslurm-dev)
	@$(BIN)/python -m pytest -m slurm tests/slurm $(PYTESTFLAGS)

# Not in CI: Debian's docker client is too old for CDI devices. Its runc is too old for this dockerd, too.
test-docker: build $(VENV)/.dockerd-$(MOBY) $(VENV)/.test-tools ## containers of a real dockerd on simulated GPUs, in namespaces (root; docker 25 or later)
	@[ -x /var/tmp/pyvgpu-cluster/bin/runc ] || PATH="$(abspath $(BIN)):$$PATH" tests/e2e/cluster/cluster build
	@PATH="$(abspath $(BIN)):/var/tmp/pyvgpu-cluster/bin:$$PATH" unshare --mount --pid --fork --mount-proc \
	    $(BIN)/python -m pytest -m docker tests/docker $(PYTESTFLAGS)

test-lowest: build $(VENV)/.lowest-tools ## tests with the lowest permitted versions of all dependencies
	@BIN=$(BIN) sh .ci/lowest $(PYTESTFLAGS)

wheels: $(VENV)/.wheel-tools $(VENV)/.test-tools ## build dist/*.whl for x86-64 and aarch64 and try them, upgrades too
	@BIN=$(BIN) sh .ci/wheels
	@$(BIN)/python -m pytest -m wheels $(call marked,wheels) $(PYTESTFLAGS)

# KEY signs, URL is the address at which the files will be downloadable (docs/release.md). WHEELS=dist
# uses the wheels that `make wheels` has just built.
dist: build $(VENV)/.release-tools ## dist/release: all files of a release, signed; KEY=key.pem URL=https://downloads.example/0.1.0
	@$(BIN)/python deploy/distribution.py ready "$(KEY)" "$(URL)"
	@test -n "$(WHEELS)" || $(MAKE) wheels
	@$(BIN)/python deploy/images.py dist dist/pyvgpu-*_$$(uname -m).whl
	@$(BIN)/python deploy/release.py bill dist
	@$(BIN)/python deploy/distribution.py assemble dist dist/release "$(KEY)" "$(URL)"
	@ls -l dist/release

release: $(VENV)/.release-tools ## make dist, of a tagged commit
	@$(BIN)/python deploy/release.py check
	@$(MAKE) dist

manifests: build $(VENV)/.cluster-tools ## render the chart into deploy/plain, which `pyvgpu manifests` prints
	@$(BIN)/python deploy/render.py deploy/plain

images: build ## dist/pyvgpu*.tar: OCI archives of the cluster's images, without a registry
	@rm -rf dist/.wheel
	@$(PIP) wheel . --no-build-isolation --no-deps --wheel-dir dist/.wheel -C build-dir=dist/.build
	@$(BIN)/python deploy/images.py dist dist/.wheel/*.whl

# WHEELS=dist uses the wheels that `make wheels` has just built.
gpu-kit: build $(VENV)/.wheel-tools ## dist/pyvgpu-gpu-kit.tar.gz: measures a GPU on a machine without a network
	@test -n "$(WHEELS)" || BIN=$(BIN) MACHINES=$$(uname -m) DIST=build/gpu-kit sh .ci/wheels
	@mkdir -p dist
	@$(BIN)/python benchmarks/gpukit/build.py "$${WHEELS:-build/gpu-kit}"/pyvgpu-*_$$(uname -m).whl dist

gpu-rehearsal: gpu-kit $(VENV)/.test-tools ## the kit from its tar, as an unprivileged user without network, on the simulator
	@$(BIN)/python -m pytest -m rehearsal $(call marked,rehearsal) $(PYTESTFLAGS)

cross: $(VENV)/.wheel-tools ## C unit tests for aarch64, under qemu-user
	@BIN=$(BIN) sh .ci/cross

# Excludes the tests that single-step instructions, and under ThreadSanitizer those without threads.
# ThreadSanitizer does not support fences, hence -Wno-tsan; no code with a fence runs under it.
sanitize: build $(VENV)/.test-tools ## C unit tests under AddressSanitizer, UBSan and ThreadSanitizer
	@set -e; for kind in address,undefined thread; do \
	    tree=build/sanitize-$${kind%%,*}; \
	    tests=$$(test $$kind != thread || grep -l pthread_create tests/csrc/*.c \
	        | sed 's|.*/test_\(.*\)\.c|^\1$$|' | paste -s -d '|'); \
	    $(BIN)/cmake -S . -B $$tree -G Ninja -DCMAKE_MAKE_PROGRAM="$$PWD/$(BIN)/ninja" \
	        -DPython_EXECUTABLE="$$PWD/$(BIN)/python" -DCMAKE_BUILD_TYPE=Debug \
	        -DCMAKE_C_FLAGS="-O1 -fsanitize=$$kind -fno-sanitize-recover=undefined -Wno-tsan" >/dev/null; \
	    $(BIN)/cmake --build $$tree --target unit_tests; \
	    TSAN_OPTIONS=suppressions=$$PWD/tests/csrc/thread_sanitizer.supp \
	        $(BIN)/ctest --test-dir $$tree --tests-regex "$$tests" --exclude-regex 'death|lowered' \
	            --parallel $$(nproc) --output-on-failure --no-tests=error; \
	done

test-gpu: build $(VENV)/.test-tools ## the tests that need an NVIDIA GPU
	@$(BIN)/python -m pytest -m gpu $(PYTESTFLAGS)

lint: build $(VENV)/.test-tools ## ruff, mypy, clang-format, the import contract, shellcheck, words
	@BIN=$(BIN) sh .ci/lint

format: $(VENV)/.test-tools ## let ruff and clang-format rewrite the sources
	@$(BIN)/ruff check --fix-only --quiet . && $(BIN)/ruff format --quiet .
	@find csrc tests benchmarks -name '*.[ch]' | xargs $(BIN)/clang-format -i

reference: build $(VENV)/.docs-tools ## docs/reference, generated from the code
	@PYTHONPATH=docs $(BIN)/python -m generator

docs: build $(VENV)/.docs-tools ## the documentation site in build/site; every link is checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: build $(VENV)/.test-tools ## what the shim costs, as ratios against the bare driver
	@$(BIN)/python benchmarks/run.py $(BENCHFLAGS)

bench-share: build $(VENV)/.test-tools ## whether each container gets its share of a device's time
	@$(BIN)/python benchmarks/share.py $(BENCHFLAGS)

bench-replay: build $(VENV)/.test-tools ## recorded launches of real programs under shares
	@$(BIN)/python benchmarks/replay.py --record $(BENCHFLAGS)

bench-sidecar: build $(VENV)/.cluster-tools ## how soon sidecars are ended, and how many, in a real cluster
	@BIN=$(BIN) tests/e2e/run -- $(BIN)/python benchmarks/sidecar.py $(BENCHFLAGS)

bench-agent: build $(VENV)/.test-tools ## what the node agent costs kubelet and its node
	@$(BIN)/python benchmarks/agent.py $(BENCHFLAGS)

bench-agent-load: build $(VENV)/.cluster-tools ## load of the node agent on a real API server
	@BIN=$(BIN) tests/e2e/run -- $(BIN)/python benchmarks/agentload.py $(BENCHFLAGS)

bench-cluster-load: build $(VENV)/.cluster-tools ## load of 500 agents and the controllers on a real API server
	@[ -x /var/tmp/pyvgpu-cluster/bin/kube-apiserver ] || BIN=$(BIN) tests/e2e/cluster/cluster build
	@$(BIN)/python benchmarks/clusterload.py $(BENCHFLAGS)

bench-claims: build $(VENV)/.test-tools ## how long a pod waits for its claim
	@$(BIN)/python benchmarks/claims.py $(BENCHFLAGS)

bench-claim-pods: build $(VENV)/.cluster-tools ## how soon a pod with a claim starts, in a real cluster
	@BIN=$(BIN) tests/e2e/run -- $(BIN)/python benchmarks/claimpods.py $(BENCHFLAGS)

bench-webhook: build $(VENV)/.test-tools ## how soon the webhook answers the API server
	@$(BIN)/python benchmarks/webhook.py $(BENCHFLAGS)

bench-filter: build $(VENV)/.test-tools ## how long kube-scheduler waits for an answer about 5,000 nodes
	@$(BIN)/python benchmarks/scheduler.py $(BENCHFLAGS)

bench-suspend: build $(VENV)/.test-tools ## oversubscription: throughput and waits in a model, duration of moves on the simulated driver
	@$(BIN)/python benchmarks/suspend.py $(BENCHFLAGS)

bench-compiled: build $(VENV)/.test-tools ## loops compiled by Cython, compared with the same loops in Python
	@$(BIN)/python benchmarks/compiled.py $(BENCHFLAGS)

bench-scheduler: build $(VENV)/.cluster-tools ## a burst of pods through the real kube-scheduler, with us and without
	@BIN=$(BIN) tests/e2e/run -- $(BIN)/python benchmarks/schedulerburst.py $(BENCHFLAGS)

pictures: $(VENV)/.picture-tools ## update the tables and pictures of the docs from the last records
	@$(BIN)/python benchmarks/publish.py

e2e: build $(VENV)/.cluster-tools ## end-to-end tests in a real Kubernetes; SUITE=sidecar runs one suite
	@BIN=$(BIN) tests/e2e/run "$(SUITE)" $(PYTESTFLAGS)

e2e-kinds: build $(VENV)/.cluster-tools ## a short suite on other kinds of clusters, such as IPv6-only; KIND=ipv6 runs one
	@BIN=$(BIN) tests/e2e/kinds/run "$(KIND)" $(PYTESTFLAGS)

clean: ## remove build outputs, keep .venv
	@rm -rf build dist $(VENV)/.built
