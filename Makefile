# What people and CI run. `make` lists the targets.

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

.DEFAULT_GOAL := help
.PHONY: help setup fuzz soak build test test-skew test-modes test-crash-points lint advisories charts reference image image-rootfs cluster cluster-test simulate mutants differential demo bench bench-peer bench-rollouts bench-resets clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## install what is missing on this machine (Debian packages, cargo-nextest, cargo-deny)
	@.ci/setup

build: setup ## build everything, optimised
	cargo build --workspace --release --locked

lint: setup ## formatting, clippy, licences and advisories of crates, the rules of the workspace
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets --locked -- -D warnings
	@.ci/deny
	cargo nextest run --cargo-quiet --workspace --locked -E 'binary_id(fairlead-e2e::workspace)'

# The end-to-end tests run the binaries, which building the tests alone does not update.
test: lint charts ## lint, charts, all tests, all examples in the documentation (root or sudo)
	@[ -z '$(ROOT)' ] || echo 'Not root: the tests run through sudo, with the environment kept.'
	cargo build --quiet --workspace --bins --locked
	cargo nextest run --cargo-quiet --workspace --locked --no-run
	cargo test --quiet --workspace --locked --doc
	$(ROOT) cargo nextest run --cargo-quiet --workspace --locked

test-skew: setup ## upgrade under traffic from the previous release or commit, which is built first (root or sudo)
	@previous=$${FAIRLEAD_PREVIOUS:-$$(.ci/previous)} && cargo build --quiet --locked -p fairlead --bins && \
	$(ROOT) env FAIRLEAD_PREVIOUS="$$previous" cargo nextest run --cargo-quiet --locked -p fairlead-e2e -E 'binary(upgrade)'

test-modes: setup ## change the mode of nodes under traffic, from every mode to every other one, with IPVS (root or sudo)
	@cargo build --quiet --locked -p fairlead --bins
	$(ROOT) cargo nextest run --cargo-quiet --locked -p fairlead-e2e --run-ignored all -E 'binary(modes)'

test-crash-points: setup ## kill a backend, or let a call fail, at every write to the kernel, in IPVS mode every eighth (root or sudo)
	@cargo build --quiet --locked -p fairlead --bins
	$(ROOT) env FAULTS=all cargo nextest run --cargo-quiet --locked -p fairlead-e2e --run-ignored all -E 'binary(crash_points)'

advisories: setup ## download the RustSec database and check all crates; `make lint` uses it from then on
	@.ci/deny fetch

charts: setup ## render the Helm chart over a matrix of values and compare it with its golden files
	@.ci/charts

reference: setup ## generate docs/reference: flags, kube-proxy fields, chart values, errors
	FAIRLEAD_WRITE_REFERENCE=1 cargo nextest run --cargo-quiet --locked -p fairlead -E 'test(reference::)'

image: setup ## build the images as OCI archives in target/image, without Docker, and start them; ARCHS="amd64 arm64"
	@.ci/setup image
	@.ci/image build $(ARCHS)
	@$(ROOT) .ci/image test

image-rootfs: setup ## run the static program in an empty root file system, as its image does (root or sudo); IMAGE_PROFILE=release or dev
	@.ci/setup image
	@.ci/image-rootfs build
	@$(ROOT) .ci/image-rootfs run

cluster: setup ## start a real Kubernetes cluster on this machine with Fairlead (root or sudo); KUBERNETES=/path/to/programs MODE=nftables
	@.ci/setup image
	@$(ROOT) tests/cluster/setup
	@$(ROOT) tests/cluster/images
	@$(ROOT) tests/cluster/up
	@$(ROOT) tests/cluster/proxy fairlead $(MODE)

cluster-test: ## run Kubernetes' own network tests and ours in that cluster; MODE=nftables, iptables-nft, iptables-legacy or local; CONTROL=1 also with kube-proxy
	@$(ROOT) target/python/bin/python tests/cluster/checks --label fairlead-$(MODE) --mode $(MODE) $(CHECKS) || true
	@$(ROOT) target/python/bin/python tests/cluster/test --label fairlead-$(MODE) $(TESTS) || [ -n '$(CONTROL)' ]
	@[ -z '$(CONTROL)' ] || $(ROOT) tests/cluster/control $(MODE)

simulate: setup ## simulate clusters with faults; SECONDS=120, or SEED=n to replay one, SHRINK=1 to cut its steps
	@cargo build --quiet --locked --profile simulation -p fairlead-simulation
	@$(TARGET_DIR)/simulation/simulate $(if $(SEED),--seed $(SEED) $(if $(SHRINK),--shrink),--seconds $(or $(SECONDS),120))

mutants: setup ## simulate mutants of our own code, each of which must be caught; SEEDS=800, at most, for each
	@tests/simulation/mutants/run $(MUTANTS)

differential: setup ## compare the backends, and KUBE_PROXY=/path/to/kube-proxy, on random clusters; SECONDS=60, or SEED=n (root or sudo)
	@cargo build --quiet --locked -p fairlead --bin fairlead -p fairlead-differential --bin differential
	@$(ROOT) $(TARGET_DIR)/debug/differential $(if $(SEED),--seed $(SEED),--seconds $(or $(SECONDS),60)) $(if $(KUBE_PROXY),--kube-proxy $(KUBE_PROXY))

fuzz: ## fuzz everything that parses input with libFuzzer, guided by coverage; SECONDS=60 for each target, TARGET=name
	@.ci/setup fuzz
	@.ci/fuzz $(or $(SECONDS),60) $(TARGET)

demo: setup ## show Fairlead in a cluster of network namespaces; BACKEND=nftables, iptables or ipvs (root or sudo)
	@echo 'Building fairlead and the demo: minutes the first time, seconds after that.'
	@cargo build --locked -p fairlead --bin fairlead -p fairlead-demo --bin demo
	@$(ROOT) $(TARGET_DIR)/debug/demo $(BACKEND)

bench: setup ## measure every figure of docs/performance.md (root or sudo)
	cargo build --locked --release -p fairlead --bin fairlead -p fairlead-bench --bin bench
	cargo bench --locked -p fairlead-backend-nft -p fairlead-backend-iptables --bench kernel --no-run
	$(ROOT) $(TARGET_DIR)/release/bench
	$(ROOT) $(TARGET_DIR)/release/bench adversary
	$(ROOT) cargo bench --quiet --locked -p fairlead-backend-nft --bench kernel -- --full
	$(ROOT) cargo bench --quiet --locked -p fairlead-backend-iptables --bench kernel -- --full
	$(ROOT) cargo bench --quiet --locked -p fairlead-bench --bench ipvs

soak: setup ## a cluster under load for HOURS=1 with STREAMS=5000 synthetic streams: nothing may grow or break (root or sudo)
	cargo build --locked --release -p fairlead --bin fairlead -p fairlead-bench --bin bench
	$(ROOT) $(TARGET_DIR)/release/bench soak $(or $(HOURS),1) $(or $(STREAMS),5000)

bench-peer: setup ## measure Fairlead beside kube-proxy; KUBE_PROXY=/path/to/kube-proxy (root or sudo)
	@[ -x '$(KUBE_PROXY)' ] || { echo 'Set KUBE_PROXY to the path of a kube-proxy binary.'; exit 2; }
	cargo build --locked --release -p fairlead --bin fairlead -p fairlead-bench --bin bench
	$(ROOT) $(TARGET_DIR)/release/bench --kube-proxy $(KUBE_PROXY)

bench-rollouts: setup ## measure rollouts with and without the barrier: ROLLOUTS=200 beside STREAMS=5000 (root or sudo)
	cargo build --locked --release -p fairlead --bin fairlead -p fairlead-bench --bin bench
	$(ROOT) $(TARGET_DIR)/release/bench rollouts $(or $(ROLLOUTS),200) $(or $(STREAMS),5000)

bench-resets: setup ## measure how long clients of a pod whose node goes wait for their reset (root or sudo)
	cargo build --locked --release -p fairlead --bin fairlead -p fairlead-bench --bin bench
	$(ROOT) $(TARGET_DIR)/release/bench resets

clean: ## remove build output
	cargo clean
