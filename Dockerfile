# Two images: `fairlead`, the program and nothing else, and `tools`, with what the iptables backend, IPVS and taking over from kube-proxy run.
#
#   docker build --target fairlead --tag fairlead/fairlead:0.1.0 .
#   docker build --target tools --tag fairlead/fairlead:0.1.0-tools .
#
# Base images are pinned by digest; .github/dependabot.yml proposes newer ones.
# `make image-rootfs` runs the program in such a root, without a container.

FROM rust:1.95-slim-bookworm@sha256:d7482085ff5b415f84dba5647ae71606650bdef00db7aeb69f4b3d170c3e4082 AS build
RUN apt-get update && apt-get install --yes --no-install-recommends musl-tools && rm -rf /var/lib/apt/lists/*
# Writes the list of all crates into the binary (section .dep-v0), from which scanners make an SBOM and find
# vulnerable versions.
RUN cargo install --locked --version =0.7.7 cargo-auditable
WORKDIR /src
COPY . .
# Static: it needs no library of the image that it is in. It keeps its symbols: backtraces and profiles have names by them.
RUN target="$(uname -m)-unknown-linux-musl" \
 && rustup target add "$target" \
 && cargo auditable build --release --locked --package fairlead --target "$target" \
 && install -D --mode 0755 "target/$target/release/fairlead" /out/usr/bin/fairlead \
 && strip --strip-debug /out/usr/bin/fairlead \
 && objdump --section-headers /out/usr/bin/fairlead | grep -q '[.]dep-v0'

FROM scratch AS fairlead
COPY --from=build /out/ /
ENV PATH=/usr/bin
# A frontend needs no privileges. Of a backend, the chart sets the user and the capability (docs/credentials.md).
USER 65532:65532
ENTRYPOINT ["/usr/bin/fairlead"]

FROM debian:bookworm-slim@sha256:abd67ffcfa541b485a3dff59865ab629aa048a6c613e639d36e7456b0b229241 AS tools
# iptables 1.8.9, both variants; kmod for the container that loads modules.
RUN apt-get update && apt-get install --yes --no-install-recommends iptables kmod && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/ /
# Root: every use of this image writes the node's kernel, and `kubectl debug` has no flag for the user.
USER 0:0
ENTRYPOINT ["/usr/bin/fairlead"]
