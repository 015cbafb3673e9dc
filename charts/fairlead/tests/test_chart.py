"""The chart over a matrix of values: objects refer to each other correctly, have only the permissions
that they need, and equal the golden files. tests/e2e/tests/chart.rs checks types and flags.
"""

import itertools
import json
import re
import subprocess
import unittest

from helm_python import HelmError

import render
from render import CASES, CHART, TOP

API = {"apiServer": {"host": "192.0.2.10"}}
MODES = ["nftables", "nft", "iptables", "ipvs"]
TLS = [
    {"mode": "selfSigned"},
    {"mode": "certManager"},
    {"mode": "existingSecret", "existingSecret": {"name": "our-tls", "caConfigMap": "our-ca"}},
]
NETWORKS = [
    {"frontend": {"metrics": {"exposed": True}}},
    {"frontend": {"metrics": {"exposed": True}}, "backend": {"discovery": "api"}},
    {"frontend": {"hostNetwork": False, "nodeSelector": {}}, "backend": {"discovery": "api"}},
]
MONITORS = [{}, {kind: {"enabled": True} for kind in ["serviceMonitor", "podMonitor", "prometheusRule", "dashboard"]}]
# Objects that exist besides the chart: from the cluster, the operator, cert-manager.
GIVEN = {("ConfigMap", "kube-root-ca.crt"), ("Secret", "our-tls"), ("ConfigMap", "our-ca")}


def matrix():
    """Values, each with a name."""
    for mode in MODES:
        yield f"local {mode}", {**API, "deployment": "local", "mode": mode}
    for mode, tls, identity, place in itertools.product(MODES, TLS, ["token", "kubelet"], NETWORKS):
        for monitoring in MONITORS:
            yield (
                f"{mode} {tls['mode']} {identity} {place} {'monitored' if monitoring else ''}",
                {**API, "mode": mode, "tls": tls, "identity": identity, "monitoring": monitoring, **place},
            )


def pods(objects):
    """Each object that creates pods, with the pod template."""
    for item in objects:
        if item["kind"] in ("Deployment", "DaemonSet"):
            yield item, item["spec"]["template"]
        elif item["kind"] == "Pod":
            yield item, item


def volumes_of(volume):
    """The (kind, name) of each object that a volume refers to."""
    sources = [volume, *volume.get("projected", {}).get("sources", [])]
    for source in sources:
        if "secret" in source:
            yield "Secret", source["secret"].get("secretName") or source["secret"].get("name")
        if "configMap" in source:
            yield "ConfigMap", source["configMap"]["name"]


def paths(value, prefix=""):
    """Every key of an object, as a path, without indexes of lists and without keys of maps that users choose."""
    if isinstance(value, dict):
        for key, child in value.items():
            free = prefix.endswith(("/labels", "/annotations", "/matchLabels", "/data", "/selector", "/nodeSelector"))
            path = f"{prefix}/*" if free else f"{prefix}/{key}"
            yield path
            yield from paths(child, path)
    elif isinstance(value, list):
        for child in value:
            yield from paths(child, prefix)


def shapes(objects):
    """The keys of objects, and the flags of their programs, all of which must occur in golden files."""
    for item in objects:
        yield from paths(item, item["kind"])
        if item["kind"] in ("Deployment", "DaemonSet", "Pod"):
            for _, pod in pods([item]):
                for container in pod["spec"]["containers"]:
                    yield from (argument.split("=")[0] for argument in container["args"])


class Golden(unittest.TestCase):
    def test_golden_files_equal_the_rendered_chart(self):
        for case in CASES:
            with self.subTest(case.name):
                path = render.golden_path(case)
                found = path.read_text() if path.exists() else ""
                self.assertEqual(render.golden(case), found, "review it, then accept it: .ci/charts --accept")

    def test_every_golden_file_has_a_case(self):
        found = {path.name for path in (CHART / "tests/golden").iterdir()}
        self.assertEqual({case.name for case in CASES}, found)


class Matrix(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rendered = [(name, render.objects(values)) for name, values in matrix()]
        cls.golden = [(case.name, render.objects(render.values(case))) for case in CASES]

    def each(self):
        for name, objects in self.rendered + self.golden:
            with self.subTest(name):
                yield objects

    def test_golden_files_contain_every_key_and_flag(self):
        shown = set(itertools.chain(*(shapes(objects) for _, objects in self.golden)))
        for objects in self.each():
            self.assertEqual(set(shapes(objects)) - shown, set())

    def test_objects_have_unique_names(self):
        for objects in self.each():
            keys = [(item["kind"], item["metadata"]["name"]) for item in objects]
            self.assertEqual(len(keys), len(set(keys)), sorted(keys))

    def test_selectors_match_their_pods(self):
        for objects in self.each():
            labels = [pod["metadata"]["labels"] for item, pod in pods(objects) if item["kind"] != "Pod"]
            for item in objects:
                selector = item.get("spec", {}).get("podSelector", item.get("spec", {}).get("selector", {}))
                selector = selector.get("matchLabels", selector)
                if not selector:
                    continue
                if item["kind"] == "ServiceMonitor":
                    found = [other for other in objects if other["kind"] == "Service"]
                    found = [other["metadata"]["labels"] for other in found]
                else:
                    found = labels
                found = [one for one in found if selector.items() <= one.items()]
                self.assertEqual(len(found), 1, (item["kind"], selector))
                # A selector matches pods of the object's own component only.
                self.assertLessEqual(selector.items(), item["metadata"]["labels"].items())

    def test_references_of_pods_exist(self):
        for objects in self.each():
            there = GIVEN | {(item["kind"], item["metadata"]["name"]) for item in objects}
            there |= {("Secret", item["spec"]["secretName"]) for item in objects if item["kind"] == "Certificate"}
            for item, pod in pods(objects):
                spec = pod["spec"]
                self.assertIn(("ServiceAccount", spec["serviceAccountName"]), there)
                volumes = {volume["name"] for volume in spec["volumes"]}
                containers = spec["containers"] + spec.get("initContainers", [])
                mounted = {mount["name"] for one in containers for mount in one["volumeMounts"]}
                self.assertEqual(volumes, mounted, item["metadata"]["name"])
                for volume in spec["volumes"]:
                    for reference in volumes_of(volume):
                        self.assertIn(reference, there)

    def test_nodes_have_no_frontend_key_and_no_api_token_unless_configured(self):
        for objects in self.each():
            backend = next(item for item in objects if item["kind"] == "DaemonSet")
            frontend = next((item for item in objects if item["kind"] == "Deployment"), None)
            spec = backend["spec"]["template"]["spec"]
            self.assertEqual(spec["automountServiceAccountToken"], frontend is None)
            ours = {one for volume in spec["volumes"] for one in volumes_of(volume) if one[0] == "Secret"}
            if frontend:
                theirs = frontend["spec"]["template"]["spec"]["volumes"]
                theirs = {one for volume in theirs for one in volumes_of(volume) if one[0] == "Secret"}
                self.assertEqual(ours & theirs, set())
            sources = [source for one in spec["volumes"] for source in one.get("projected", {}).get("sources", [])]
            tokens = [source["serviceAccountToken"] for source in sources if "serviceAccountToken" in source]
            by_api = any("--discovery-kubeconfig" in arg for arg in spec["containers"][0]["args"])
            for_api = [token for token in tokens if token.get("audience") != "fairlead"]
            self.assertEqual(len(for_api), int(by_api))

    def test_containers_have_only_the_capabilities_they_need(self):
        for objects in self.each():
            for item, pod in pods(objects):
                for container in pod["spec"]["containers"]:
                    context = container["securityContext"]
                    self.assertTrue(context["readOnlyRootFilesystem"])
                    self.assertFalse(context["allowPrivilegeEscalation"])
                    self.assertEqual(context["capabilities"]["drop"], ["ALL"])
                    added = set(context["capabilities"].get("add", []))
                    node = item["kind"] == "DaemonSet"
                    scored = any(arg.startswith("--oom-score-adj=") for arg in container["args"]) if node else False
                    self.assertEqual("SYS_RESOURCE" in added, scored)
                    self.assertLessEqual(added - {"SYS_RESOURCE"}, {"NET_ADMIN", "NET_RAW"} if node else set())
                    if node:
                        has_tools = "-tools" in container["image"]
                        resets = "--reset-connections=never" not in str(objects)
                        self.assertEqual("NET_RAW" in added, has_tools or resets)
                    self.assertTrue(node or pod["spec"]["securityContext"]["runAsNonRoot"])

    def test_liveness_probes_do_not_depend_on_a_frontend(self):
        for objects in self.each():
            backend = next(item for item in objects if item["kind"] == "DaemonSet")
            [container] = backend["spec"]["template"]["spec"]["containers"]
            if container["args"][0] == "cleanup":
                self.assertFalse({"ports", "livenessProbe", "readinessProbe"} & set(container))
                continue
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            for probe, path in [("startup", "/livez"), ("liveness", "/livez"), ("readiness", "/readyz")]:
                self.assertEqual(container[f"{probe}Probe"]["httpGet"], {"path": path, "port": "health"})
            given = dict(argument.removeprefix("--").split("=", 1) for argument in container["args"] if "=" in argument)
            self.assertEqual(int(given["healthz"].split(":")[1]), ports["health"])
            self.assertEqual(int(given["metrics"].split(":")[1]), ports["metrics"])

    def test_commands_in_a_backend_have_its_settings_as_variables(self):
        served_only = {"healthz", "metrics", "connection-metrics", "max-loss", "oom-score-adj", "shadow", "backend"}
        served_only |= {"log", "log-format"}
        for objects in self.each():
            backend = next(item for item in objects if item["kind"] == "DaemonSet")
            [container] = backend["spec"]["template"]["spec"]["containers"]
            variables = {one["name"]: one.get("value") for one in container["env"]}
            self.assertFalse({"FAIRLEAD_LOG", "FAIRLEAD_LOG_FORMAT"} & set(variables))
            self.assertIn("NODE_NAME", variables)
            if container["args"][0] != "backend":
                continue
            self.assertEqual(variables["FAIRLEAD_BACKEND"], container["args"][1])
            given = {}
            for argument in container["args"][2:]:
                flag, _, value = argument.removeprefix("--").partition("=")
                if flag not in served_only and not flag.startswith("conntrack-"):
                    given.setdefault(flag, []).append(value or "true")
            for flag, values in given.items():
                self.assertEqual(variables["FAIRLEAD_" + flag.upper().replace("-", "_")], ",".join(values))

    def test_preparation_continues_where_sysctls_are_read_only(self):
        [container] = [
            container
            for item in render.objects(API)
            if item["kind"] == "DaemonSet"
            for container in item["spec"]["template"]["spec"]["initContainers"]
        ]
        script = container["command"][-1].replace("/proc/sys/", "/proc/sys/no/such/").replace("modprobe", "false")
        done = subprocess.run(["sh", "-euc", script], capture_output=True, check=False, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("nf_conntrack_tcp_timeout_close_wait to 3600, leaving it unchanged", done.stderr)

    def test_init_containers_run_valid_scripts(self):
        scripts = set()
        for objects in self.each():
            for _, pod in pods(objects):
                for container in pod["spec"].get("initContainers", []):
                    if container["name"] == "cleanup":
                        continue
                    *shell, script = container["command"]
                    self.assertEqual(shell, ["/bin/sh", "-euc"])
                    scripts.add(script)
        self.assertTrue(any("modprobe ip_vs_mh" in script and "nf_conntrack_max" in script for script in scripts))
        for script in scripts:
            self.assertEqual(subprocess.run(["sh", "-n", "-c", script], capture_output=True, check=False).stderr, b"")

    def test_operators_have_an_identity_only_where_frontends_review_tokens(self):
        for values, expected in [
            ({}, True),
            ({"operators": {"serviceAccount": False}}, False),
            ({"identity": "kubelet"}, False),
            ({"deployment": "local"}, False),
        ]:
            objects = render.objects({**API, **values})
            accounts = [item["metadata"] for item in objects if item["kind"] == "ServiceAccount"]
            users = [f"system:serviceaccount:{one['namespace']}:{one['name']}" for one in accounts]
            admins = [user for user in users if f"--admin-identity={user}" in str(objects)]
            self.assertEqual([user.endswith("-operator") for user in admins], [True] if expected else [])
            self.assertEqual(any(user.endswith("-operator") for user in users), expected)

    def test_only_a_frontend_that_removes_the_startup_taint_may_patch_nodes(self):
        for values, patches in [(API, False), ({**API, "frontend": {"startupTaint": True}}, True)]:
            objects = render.objects(values)
            rules = [rule for item in objects for rule in item.get("rules", []) if "nodes" in rule.get("resources", [])]
            verbs = {verb for rule in rules for verb in rule["verbs"]}
            self.assertEqual(verbs, {"list", "watch"} | ({"get", "patch"} if patches else set()))
            kinds = {item["kind"] for item in objects}
            self.assertEqual("ValidatingAdmissionPolicy" in kinds, patches)

    def test_roles_allow_writing_only_events_and_token_reviews(self):
        for objects in self.each():
            for item in objects:
                for rule in item.get("rules", []):
                    allowed = {"tokenreviews": {"create"}, "events": {"create"}}
                    if any(item["kind"] == "ValidatingAdmissionPolicy" for item in objects):
                        allowed["nodes"] = {"list", "watch", "get", "patch"}
                    if "nonResourceURLs" in rule:
                        self.assertEqual((rule["nonResourceURLs"], rule["verbs"]), (["/openid/v1/jwks"], ["get"]))
                        continue
                    for resource in rule["resources"]:
                        self.assertLessEqual(set(rule["verbs"]), allowed.get(resource, {"list", "watch"}))
                    self.assertNotIn("secrets", rule["resources"])

    def test_dashboard_and_alerts_are_those_in_files(self):
        dashboard = (CHART / "files/dashboard.json").read_text()
        runbooks = render.values(CHART / "values.yaml")["monitoring"]["prometheusRule"]["runbookURL"]
        alerts = (CHART / "files/alerts.yaml").read_text().replace("RUNBOOKS", runbooks)
        groups = render.load(alerts)[0]["groups"]
        # The keys of the type, of which the golden files show one rule of each group.
        for rule in itertools.chain(*(group["rules"] for group in groups)):
            self.assertLessEqual(set(rule), {"alert", "expr", "for", "labels", "annotations"})
        found = set()
        for objects in self.each():
            split = any(item["kind"] == "Deployment" for item in objects)
            for item in objects:
                if item["kind"] == "ConfigMap" and item["metadata"]["name"] == "fairlead-dashboard":
                    self.assertEqual(item["data"]["fairlead.json"], dashboard)
                elif item["kind"] == "PrometheusRule":
                    expected = [group for group in groups if split or group["name"] == "fairlead-backends"]
                    self.assertEqual(item["spec"]["groups"], expected)
                else:
                    continue
                found.add((item["kind"], split))
        self.assertEqual(found, set(itertools.product(["ConfigMap", "PrometheusRule"], [True, False])))

    def test_the_matrix_covers_every_template(self):
        covered = set()
        for _, values in [*matrix(), *((case.name, render.values(case)) for case in CASES)]:
            covered |= set(render.templates(values))
        templates = {str(path.relative_to(CHART)) for path in (CHART / "templates").rglob("*.yaml")}
        self.assertEqual(templates - covered, set())


class Rejections(unittest.TestCase):
    def test_contradictory_values_are_rejected_with_a_hint(self):
        pods = {"frontend": {"hostNetwork": False}}
        policy = {"enabled": True, "nodeCIDRs": ["192.0.2.0/24"]}
        for values, hint in [
            ({}, "frontend.addresses"),
            ({"deployment": "local"}, "apiServer.host"),
            ({**API, **pods}, "backend.discovery: api"),
            ({**pods, "backend": {"discovery": "api"}}, "apiServer.host"),
            ({**API, "deployment": "local", "frontend": {"startupTaint": True}}, "deployment: split"),
            ({**API, "tls": {"mode": "existingSecret"}}, "tls.existingSecret"),
            ({**API, "monitoring": {"serviceMonitor": {"enabled": True}}}, "frontend.metrics.exposed"),
            ({**API, "monitoring": {"backends": {"enabled": True}}}, "backend.metrics.exposed"),
            ({**API, **pods, "backend": {"discovery": "api"}, "networkPolicy": {"enabled": True}}, "nodeCIDRs"),
            ({**API, "networkPolicy": policy}, "frontend.hostNetwork: false"),
            ({**API, "deployment": "local", "networkPolicy": policy}, "deployment: split"),
        ]:
            with self.subTest(values), self.assertRaises(HelmError) as caught:
                render.objects(values)
            self.assertIn(hint, str(caught.exception))

    def test_the_schema_rejects_unknown_and_invalid_values(self):
        for values in [
            {"modes": "nftables"},
            {"mode": "ebpf"},
            {"frontend": {"replica": 3}},
            {"frontend": {"replicas": "3"}},
            {"backend": {"prepareNode": {"sysctls": {"a": "$(reboot)"}}}},
            {"traffic": {"nodePortAddresses": ["primary", "10.0.0.0/8"]}},
            {"traffic": {"masqueradeBit": 32}},
            {"ipvs": {"scheduler": "random"}},
            {"image": {"digest": "latest"}},
            {"commonLabels": {"app.kubernetes.io/name": "x"}},
        ]:
            with self.subTest(values), self.assertRaises(HelmError):
                render.objects({**API, **values})

    def test_the_schema_and_the_values_have_the_same_keys(self):
        schema = json.loads((CHART / "values.schema.json").read_text())
        open_objects = []

        def compare(schema, values, path):
            known = schema.get("properties", {})
            if "$ref" in schema:
                return compare(json.loads(json.dumps(defs[schema["$ref"].split("/")[-1]])), values, path)
            if schema.get("additionalProperties") is False and isinstance(values, dict) and known:
                self.assertLessEqual(set(values), set(known), path)
                optional = {"requests", "limits", "claims", "global", "name", "kind", "group"}
                self.assertLessEqual(set(known) - set(values) - optional, set(), path)
                for key in values:
                    compare(known[key], values[key], f"{path}.{key}")
            elif isinstance(values, dict) and values:
                open_objects.append(path)

        defs = schema["$defs"]
        compare(schema, render.values(CHART / "values.yaml"), "")
        maps = ("nodeSelector", "labels", "requests", "limits", "sysctls")
        self.assertEqual([path for path in open_objects if not path.endswith(maps)], [])


class Documentation(unittest.TestCase):
    """Comments, alerts and pages agree with the chart."""

    def test_former_names_of_values_are_accepted_with_a_warning(self):
        base = render.values(CHART / "tests/cases/local.yaml")
        traffic = {**base["traffic"], "clusterCIDRs": base["traffic"]["clusterCIDR"]}
        former = {**base, "serviceCIDRs": base["serviceCIDR"], "traffic": traffic}
        del former["serviceCIDR"], traffic["clusterCIDR"]
        notes, daemon_set = "templates/NOTES.txt", "templates/backend/daemonset.yaml"
        current, rendered = render.templates(base), render.templates(former)
        self.assertIn("--cluster-cidr=10.244.0.0/16", rendered[daemon_set])
        self.assertEqual(current[daemon_set], rendered[daemon_set])
        self.assertIn("write traffic.clusterCIDR and serviceCIDR", rendered[notes])
        self.assertNotIn("write traffic.clusterCIDR", current[notes])

    def test_every_value_is_explained(self):
        lines = (CHART / "values.yaml").read_text().splitlines()
        for number, line in enumerate(lines):
            key = re.match(r"( *)[a-zA-Z]+:(.*)$", line)
            below = lines[number + 1] if number + 1 < len(lines) else ""
            # Except maps of other values, and resources, which Kubernetes documents.
            if not key or below.startswith(f"{key[1]}  ") or key[0].strip().startswith(("requests:", "limits:")):
                continue
            above = itertools.takewhile(lambda line: line.strip().startswith("#"), reversed(lines[:number]))
            self.assertIn("# --", " ".join(above), f"values.yaml:{number + 1}: {line}")

    def metrics(self, text):
        return set(re.findall(r"(?:fairlead|kubeproxy|process)_[a-z_]+", text))

    def test_alerts_and_panels_use_existing_metrics(self):
        listed = self.metrics((TOP / "docs/metrics.md").read_text())
        for name in ["alerts.yaml", "dashboard.json"]:
            used = self.metrics((CHART / "files" / name).read_text())
            used = {re.sub("_(bucket|sum|count)$", "", metric) for metric in used}
            self.assertTrue(used)
            self.assertEqual(used - listed, set(), name)

    def test_every_alert_has_a_runbook_and_every_runbook_an_alert(self):
        page = (TOP / "docs/runbooks.md").read_text()
        headings = {match.lower() for match in re.findall(r"(?m)^## (Fairlead\w+)$", page)}
        groups = render.load((CHART / "files/alerts.yaml").read_text())[0]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        for rule in rules:
            self.assertEqual(rule["annotations"]["runbook_url"], f"RUNBOOKS#{rule['alert'].lower()}")
        self.assertEqual(headings, {rule["alert"].lower() for rule in rules})

    def test_no_single_node_raises_an_alert_about_the_state_of_nodes(self):
        groups = render.load((CHART / "files/alerts.yaml").read_text())[0]["groups"]
        alerts = {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}
        for name, metric in [("FairleadRepairs", "nodes_repaired"), ("FairleadRollbacks", "nodes_rolled_back")]:
            self.assertEqual(alerts[name], f"max(fairlead_frontend_{metric}) > 1")
        for counter in ["digest_mismatches", "rollbacks"]:
            self.assertNotIn(f"fairlead_frontend_{counter}_total", " ".join(alerts.values()))

    def test_the_chart_has_the_version_of_the_program(self):
        chart = render.values(CHART / "Chart.yaml")
        version = re.search(r'(?m)^version = "(.*)"$', (TOP / "Cargo.toml").read_text())[1]
        self.assertEqual((chart["version"], chart["appVersion"]), (version, version))


if __name__ == "__main__":
    unittest.main()
