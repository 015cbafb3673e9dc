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

# Which operations of the backends `make test-crash-points` interrupts, such as nftables_change, and where: at all writes,
# or at a part of them, such as 2/3.
OPERATION ?=
POINTS ?= all

# What `make nightly` runs: all parts, or those that are named here.
PART ?=

# What `make image` builds images for.
ARCHS ?= amd64 arm64

# At a terminal cargo shows its progress; elsewhere its lines would hide everything else.
QUIET = $(shell test -t 2 || echo --quiet)

# Where cargo puts binaries.
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)

# clippy checks our crates while it compiles them, so that `make test` compiles nothing twice.
LINTED := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings

.DEFAULT_GOAL := help
.PHONY: help help-all demo test quick nightly lint cluster build clean
.PHONY: setup generate charts advisories test-shared test-skew test-ipvs test-modes test-crash-points \
	test-properties test-seeds fresh-machine nft-versions cluster-test simulate mutants mutants-e2e differential fuzz \
	package image image-rootfs bench bench-quick soak bench-peer bench-rollouts bench-resets

help: ## list what a visitor needs first
	@awk -F ':.*## ' '/^[a-z-]+:.*[^#]## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

help-all: ## list all targets
	@awk -F ':.*##+ ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile
	@echo 'What touches the kernel runs as root, or through sudo.'

# === To try it and to change it ===

# A visitor compiles once: without line tables and without what a second build would need, it takes a fifth less.
demo: ## two nodes, real packets; BACKEND=nftables, iptables or ipvs
	@.ci/setup demo $(BACKEND)
	@echo 'Building fairlead and the demo: three minutes the first time on two cores, seconds after that.'
	@CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 cargo build $(QUIET) --locked \
		-p fairlead --bin fairlead -p fairlead-e2e --bin demo
	@$(ROOT) $(TARGET_DIR)/debug/demo $(BACKEND)

test: ## lint, and the tests that a change has to pass
	@.ci/setup test
	@[ -z '$(ROOT)' ] || echo 'Not root: the tests run through sudo, with the environment kept.'
	cargo fmt --all --check
	@.ci/deny
	@.ci/charts
	$(LINTED) cargo build --workspace --all-targets --locked
	$(LINTED) cargo test --quiet --workspace --locked --doc
	$(ROOT) env $(LINTED) cargo nextest run --workspace --locked --cargo-quiet

nightly: ## all other tests, for hours; PART=name for one part, of `.ci/nightly --list`
	@.ci/nightly $(PART)

quick: ## the unit tests of CRATE=backend, and what it may break in the backends
	@$(LINTED) .ci/quick $(CRATE)

lint: ## formatting, clippy, licences and advisories of crates
	@.ci/setup lint
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets --locked -- -D warnings
	@.ci/deny

cluster: ## a real Kubernetes cluster; KUBERNETES=/path/to/programs MODE=nftables
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

generate: ### write docs/reference and the code of the protocol
	FAIRLEAD_GENERATE=1 cargo nextest run --cargo-quiet --locked -p fairlead -p fairlead-proto \
		-E 'test(reference::) | binary(generated)'

charts: ### render the Helm chart and compare it with its golden files
	@.ci/setup test
	@.ci/charts

advisories: ### download the RustSec database, which `make lint` uses from then on
	@.ci/setup lint
	@.ci/deny fetch

test-shared: ### the conformance cases that `make test` leaves to other backends, with both variants of iptables
	@.ci/setup test
	$(ROOT) cargo nextest run --cargo-quiet --locked -p fairlead --test e2e --run-ignored only iptables::

test-properties: ### the property tests with other random values than those of `make test`, six times
	@.ci/setup test
	for _ in 1 2 3 4 5 6; do \
		$(ROOT) env PROPTEST_RNG_SEED=$$(od -An -N6 -tu8 /dev/urandom | tr -d " ") cargo nextest run --cargo-quiet --locked --lib \
			-p fairlead-proto -p fairlead-frontend -p fairlead-netlink -p fairlead-backend-nft || exit 1; \
	done

test-skew: ### upgrade under traffic from the previous release or commit
	@.ci/setup test
	@previous=$${FAIRLEAD_PREVIOUS:-$$(.ci/previous)} && \
	$(ROOT) env FAIRLEAD_PREVIOUS="$$previous" CASES=upgrade:: \
		cargo nextest run --cargo-quiet --locked -p fairlead --test e2e upgrade:: guests::backend

test-ipvs: ### all conformance cases with IPVS, also those that `make test` leaves to other backends
	@.ci/setup test
	$(ROOT) env CASES=all cargo nextest run --cargo-quiet --locked -p fairlead --test e2e ipvs_cases::

test-modes: ### change the mode of nodes under traffic, from every mode to every other
	@.ci/setup test
	$(ROOT) cargo nextest run --cargo-quiet --locked -p fairlead --test e2e --run-ignored all modes::

test-crash-points: ### kill a backend, or let a call fail, at its writes to the kernel; OPERATION=nftables_change POINTS=2/3
	@.ci/setup test
	$(ROOT) env FAULTS=$(POINTS) cargo nextest run --cargo-quiet --locked -p fairlead --test e2e --run-ignored all \
		-E 'test(/^crash_points::.*$(OPERATION)/)'

test-seeds: ### the seeds with which a simulation has ever failed
	@.ci/setup test
	cargo nextest run --cargo-quiet --locked --cargo-profile simulation -p fairlead-simulation --run-ignored only

nft-versions: ### list our tables with every nft of Debian, beside sets of each; NFT="LABEL=/path/to/nft ..." for others
	@.ci/setup nft-versions
	@cargo build --quiet --locked -p fairlead --bin fairlead
	@$(ROOT) .ci/nft-versions $(TARGET_DIR)/debug/fairlead $(NFT)

cluster-test: ### Kubernetes' own network tests in that cluster; MODE, TESTS, CHECKS, CONTROL=1
	@. .ci/tools && $(ROOT) "$$tool_dir/python/bin/python" tests/cluster/checks --label fairlead-$(MODE) --mode $(MODE) $(CHECKS) || true
	@. .ci/tools && $(ROOT) "$$tool_dir/python/bin/python" tests/cluster/test --label fairlead-$(MODE) $(TESTS) || [ -n '$(CONTROL)' ]
	@[ -z '$(CONTROL)' ] || $(ROOT) tests/cluster/control $(MODE)

simulate: ### clusters with faults, in simulated time; SECONDS=120, or SEED=n SHRINK=1
	@.ci/setup build
	@cargo build --quiet --locked --profile simulation -p fairlead-simulation
	@$(TARGET_DIR)/simulation/simulate $(if $(SEED),--seed $(SEED) $(if $(SHRINK),--shrink),--seconds $(or $(SECONDS),120))

mutants: ### simulate mutants of our own code, each of which must be caught; SEEDS=800
	@.ci/setup build
	@tests/simulation/mutants/run $(MUTANTS)

mutants-e2e: ### mutants of the backends, each of which the conformance cases of `make test` must catch
	@.ci/setup test
	@$(ROOT) tests/e2e/mutants/run

differential: ### backends, and KUBE_PROXY=/path, on random clusters; SECONDS=60, or SEED=n
	@.ci/setup test
	@cargo build --quiet --locked -p fairlead --bin fairlead -p fairlead-differential --bin differential
	@$(ROOT) $(TARGET_DIR)/debug/differential $(if $(SEED),--seed $(SEED),--seconds $(or $(SECONDS),60)) $(if $(KUBE_PROXY),--kube-proxy $(KUBE_PROXY))

fuzz: ### fuzz everything that parses input; SECONDS=60 for each target, TARGET=name
	@.ci/setup fuzz
	@.ci/fuzz $(or $(SECONDS),60) $(TARGET)

image: ### the images as OCI archives in target/image, without Docker; ARCHS="amd64 arm64"
	@.ci/setup image
	@.ci/image build $(ARCHS)
	@$(ROOT) .ci/image test

fresh-machine: ### the two commands of the README in a new Debian 13, in a clone of this commit
	@.ci/setup image
	@$(ROOT) .ci/fresh-machine

package: ### package the crates that a backend outside this repository uses, and build them from their packages
	cargo package --quiet --locked -p fairlead-proto -p fairlead-runtime -p fairlead-netlink -p fairlead-iptables \
		-p fairlead-backend

image-rootfs: ### run the static program as its image does; IMAGE_PROFILE=dist, release or dev
	@.ci/setup image
	@.ci/image-rootfs build
	@$(ROOT) .ci/image-rootfs run

# What benchmarks run.
define bench_build
	@.ci/setup test
	cargo build --locked --release -p fairlead --bin fairlead -p fairlead-bench --bin bench
endef

# Progress is on stderr. The table in the end has the figures of all benchmarks that have a goal.
bench: ### measure every figure of docs/performance.md
	$(bench_build)
	cargo bench --locked -p fairlead-backend-nft -p fairlead-backend-iptables --bench kernel --no-run
	@mkdir -p $(TARGET_DIR)/bench
	$(ROOT) $(TARGET_DIR)/release/bench -o json >$(TARGET_DIR)/bench/programs.json
	$(ROOT) $(TARGET_DIR)/release/bench adversary >&2
	$(ROOT) cargo bench --quiet --locked -p fairlead-backend-nft --bench kernel -- --full -o json \
		>$(TARGET_DIR)/bench/nftables.json
	$(ROOT) cargo bench --quiet --locked -p fairlead-backend-iptables --bench kernel -- --full -o json \
		>$(TARGET_DIR)/bench/iptables.json
	$(ROOT) cargo bench --quiet --locked -p fairlead-bench --bench ipvs -- json >$(TARGET_DIR)/bench/ipvs.json
	@$(TARGET_DIR)/release/bench table \
		$(foreach name,programs nftables iptables ipvs,$(TARGET_DIR)/bench/$(name).json)

bench-quick: ### count the instructions of a change in the tree and in BASE=HEAD~: what grew by more than 1 %
	@.ci/setup bench-quick
	@.ci/bench-quick $(BASE)

soak: ### a cluster under load: nothing may grow or break; HOURS=1 STREAMS=5000
	$(bench_build)
	$(ROOT) $(TARGET_DIR)/release/bench soak $(or $(HOURS),1) $(or $(STREAMS),5000)

bench-peer: ### Fairlead beside kube-proxy: KUBERNETES=/path/to/programs, KUBE_PROXY="LABEL=/path ...", SERVICES, ENDPOINTS
	@[ -x '$(KUBERNETES)/kube-apiserver' ] && [ -x '$(KUBERNETES)/kube-proxy' ] || \
		{ echo 'Set KUBERNETES to a directory with the kube-apiserver and kube-proxy of a release.'; exit 2; }
	@.ci/setup bench-peer
	$(bench_build)
	@. .ci/tools && $(ROOT) $(TARGET_DIR)/release/bench peer '$(KUBERNETES)' "$$tool_dir/etcd/usr/bin/etcd" \
		--services $(or $(SERVICES),10000) --endpoints $(or $(ENDPOINTS),10) $(KUBE_PROXY)

bench-rollouts: ### measure rollouts with and without the drain barrier; ROLLOUTS=200 STREAMS=5000
	$(bench_build)
	$(ROOT) $(TARGET_DIR)/release/bench rollouts $(or $(ROLLOUTS),200) $(or $(STREAMS),5000)

bench-resets: ### how long clients of a pod whose node goes wait for their reset
	$(bench_build)
	$(ROOT) $(TARGET_DIR)/release/bench resets
