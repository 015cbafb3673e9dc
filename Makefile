# What people and CI run. `make` lists what a visitor needs first, `make help-all` everything.

# The kernel tests create network namespaces, so tests, demo and bench run as root. Everything is built as the calling
# user, so that root leaves no files in target/ that this user cannot replace.
ifeq ($(shell id -u),0)
ROOT :=
else
ROOT := sudo -E env "PATH=$(PATH)" "HOME=$(HOME)"
endif

# cargo and cargo-nextest, also in a shell that was started before `make setup` installed them.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

# The backend that `make demo` shows.
BACKEND ?= nftables

# The crate that `make quick` tests, by its name in Cargo.toml's table.
CRATE ?= backend

# What programs the kernel of the nodes of `make cluster`.
MODE ?= nftables

# Options of our own checks in `make cluster-test`; the whole run has CHECKS='--outage 600'.
CHECKS ?=

# Options of Kubernetes' own tests in `make cluster-test`, such as '--group granular'; without, all run, for an hour.
TESTS ?=

# What `make image` builds images for.
ARCHS ?= amd64 arm64

# Where cargo puts binaries.
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)

# clippy checks our crates while it compiles them, so that `make test` compiles nothing twice.
LINTED := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n "s,^\([a-z-]*\):.*\#\#.*,\1,p" $(firstword $(MAKEFILE_LIST)))

help: ## list what a visitor needs first
	@awk -F ':.*## ' '/^[a-z-]+:.*[^#]## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

help-all: ## list all targets
	@awk -F ':.*##+ ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# === To try it and to change it ===

demo: ## Fairlead in a cluster of network namespaces; BACKEND=nftables, iptables or ipvs (root or sudo)
	@.ci/setup demo $(BACKEND)
	@echo 'Building fairlead and the demo: two minutes the first time, seconds after that.'
	@cargo build --locked -p fairlead --bin fairlead -p fairlead-e2e --bin demo
	@$(ROOT) $(TARGET_DIR)/debug/demo $(BACKEND)

test: ## lint and all tests (root or sudo)
	@.ci/setup test
	@[ -z '$(ROOT)' ] || echo 'Not root: the tests run through sudo, with the environment kept.'
	cargo fmt --all --check
	@.ci/deny
	@.ci/charts
	$(LINTED) cargo build --workspace --all-targets --locked
	$(LINTED) cargo test --quiet --workspace --locked --doc
	$(ROOT) env $(LINTED) cargo nextest run --workspace --locked --cargo-quiet

quick: ## the unit tests of one crate, and those that its change may break in the backends; CRATE=backend
	@.ci/quick $(CRATE)

lint: ## formatting, clippy, licences and advisories of crates, the rules of the workspace
	@.ci/setup lint
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets --locked -- -D warnings
	@.ci/deny

cluster: ## a real Kubernetes cluster on this machine with Fairlead (root or sudo); KUBERNETES=/path/to/programs MODE=nftables
	@.ci/setup image
	@$(ROOT) tests/cluster/setup
	@$(ROOT) tests/cluster/images
	@$(ROOT) tests/cluster/up
	@$(ROOT) tests/cluster/proxy fairlead $(MODE)

build: ## fairlead, optimised: target/release/fairlead
	@.ci/setup build
	cargo build --release --locked -p fairlead --bin fairlead

clean: ## remove build output
	cargo clean

# === Everything else ===

setup: ### install what is missing on this machine for all tests
	@.ci/setup test

generate: ### write docs/reference (flags, kube-proxy fields, chart values, errors) and the code of the protocol
	FAIRLEAD_GENERATE=1 cargo nextest run --cargo-quiet --locked -p fairlead -p fairlead-proto \
		-E 'test(reference::) | binary(generated)'

charts: ### render the Helm chart over a matrix of values and compare it with its golden files
	@.ci/setup test
	@.ci/charts

advisories: ### download the RustSec database and check all crates; `make lint` uses it from then on
	@.ci/setup lint
	@.ci/deny fetch

test-skew: ### upgrade under traffic from the previous release or commit, which is built first (root or sudo)
	@.ci/setup test
	@previous=$${FAIRLEAD_PREVIOUS:-$$(.ci/previous)} && \
	$(ROOT) env FAIRLEAD_PREVIOUS="$$previous" cargo nextest run --cargo-quiet --locked -p fairlead --test e2e upgrade::

test-modes: ### change the mode of nodes under traffic, from every mode to every other one, with IPVS (root or sudo)
	@.ci/setup test
	$(ROOT) cargo nextest run --cargo-quiet --locked -p fairlead --test e2e --run-ignored all modes::

test-crash-points: ### kill a backend, or let a call fail, at every write to the kernel, in IPVS mode every eighth (root or sudo)
	@.ci/setup test
	$(ROOT) env FAULTS=all cargo nextest run --cargo-quiet --locked -p fairlead --test e2e --run-ignored all crash_points::

cluster-test: ### Kubernetes' own network tests and ours in that cluster; MODE=nftables, iptables-nft, iptables-legacy or local; CONTROL=1 also with kube-proxy
	@. .ci/tools && $(ROOT) "$$tool_dir/python/bin/python" tests/cluster/checks --label fairlead-$(MODE) --mode $(MODE) $(CHECKS) || true
	@. .ci/tools && $(ROOT) "$$tool_dir/python/bin/python" tests/cluster/test --label fairlead-$(MODE) $(TESTS) || [ -n '$(CONTROL)' ]
	@[ -z '$(CONTROL)' ] || $(ROOT) tests/cluster/control $(MODE)

simulate: ### simulate clusters with faults; SECONDS=120, or SEED=n to replay one, SHRINK=1 to cut its steps
	@.ci/setup build
	@cargo build --quiet --locked --profile simulation -p fairlead-simulation
	@$(TARGET_DIR)/simulation/simulate $(if $(SEED),--seed $(SEED) $(if $(SHRINK),--shrink),--seconds $(or $(SECONDS),120))

mutants: ### simulate mutants of our own code, each of which must be caught; SEEDS=800, at most, for each
	@.ci/setup build
	@tests/simulation/mutants/run $(MUTANTS)

differential: ### compare the backends, and KUBE_PROXY=/path/to/kube-proxy, on random clusters; SECONDS=60, or SEED=n (root or sudo)
	@.ci/setup test
	@cargo build --quiet --locked -p fairlead --bin fairlead -p fairlead-differential --bin differential
	@$(ROOT) $(TARGET_DIR)/debug/differential $(if $(SEED),--seed $(SEED),--seconds $(or $(SECONDS),60)) $(if $(KUBE_PROXY),--kube-proxy $(KUBE_PROXY))

fuzz: ### fuzz everything that parses input with libFuzzer, guided by coverage; SECONDS=60 for each target, TARGET=name
	@.ci/setup fuzz
	@.ci/fuzz $(or $(SECONDS),60) $(TARGET)

image: ### build the images as OCI archives in target/image, without Docker, and start them; ARCHS="amd64 arm64"
	@.ci/setup image
	@.ci/image build $(ARCHS)
	@$(ROOT) .ci/image test

image-rootfs: ### run the static program in an empty root file system, as its image does (root or sudo); IMAGE_PROFILE=release or dev
	@.ci/setup image
	@.ci/image-rootfs build
	@$(ROOT) .ci/image-rootfs run

# What benchmarks run.
define bench_build
	@.ci/setup test
	cargo build --locked --release -p fairlead --bin fairlead -p fairlead-bench --bin bench
endef

bench: ### measure every figure of docs/performance.md (root or sudo)
	$(bench_build)
	cargo bench --locked -p fairlead-backend-nft -p fairlead-backend-iptables --bench kernel --no-run
	$(ROOT) $(TARGET_DIR)/release/bench
	$(ROOT) $(TARGET_DIR)/release/bench adversary
	$(ROOT) cargo bench --quiet --locked -p fairlead-backend-nft --bench kernel -- --full
	$(ROOT) cargo bench --quiet --locked -p fairlead-backend-iptables --bench kernel -- --full
	$(ROOT) cargo bench --quiet --locked -p fairlead-bench --bench ipvs

soak: ### a cluster under load for HOURS=1 with STREAMS=5000 synthetic streams: nothing may grow or break (root or sudo)
	$(bench_build)
	$(ROOT) $(TARGET_DIR)/release/bench soak $(or $(HOURS),1) $(or $(STREAMS),5000)

bench-peer: ### measure Fairlead beside kube-proxy; KUBE_PROXY=/path/to/kube-proxy (root or sudo)
	@[ -x '$(KUBE_PROXY)' ] || { echo 'Set KUBE_PROXY to the path of a kube-proxy binary.'; exit 2; }
	$(bench_build)
	$(ROOT) $(TARGET_DIR)/release/bench --kube-proxy $(KUBE_PROXY)

bench-rollouts: ### measure rollouts with and without the barrier: ROLLOUTS=200 beside STREAMS=5000 (root or sudo)
	$(bench_build)
	$(ROOT) $(TARGET_DIR)/release/bench rollouts $(or $(ROLLOUTS),200) $(or $(STREAMS),5000)

bench-resets: ### measure how long clients of a pod whose node goes wait for their reset (root or sudo)
	$(bench_build)
	$(ROOT) $(TARGET_DIR)/release/bench resets
