# What people run and what CI runs. `make` lists the targets.

# The kernel tests make network namespaces, so tests, demo and bench run as root. Everything is built as the user who
# calls make, so that root leaves no files in target/ which that user cannot replace.
ifeq ($(shell id -u),0)
ROOT :=
else
ROOT := sudo -E env "PATH=$(PATH)" "HOME=$(HOME)"
endif

# cargo, and what `make setup` installs with it, also where the shell has not been opened anew since.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

# The backend that `make demo` shows.
BACKEND ?= nft

.DEFAULT_GOAL := help
.PHONY: help setup build test lint charts reference image-rootfs demo bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## install what is missing on this machine (Debian packages, cargo-nextest)
	@ci/setup

build: setup ## build everything, optimised
	cargo build --workspace --release --locked

lint: setup ## formatting, clippy, dependencies, the rules of the workspace
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets --locked -- -D warnings
	@ci/deny
	cargo nextest run --cargo-quiet --workspace --locked -E 'binary_id(fairlead-e2e::workspace)'

# The end-to-end tests run the programs; building the tests alone would leave older ones in their place.
test: lint charts ## all of lint, the charts, all tests, all examples in the documentation (root or sudo)
	@[ -z '$(ROOT)' ] || echo 'Not root: the tests run through sudo, with the environment kept.'
	cargo build --quiet --workspace --bins --locked
	cargo nextest run --cargo-quiet --workspace --locked --no-run
	cargo test --quiet --workspace --locked --doc
	$(ROOT) cargo nextest run --cargo-quiet --workspace --locked

charts: setup ## the Helm chart: rendered over a matrix of values, compared with its golden files
	@ci/charts

reference: setup ## docs/reference, from the code: flags, kube-proxy's fields, the chart's values, errors
	FAIRLEAD_WRITE_REFERENCE=1 cargo nextest run --cargo-quiet --locked -p fairlead -E 'test(reference::)'

image-rootfs: setup ## the static program in a root of its own, as in its image (root or sudo); IMAGE_PROFILE=release or dev
	@ci/image-rootfs build
	@$(ROOT) ci/image-rootfs run

demo: setup ## a cluster in network namespaces, to watch; BACKEND=nft, iptables or ipvs (root or sudo)
	@cargo build --quiet --locked -p fairlead --bin fairlead -p fairlead-demo
	@$(ROOT) cargo run --quiet --locked -p fairlead-demo -- $(BACKEND)

bench: setup ## the figures of docs/performance.md (root or sudo)
	@cargo build --quiet --locked --release -p fairlead --bin fairlead -p fairlead-bench
	@cargo bench --quiet --locked -p fairlead-backend-nft -p fairlead-backend-iptables --bench kernel --no-run
	@$(ROOT) cargo run --quiet --locked --release -p fairlead-bench
	@$(ROOT) cargo bench --quiet --locked -p fairlead-backend-nft --bench kernel -- --full
	@$(ROOT) cargo bench --quiet --locked -p fairlead-backend-iptables --bench kernel -- --full
	@$(ROOT) cargo bench --quiet --locked -p fairlead-bench --bench ipvs

clean: ## remove what has been built
	cargo clean
