# Two images: `fairlead`, the program and nothing else, and `tools`, with what the iptables backend, IPVS and taking over from kube-proxy run.
#
#   docker build --target fairlead --tag fairlead/fairlead:0.1.0 .
#   docker build --target tools --tag fairlead/fairlead:0.1.0-tools .
#
# `make image-rootfs` runs the program in such a root, without a container.

FROM rust:1.95-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends musl-tools && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# Static: it needs no library of the image that it is in. It keeps its symbols: backtraces and profiles have names by them.
RUN target="$(uname -m)-unknown-linux-musl" \
 && rustup target add "$target" \
 && cargo build --release --locked --package fairlead --target "$target" \
 && install -D --mode 0755 "target/$target/release/fairlead" /out/usr/bin/fairlead \
 && strip --strip-debug /out/usr/bin/fairlead

FROM scratch AS fairlead
COPY --from=build /out/ /
ENV PATH=/usr/bin
# A frontend. Backends are started as root, with NET_ADMIN.
USER 65532:65532
ENTRYPOINT ["/usr/bin/fairlead"]

FROM debian:bookworm-slim AS tools
# iptables 1.8.9, both variants; kmod for the container that loads modules.
RUN apt-get update && apt-get install --yes --no-install-recommends iptables kmod && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/ /
ENTRYPOINT ["/usr/bin/fairlead"]
