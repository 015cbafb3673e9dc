"""An upgrade keeps the certificates that Helm has created and looks up in the cluster, here a small API server."""

import base64
import copy
import http.server
import json
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

from helm_python import Config

import render

VALUES = {"apiServer": {"host": "192.0.2.10"}}
RESOURCES = {
    "/api/v1": [("secrets", "Secret", ""), ("configmaps", "ConfigMap", "")],
    "/apis/discovery.k8s.io/v1": [("endpointslices", "EndpointSlice", "discovery.k8s.io")],
    "/apis/apps/v1": [
        ("deployments", "Deployment", "apps"),
        ("statefulsets", "StatefulSet", "apps"),
        ("daemonsets", "DaemonSet", "apps"),
    ],
}
PLURALS = {"Secret": "secrets", "ConfigMap": "configmaps", "EndpointSlice": "endpointslices"}


class Cluster:
    """A read-only API server with some objects, by path."""

    def __init__(self, objects):
        paths = {}
        for item in objects:
            plural = PLURALS.get(item["kind"])
            if plural:
                prefix = "/api/" if item["apiVersion"] == "v1" else "/apis/"
                meta = item["metadata"]
                paths[f"{prefix}{item['apiVersion']}/namespaces/{meta['namespace']}/{plural}/{meta['name']}"] = item
        for plural, kind, _ in RESOURCES["/apis/apps/v1"]:
            items = [item for item in objects if item["kind"] == kind]
            paths[f"/apis/apps/v1/{plural}"] = {"kind": f"{kind}List", "apiVersion": "apps/v1", "items": items}
        for path, kinds in RESOURCES.items():
            listed = [
                {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get"]}
                for name, kind, _ in kinds
            ]
            version = path.removeprefix("/apis/").removeprefix("/api/")
            paths[path] = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": listed}
        paths["/api"] = {"kind": "APIVersions", "versions": ["v1"]}
        groups = []
        for name in ["discovery.k8s.io", "apps"]:
            version = {"groupVersion": f"{name}/v1", "version": "v1"}
            groups.append({"name": name, "versions": [version], "preferredVersion": version})
        paths["/apis"] = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                path = self.path.split("?")[0]
                found = paths.get(path)
                absent = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
                body = json.dumps(found or absent).encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self):
        self.thread.start()
        configuration = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.server.server_port}"}}],
            "users": [{"name": "u", "user": {}}],
        }
        self.config = Config(kubeconfig_content=json.dumps(configuration), namespace=render.NAMESPACE)
        return self.config

    def __exit__(self, *_):
        self.config.close()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def by_name(objects, kind):
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


def upgrade(before, values):
    """Renders the chart in a cluster with these objects."""
    with Cluster(before) as cluster:
        return render.objects(values, renderer=cluster, is_upgrade=True)


def authority(directory, name):
    """A CA as the frontend creates it: certificate and key."""
    certificate, key = Path(directory, f"{name}.crt"), Path(directory, f"{name}.key")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-subj", "/CN=fairlead-ca", "-days", "100", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run(command, capture_output=True, check=True)
    return certificate.read_text(), key.read_text()


def verifies(certificate, bundle, name="fairlead.kube-system.svc"):
    """Whether a backend with this bundle accepts this certificate of the frontend."""
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory, file) for file in ["tls.crt", "ca.crt"]]
        paths[0].write_text(certificate)
        paths[1].write_text(bundle)
        command = ["openssl", "verify", "-purpose", "sslserver", "-verify_hostname", name]
        command += ["-CAfile", str(paths[1]), str(paths[0])]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def decoded(item, key):
    return base64.b64decode(item["data"][key]).decode()


class Upgrade(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.first = render.objects(VALUES)

    def test_an_upgrade_keeps_authority_and_certificate(self):
        second = upgrade(self.first, VALUES)
        for kind in ["Secret", "ConfigMap"]:
            self.assertEqual(by_name(second, kind), by_name(self.first, kind))

    def renewed(self):
        """The objects of a release whose frontend renewed certificates, while it replaced the authority."""
        objects = copy.deepcopy(self.first)
        secrets, trusted = by_name(objects, "Secret"), by_name(objects, "ConfigMap")["fairlead-ca"]
        old = trusted["data"]["ca.crt"]
        with tempfile.TemporaryDirectory() as directory:
            current, following = authority(directory, "current"), authority(directory, "next")
        fields = ["tls.crt", "tls.key", "next.crt", "next.key", "previous.crt"]
        for key, text in zip(fields, [*current, *following, old], strict=True):
            secrets["fairlead-ca"]["data"][key] = base64.b64encode(text.encode()).decode()
        secrets["fairlead-tls"]["metadata"]["annotations"]["fairlead.io/generation"] = "1"
        trusted["data"]["ca.crt"] = old + current[0] + following[0]
        return objects

    def test_an_upgrade_keeps_a_renewed_authority(self):
        live = self.renewed()
        second = upgrade(live, VALUES)
        self.assertEqual(by_name(second, "ConfigMap"), by_name(live, "ConfigMap"))
        authorities = [by_name(objects, "Secret")["fairlead-ca"] for objects in [live, second]]
        self.assertEqual(set(authorities[1]["data"]), {"tls.crt", "tls.key"})
        for key in ["tls.crt", "tls.key"]:
            self.assertEqual(decoded(authorities[1], key), decoded(authorities[0], key))
        # The certificate of the other release would expire: nothing renews it now.
        certificate = decoded(by_name(second, "Secret")["fairlead-tls"], "tls.crt")
        self.assertNotEqual(certificate, decoded(by_name(live, "Secret")["fairlead-tls"], "tls.crt"))
        self.assertTrue(verifies(certificate, by_name(second, "ConfigMap")["fairlead-ca"]["data"]["ca.crt"]))
        self.assertTrue(verifies(certificate, decoded(authorities[1], "tls.crt")))
        third = upgrade(second, VALUES)
        for kind in ["Secret", "ConfigMap"]:
            self.assertEqual(by_name(third, kind), by_name(second, kind))

    def test_the_bundle_always_has_the_authority_that_signs(self):
        live = self.renewed()
        certificate = decoded(by_name(live, "Secret")["fairlead-ca"], "tls.crt")
        old = by_name(self.first, "ConfigMap")["fairlead-ca"]["data"]["ca.crt"]
        for bundle, expected in [(None, certificate), (old, certificate + old)]:
            changed = [item for item in live if item["kind"] != "ConfigMap"]
            if bundle:
                [trusted] = [copy.deepcopy(item) for item in live if item["metadata"]["name"] == "fairlead-ca"][1:]
                trusted["data"]["ca.crt"] = bundle
                changed.append(trusted)
            found = by_name(upgrade(changed, VALUES), "ConfigMap")["fairlead-ca"]["data"]["ca.crt"]
            self.assertEqual(found, expected)

    def test_without_a_cluster_certificates_are_created_again(self):
        # Otherwise the test above could not fail.
        again = render.objects(VALUES)
        self.assertNotEqual(by_name(again, "Secret"), by_name(self.first, "Secret"))

    def test_a_new_generation_issues_a_certificate_of_the_same_authority(self):
        values = {**VALUES, "tls": {"selfSigned": {"generation": 2}}}
        second = upgrade(self.first, values)
        old, new = by_name(self.first, "Secret"), by_name(second, "Secret")
        self.assertEqual(new["fairlead-ca"]["data"], old["fairlead-ca"]["data"])
        self.assertEqual(by_name(second, "ConfigMap"), by_name(self.first, "ConfigMap"))
        self.assertNotEqual(new["fairlead-tls"]["data"], old["fairlead-tls"]["data"])
        # The next upgrade keeps the new one.
        self.assertEqual(by_name(upgrade(second, values), "Secret"), new)

    def test_a_new_authority_signs_a_new_certificate(self):
        without = [item for item in self.first if item["metadata"]["name"] != "fairlead-ca"]
        second = by_name(upgrade(without, VALUES), "Secret")
        old = by_name(self.first, "Secret")
        for name in ["fairlead-ca", "fairlead-tls"]:
            self.assertNotEqual(second[name]["data"], old[name]["data"])

    def test_the_certificate_is_for_the_frontend_and_the_nodes_trust_it(self):
        secret, trusted = by_name(self.first, "Secret")["fairlead-tls"], by_name(self.first, "ConfigMap")["fairlead-ca"]
        certificate = decoded(secret, "tls.crt")
        for name, right in [("fairlead.kube-system.svc", True), ("other.kube-system.svc", False)]:
            self.assertEqual(verifies(certificate, trusted["data"]["ca.crt"], name), right)

    def test_addresses_of_api_servers_are_those_of_the_cluster(self):
        endpoints = [{"addresses": ["192.0.2.22"]}, {"addresses": ["192.0.2.21"]}]
        metadata = {"name": "kubernetes", "namespace": "default"}
        kind = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
        slices = [{**kind, "metadata": metadata, "endpoints": endpoints}]
        rendered = upgrade(slices, {})
        [backend] = by_name(rendered, "DaemonSet").values()
        arguments = backend["spec"]["template"]["spec"]["containers"][0]["args"]
        found = [argument for argument in arguments if argument.startswith("--frontend=")]
        self.assertEqual(found, ["--frontend=https://192.0.2.21:7600", "--frontend=https://192.0.2.22:7600"])
        # Frontends use the API server of their own node.
        [frontend] = by_name(rendered, "Deployment").values()
        environment = frontend["spec"]["template"]["spec"]["containers"][0]["env"]
        host = next(variable for variable in environment if variable["name"] == "KUBERNETES_SERVICE_HOST")
        self.assertEqual(host["valueFrom"]["fieldRef"]["fieldPath"], "status.hostIP")
        # Where all pods would use one of several, Helm warns.
        for values, warns in [
            ({}, False),
            ({"deployment": "local"}, True),
            ({"backend": {"discovery": "api"}}, True),
            ({"deployment": "local", **VALUES}, False),
        ]:
            with Cluster(slices) as cluster:
                files = render.templates(values, renderer=cluster, is_upgrade=True)
            self.assertEqual("apiServer.host is empty" in files["templates/NOTES.txt"], warns, values)

    def test_an_upgrade_names_the_hooks_at_the_port_of_health_checks(self):
        def workload(kind, name, pre_stop):
            containers = [{"name": "sidecar"}, {"name": "web", "lifecycle": {"preStop": pre_stop}}]
            metadata = {"name": name, "namespace": "shop"}
            spec = {"template": {"spec": {"containers": containers}}}
            return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}

        shell = 'wget -qO- "http://$HOST_IP:10256/drained" || true'
        others = [
            workload("Deployment", "new", {"httpGet": {"path": "/drained", "port": 24256}}),
            workload("Deployment", "own", {"httpGet": {"path": "/stop", "port": 10256}}),
            workload("Deployment", "sleeps", {"sleep": {"seconds": 5}}),
        ]
        old = [
            workload("StatefulSet", "store", {"httpGet": {"path": "/drained?timeout=20s", "port": 10256}}),
            workload("DaemonSet", "agent", {"exec": {"command": ["sh", "-c", shell]}}),
        ]

        def notes(found, values=VALUES):
            with Cluster(self.first + found) as cluster:
                return render.templates(values, renderer=cluster, is_upgrade=True)["templates/NOTES.txt"]

        warned = notes(others + old)
        for name in ["StatefulSet shop/store, container web", "DaemonSet shop/agent, container web"]:
            self.assertIn(f"     {name}\n", warned)
        self.assertNotIn("Deployment shop/", warned)
        self.assertNotIn("preStop", notes(others))
        self.assertNotIn("preStop", notes(old, {**VALUES, "backend": {"drained": {"atHealthz": False}}}))


if __name__ == "__main__":
    unittest.main()
