#!/usr/bin/env python3
"""A load balancer for the cluster, as MetalLB is one in BGP mode.

It gives each Service of type LoadBalancer an address of 172.31.0.0/24, or of fd00:31::/64 if IPv6 is its first family,
and a route with several next hops to the nodes that take its connections: all, or with external policy Local those
whose health check node port answers 200. It runs in the network namespace outside of the nodes. Argument: the directory
with the certificates.
"""

import http.client
import json
import ssl
import subprocess
import sys
import time

NODES = {"IPv4": ["172.30.0.11", "172.30.0.12"], "IPv6": ["fd00:30::11", "fd00:30::12"]}
# The source addresses of connections to load balancers. They are not in the networks of the nodes: the tests would take
# them for those of a node.
SOURCES = {"IPv4": "192.168.77.1", "IPv6": "fd00:77::1"}
ADDRESSES = {"IPv4": "172.31.0.", "IPv6": "fd00:31::"}
PERIOD_SECONDS = 0.5


class Api:
    """A connection to the API server, opened again after an error."""

    def __init__(self, certificates):
        self.tls = ssl.create_default_context(cafile=certificates + "/ca.crt")
        self.tls.load_cert_chain(certificates + "/admin.crt", certificates + "/admin.key")
        self.connection = None

    def call(self, method, path, body=None):
        if self.connection is None:
            self.connection = http.client.HTTPSConnection("172.30.0.10", 6443, context=self.tls, timeout=5)
        try:
            content = None if body is None else json.dumps(body)
            self.connection.request(method, path, content, {"Content-Type": "application/merge-patch+json"})
            response = self.connection.getresponse()
            return json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError):
            self.connection = None
            raise

    def set_ingress(self, service, ingress):
        metadata = service["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/services/{metadata['name']}/status"
        self.call("PATCH", path, {"status": {"loadBalancer": {"ingress": ingress}}})


def healthy(node, port):
    try:
        connection = http.client.HTTPConnection(node, port, timeout=0.5)
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=False)


def family(address):
    return "IPv6" if ":" in address else "IPv4"


def set_route(address, nodes):
    if nodes:
        hops = [word for node in nodes for word in ("nexthop", "via", node, "weight", "1")]
        ip("route", "replace", address, "src", SOURCES[family(address)], *hops)
    else:
        ip("route", "replace", "unreachable", address)


def next_hops(spec):
    hops = NODES[spec["ipFamilies"][0]]
    if spec.get("externalTrafficPolicy") == "Local":
        hops = [node for node in hops if healthy(node, spec.get("healthCheckNodePort", 0))]
    # Load balancers that implement session affinity send a client to one node.
    return hops[:1] if spec.get("sessionAffinity") == "ClientIP" else hops


class LoadBalancer:
    def __init__(self, api):
        self.api = api
        self.addresses = {}
        self.routes = {}

    def address(self, uid, current, spec):
        free = (f"{ADDRESSES[spec['ipFamilies'][0]]}{byte}" for byte in range(10, 100))
        taken = self.addresses.values()
        return self.addresses.get(uid) or current or next(address for address in free if address not in taken)

    def step(self):
        services = self.api.call("GET", "/api/v1/services")["items"]
        wanted = {}
        for service in services:
            spec, uid = service["spec"], service["metadata"]["uid"]
            ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress") or []
            current = [entry.get("ip") for entry in ingress]
            if spec.get("type") != "LoadBalancer" or spec.get("loadBalancerClass"):
                if self.addresses.pop(uid, None) and current:
                    self.api.set_ingress(service, None)
                continue
            address = self.addresses[uid] = self.address(uid, current[0] if current else None, spec)
            if current != [address]:
                self.api.set_ingress(service, [{"ip": address}])
                print(service["metadata"]["namespace"], service["metadata"]["name"], address, flush=True)
            wanted[address] = next_hops(spec)
        uids = {service["metadata"]["uid"] for service in services}
        self.addresses = {uid: address for uid, address in self.addresses.items() if uid in uids}
        for address, nodes in wanted.items():
            if self.routes.get(address) != nodes:
                set_route(address, nodes)
        for address in self.routes.keys() - wanted.keys():
            ip("route", "del", address)
        self.routes = wanted


def main():
    for source in SOURCES.values():
        ip("addr", "add", source, "dev", "br0")
    # An address without a Service is silent: the tests take an unreachable one for a port that is still open.
    ip("link", "add", "dead0", "type", "bridge")
    ip("link", "set", "dead0", "arp", "off", "up")
    ip("route", "replace", "172.31.0.0/16", "dev", "dead0", "src", SOURCES["IPv4"])
    ip("route", "replace", "fd00:31::/64", "dev", "dead0", "src", SOURCES["IPv6"])
    # Connections, not clients, are spread over the nodes.
    for name in ("ipv4", "ipv6"):
        subprocess.run(["sysctl", "-qw", f"net.{name}.fib_multipath_hash_policy=1"], check=False)
    balancer = LoadBalancer(Api(sys.argv[1]))
    while True:
        try:
            balancer.step()
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            print("the API server does not answer:", repr(error), flush=True)
        time.sleep(PERIOD_SECONDS)


if __name__ == "__main__":
    main()
