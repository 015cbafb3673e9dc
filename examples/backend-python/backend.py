#!/usr/bin/env python3
"""A Fairlead backend in Python: keeps an nginx `stream` configuration equal to what a frontend says of a node.

    backend.py --node node-a --frontend unix:/run/fairlead/frontend.sock --config stream.conf --reload 'nginx -s reload'

"rule N" is one of docs/protocol.md. It keeps no state file and computes no digests, so it is sent everything when it starts, and differences for as long as
one frontend lives. It serves TCP and UDP, masqueraded. What it cannot do it says in its acks: SCTP, source ranges, external policy Local.
"""

import argparse, ipaddress, os, pathlib, queue, random, subprocess, sys, threading, time

import grpc, xxhash

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "proto"))
PROTO, SERVICE = grpc.protos_and_services("fairlead/v1/fairlead.proto")

POOL_OF = {PROTO.TRAFFIC_POLICY_LOCAL: PROTO.POOL_CLASS_LOCAL}
PROTOCOLS = {PROTO.PROTOCOL_TCP: "", PROTO.PROTOCOL_UDP: " udp"}


class State:
    """What this node holds. Changes at a commit only."""

    def __init__(self):
        self.ports, self.pools = {}, {}  # key -> ServicePort; key -> {(class, family): {(address, port)}}

    def commit(self, operations):
        kinds = [operation.WhichOneof("operation") for operation in operations]
        if None in kinds:
            raise ValueError("an operation that is unknown here: the frontend is too new")  # rule 2
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

    put_node = put_cluster = lambda self, facts: None  # not needed here

    def pool(self, change):
        pools = self.pools.get(key_of(change.key), {})  # one of a service port that is unknown is lost
        return pools.setdefault((getattr(change, "class"), change.family), set())


def key_of(key):
    return (key.namespace, key.name, key.port_name, key.protocol)


def unpack(change, packed):
    """Endpoints: address, port, and in a local pool a byte of flags, which does not matter here."""
    size = 4 if change.family == PROTO.IP_FAMILY_V4 else 16
    step = size + 2 + (getattr(change, "class") == PROTO.POOL_CLASS_LOCAL)
    parts = [packed[at : at + step] for at in range(0, len(packed), step)]
    return {(ipaddress.ip_address(part[:size]), int.from_bytes(part[size : size + 2], "big")) for part in parts}


def failure(port):
    """Why a service port is not programmed, or not all of it."""
    if port.key.protocol not in PROTOCOLS:
        return "nginx does not speak SCTP"
    if port.source_ranges or port.external_policy == PROTO.TRAFFIC_POLICY_LOCAL:
        return "no source ranges, no external policy Local: only its cluster IPs are served"


def render(state):
    """The configuration: an upstream and its listeners for each service port, family and pool. Pure."""
    text = []
    for key, port in sorted(state.ports.items()):
        if key[3] not in PROTOCOLS:
            continue
        inside = POOL_OF.get(port.internal_policy, PROTO.POOL_CLASS_CLUSTER)
        outside = [] if failure(port) else [*port.external_ips, *port.load_balancer_ips]
        for family, version, every in ((PROTO.IP_FAMILY_V4, 4, "0.0.0.0"), (PROTO.IP_FAMILY_V6, 6, "[::]")):
            pool_of = lambda pool_class: state.pools[key].get((pool_class, family), set())
            listeners = sockets(outside, version, port.port)
            if port.node_port and not failure(port):
                listeners.append(f"{every}:{port.node_port}")
            text += server(key, f"ip{version}-in", port, sockets(port.cluster_ips, version, port.port), pool_of(inside))
            text += server(key, f"ip{version}-out", port, listeners, pool_of(PROTO.POOL_CLASS_CLUSTER))
    return "\n".join(text) + "\n"


def server(key, suffix, port, listeners, pool):
    if not listeners or not pool:
        return []  # nobody listens, so the kernel refuses
    name = ".".join([*map(str, key), suffix])
    choice = "hash $remote_addr consistent" if port.affinity_seconds else "random"
    upstream = [f"upstream {name} {{ {choice};", *(f"  server {socket(*to)};" for to in sorted(pool)), "}"]
    return [*upstream, "server {", *(f"  listen {at}{PROTOCOLS[key[3]]};" for at in listeners), f"  proxy_pass {name};", "}"]


def socket(address, port):
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def sockets(packed, version, port):
    return [socket(ip, port) for ip in map(ipaddress.ip_address, packed) if ip.version == version]


def program(state, args):
    """Makes nginx do what the state says. Writes and reloads only if that is something else than before."""
    text, config = render(state), pathlib.Path(args.config)
    if config.exists() and config.read_text() == text:
        return
    pathlib.Path(args.config + ".new").write_text(text)
    os.replace(args.config + ".new", config)
    subprocess.run(args.reload, shell=True, check=True)
    print(f"programmed {len(state.ports)} service ports", flush=True)


def heard(call):
    """The messages of a stream. One in which nothing is said is taken for dead."""
    message = True
    while message:
        timer = threading.Timer(30, call.cancel)  # seconds, rule 7
        timer.start()
        message = next(call, None)
        timer.cancel()
        yield from [message] if message else []


def follow(stub, args, state, held):
    """Follows one stream to its end. Returns what is held then: epoch and revision."""
    said, staged, base = queue.SimpleQueue(), [], None
    about = {"protocol_version": 1, "node": args.node, "backend": "nginx", "backend_version": "1"}
    said.put(PROTO.ClientMessage(hello=PROTO.Hello(epoch=held[0], revision=held[1], **about)))
    call = stub.Watch(iter(said.get, None))
    try:
        for message in heard(call):
            begun, done, kind = time.monotonic(), None, message.WhichOneof("message")
            if kind == "welcome":
                epoch, resumes = message.welcome.epoch, message.welcome.mode == PROTO.SYNC_MODE_RESUME
                base = held[1] if resumes else None
            elif kind == "batch":
                if base not in (None, message.batch.base_revision):
                    raise ValueError("a difference from a revision that is not held")  # rule 5
                staged += message.batch.operations
                if message.batch.commit:  # rule 4
                    state.commit(staged)
                    program(state, args)
                    staged, done = [], message.batch.target_revision
            elif kind == "bookmark":
                done = message.bookmark.revision
            elif kind == "drain":
                time.sleep(random.uniform(0, message.drain.max_delay_millis / 1000))
                break
            if done is not None:
                base, held = done, (epoch, done)
                said.put(ack(state, done, time.monotonic() - begun))  # rule 6
    except (grpc.RpcError, ValueError) as error:
        print(f"stream ended: {error.details() if isinstance(error, grpc.RpcError) else error}", flush=True)
    finally:
        said.put(None)
        call.cancel()
    return held


def ack(state, revision, took):
    listed = [PROTO.Failure(key=port.key, reason=failure(port)) for port in state.ports.values() if failure(port)]
    return PROTO.ClientMessage(ack=PROTO.Ack(revision=revision, apply_micros=int(took * 1e6), failures=listed))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frontend", required=True, help="unix:/PATH or HOST:PORT")
    parser.add_argument("--node", required=True, help="metadata.name of the Node")
    parser.add_argument("--config", required=True, help="the file that nginx includes within stream { }")
    parser.add_argument("--reload", required=True, help="what makes nginx read it")
    args = parser.parse_args()
    # By itself gRPC names the path of a unix socket there, which is no authority, and frontends refuse it.
    options = [("grpc.default_authority", "frontend"), ("grpc.max_receive_message_length", 1 << 21)]
    channel = grpc.insecure_channel(args.frontend, options)
    state, held, delay = State(), (0, 0), 0.2
    while True:  # rule 10
        begun = time.monotonic()
        held = follow(SERVICE.FairleadStub(channel), args, state, held)
        delay = 0.4 if time.monotonic() - begun > 15 else min(delay * 2, 15)
        time.sleep(random.uniform(0.2, delay))


if __name__ == "__main__":
    main()
