#!/usr/bin/env python3
"""A Fairlead backend in Python that forwards Services with nginx: it writes the `stream` configuration of one node.

    backend.py --node node-a --frontend unix:/run/fairlead/frontend.sock --config stream.conf --reload 'nginx -s reload'

"rule N" refers to docs/protocol.md. This backend has no state file and computes no digests, so it receives a snapshot
at each start and from each new frontend, and differences otherwise. It serves TCP and UDP; connections to endpoints
come from nginx. SCTP, source ranges and external policy Local are not supported, and reported as failures in its acks.
"""

import argparse, ipaddress, itertools, os, pathlib, queue, random, subprocess, sys, threading, time

import grpc, xxhash

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "proto"))
PROTO, SERVICE = grpc.protos_and_services("fairlead/v1/fairlead.proto")

POOL_OF = {PROTO.TRAFFIC_POLICY_LOCAL: PROTO.POOL_CLASS_LOCAL}
PROTOCOLS = {PROTO.PROTOCOL_TCP: "", PROTO.PROTOCOL_UDP: " udp"}
LEVELS = {PROTO.DRAIN_STATE_IN_USE: "in use", PROTO.DRAIN_STATE_BEHIND: "behind", PROTO.DRAIN_STATE_DRAINED: "drained"}


class State:
    """The committed state of this node."""

    def __init__(self):
        self.ports, self.pools = {}, {}  # key -> ServicePort; key -> {(class, family): {(address, port)}}
        self.loaded = None  # the configuration that this process has made nginx load

    def commit(self, operations):
        kinds = [operation.WhichOneof("operation") for operation in operations]
        if None in kinds:
            raise ValueError("unknown operation: the frontend is newer than this backend")  # rule 2
        for operation in operations:
            check_enums(operation)
        for kind, operation in zip(kinds, operations):
            getattr(self, kind)(getattr(operation, kind))

    def put_service_port(self, port):
        self.ports[key_of(port.key)] = port
        self.pools.setdefault(key_of(port.key), {})

    def remove_service_port(self, key):
        self.ports.pop(key_of(key), None)
        self.pools.pop(key_of(key), None)

    def reset_bucket(self, bucket):
        for key in [*self.ports]:
            if xxhash.xxh64_intdigest("\0".join(key[:3]).encode() + bytes([0, key[3]])) % 128 == bucket:
                del self.ports[key], self.pools[key]

    def change_pool(self, change):
        self.pool(change).difference_update(unpack(change, change.remove))
        self.pool(change).update(unpack(change, change.add))

    def replace_pool(self, change):
        self.pool(change).clear()
        self.pool(change).update(unpack(change, change.endpoints))

    put_node = put_cluster = lambda self, info: None  # not used by this backend

    def pool(self, change):
        pools = self.pools.get(key_of(change.key), {})  # discarded if the service port is unknown
        return pools.setdefault((getattr(change, "class"), change.family), set())


def check_enums(message):
    """Raises an error if a message, or one in it, has an enum value that this backend does not know (rule 2)."""
    for field, value in message.ListFields():
        if field.enum_type and value not in field.enum_type.values_by_number:
            raise ValueError(f"unknown {field.name} {value}: the frontend is newer than this backend")
        if field.message_type:
            for part in [value] if hasattr(value, "ListFields") else value:
                check_enums(part)


def key_of(key):
    return (key.namespace, key.name, key.port_name, key.protocol)


def unpack(change, packed):
    """Packed endpoints: address, port and, in a local pool, a byte of flags, which this backend ignores."""
    size = 4 if change.family == PROTO.IP_FAMILY_V4 else 16
    step = size + 2 + (getattr(change, "class") == PROTO.POOL_CLASS_LOCAL)
    entries = [packed[at : at + step] for at in range(0, len(packed), step)]
    return {(ipaddress.ip_address(entry[:size]), int.from_bytes(entry[size : size + 2], "big")) for entry in entries}


def failure(port):
    """Why a service port is not programmed, or not completely."""
    if port.key.protocol not in PROTOCOLS:
        return "nginx does not support SCTP"
    if port.source_ranges or port.external_policy == PROTO.TRAFFIC_POLICY_LOCAL:
        return "source ranges and external policy Local are not supported: only the cluster IPs are served"


def render(state):
    """The nginx configuration: an upstream and a server per service port, IP family and pool."""
    text = []
    for key, port in sorted(state.ports.items()):
        if key[3] not in PROTOCOLS:
            continue
        internal = POOL_OF.get(port.internal_policy, PROTO.POOL_CLASS_CLUSTER)
        external_ips = [] if failure(port) else [*port.external_ips, *port.load_balancer_ips]
        for family, version, any_address in ((PROTO.IP_FAMILY_V4, 4, "0.0.0.0"), (PROTO.IP_FAMILY_V6, 6, "[::]")):
            pool_of = lambda pool_class: state.pools[key].get((pool_class, family), set())
            cluster_ips = sockets(port.cluster_ips, version, port.port)
            listeners = sockets(external_ips, version, port.port)
            if port.node_port and not failure(port):
                listeners.append(f"{any_address}:{port.node_port}")
            text += server(key, f"ip{version}-in", port, cluster_ips, pool_of(internal))
            text += server(key, f"ip{version}-out", port, listeners, pool_of(PROTO.POOL_CLASS_CLUSTER))
    return "\n".join(text) + "\n"


def server(key, suffix, port, listeners, pool):
    if not listeners or not pool:
        return []  # without a listener the kernel rejects connections
    name = ".".join([*map(str, key), suffix])
    choice = "hash $remote_addr consistent" if port.affinity_seconds else "random"
    upstream = [f"upstream {name} {{ {choice};", *(f"  server {socket(*to)};" for to in sorted(pool)), "}"]
    listen = [f"  listen {address}{PROTOCOLS[key[3]]};" for address in listeners]
    return [*upstream, "server {", *listen, f"  proxy_pass {name};", "}"]


def socket(address, port):
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def sockets(packed, version, port):
    return [socket(ip, port) for ip in map(ipaddress.ip_address, packed) if ip.version == version]


def program(state, args):
    """Writes the configuration and reloads nginx, if the configuration has changed. The first time it always does: an
    earlier process may have written the file and not reloaded nginx."""
    text = render(state)
    if text == state.loaded:
        return
    pathlib.Path(args.config + ".new").write_text(text)
    os.replace(args.config + ".new", args.config)
    subprocess.run(args.reload, shell=True, check=True)  # an error ends this process
    state.loaded = text
    print(f"programmed {len(state.ports)} service ports", flush=True)


def messages(call):
    """The messages of a stream. Cancels a stream on which nothing was received for 30 s."""
    message = True
    while message:
        timer = threading.Timer(30, call.cancel)  # seconds, rule 7
        timer.start()
        message = next(call, None)
        timer.cancel()
        yield from [message] if message else []


def follow(channel, args, state, committed):
    """Follows one stream to its end. Takes and returns epoch and revision of the committed state. Also returns for how
    many seconds there was a session, and the most to wait for before the next one."""
    outgoing, staged, base, number, first, limit = queue.SimpleQueue(), [], None, 0, None, 3
    client = {"protocol_version": 1, "node": args.node, "backend": "nginx", "backend_version": "1"}
    outgoing.put(PROTO.ClientMessage(hello=PROTO.Hello(epoch=committed[0], revision=committed[1], **client)))
    call = SERVICE.FairleadStub(channel).Watch(iter(outgoing.get, None))
    try:
        for message in messages(call):
            revision, kind, first = None, message.WhichOneof("message"), first or time.monotonic()
            if kind == "welcome":
                epoch, resumes = message.welcome.epoch, message.welcome.mode == PROTO.SYNC_MODE_RESUME
                base = committed[1] if resumes else None
            elif kind == "batch":
                if base not in (None, message.batch.base_revision):
                    raise ValueError("base_revision is not the committed revision")  # rule 5
                staged += message.batch.operations
                if message.batch.commit:  # rule 4
                    state.commit(staged)
                    program(state, args)
                    staged, revision = [], message.batch.target_revision
            elif kind == "bookmark":
                revision = message.bookmark.revision
            elif kind == "drain":
                time.sleep(random.uniform(0, message.drain.max_delay_millis / 1000))
                limit = 0
                break
            elif kind is None:
                raise ValueError("unknown message: the frontend is newer than this backend")  # rule 2
            if revision is not None:
                base, number, committed = revision, number + 1, (epoch, revision)
                outgoing.put(ack(state.ports.values(), number))  # rule 6
    except (grpc.RpcError, ValueError) as error:
        if not first and error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            limit = 15  # the frontend rejects this client
        print(f"stream ended: {error.details() if isinstance(error, grpc.RpcError) else error}", flush=True)
    finally:
        outgoing.put(None)
        call.cancel()
    return committed, time.monotonic() - first if first else 0, limit


def ack(ports, number):
    failures = [PROTO.ServicePortFailure(key=port.key, reason=why) for port in ports if (why := failure(port))]
    sizes = itertools.accumulate(failed.ByteSize() for failed in failures)
    failures = [failed for failed, size in zip(failures, sizes) if size <= 256 << 10]
    return PROTO.ClientMessage(ack=PROTO.Ack(received_number=number, programmed_number=number, failures=failures))


def follow_drains(args, options):
    """Prints how far the pods of this node are drained, as it changes ("Drains" in docs/protocol.md). A backend would
    open the stream while a preStop hook waits, and follow all frontends: each speaks for the nodes that follow it."""
    levels, delay = {}, 0.2
    while True:
        try:
            with grpc.insecure_channel(args.frontend, options) as channel:
                for message in SERVICE.FairleadStub(channel).Drains(PROTO.DrainsRequest(node=args.node)):
                    before, levels, delay = levels, levels_by_address(message), 0.2
                    for address in sorted({*before, *levels}, key=str):
                        text = levels.get(address, "unknown")
                        if text != before.get(address):
                            print(f"pod {address}: {text}", flush=True)
        except grpc.RpcError as error:
            print(f"stream of Drains ended: {error.details()}", flush=True)
        time.sleep(random.uniform(delay / 2, delay))  # rule 12: more streams than one a second are refused
        delay = min(2 * delay, 4)


def levels_by_address(message):
    """The level of each address: of several pods there, that of the one which is furthest from drained."""
    of_pods = {}
    for level in message.levels:
        state = level.state if level.state in LEVELS else PROTO.DRAIN_STATE_IN_USE  # a newer one is not drained either
        of_pods.setdefault(ipaddress.ip_address(level.address), []).append((state, [*level.behind]))
    worst = {address: min(levels) for address, levels in of_pods.items()}
    return {address: " ".join([LEVELS[state], *behind]) for address, (state, behind) in worst.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frontend", required=True, help="unix:/PATH or HOST:PORT")
    parser.add_argument("--node", required=True, help="name of the Node object")
    parser.add_argument("--config", required=True, help="file that nginx includes within stream { }")
    parser.add_argument("--reload", required=True, help="shell command that reloads nginx")
    parser.add_argument("--drains", action="store_true", help="print how far the pods of the node are drained")
    args = parser.parse_args()
    # By default gRPC sends the path of a unix socket as the authority, which HTTP/2 does not allow, and channels share
    # connections.
    options = [("grpc.default_authority", "frontend"), ("grpc.use_local_subchannel_pool", 1)]
    options.append(("grpc.max_receive_message_length", 1 << 21))
    if args.drains:
        # A stream without messages for long is checked with pings.
        pings = [("grpc.keepalive_time_ms", 10_000), ("grpc.http2.max_pings_without_data", 0)]
        threading.Thread(target=follow_drains, args=(args, [*options, *pings]), daemon=True).start()
    state, committed, lost = State(), (0, 0), time.monotonic()
    while True:  # rule 10
        with grpc.insecure_channel(args.frontend, options) as channel:
            committed, lasted, limit = follow(channel, args, state, committed)
        if lasted > 3:
            lost = time.monotonic()
        if limit or lasted <= 3:
            time.sleep(random.uniform(0.2, min(max(time.monotonic() - lost, 0.4), limit)))


if __name__ == "__main__":
    main()
