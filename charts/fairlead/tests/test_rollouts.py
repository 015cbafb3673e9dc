"""The examples of rollouts: the templates for charts render what the StatefulSet has."""

import re
import tempfile
import unittest
from pathlib import Path

import yaml
from helm_python import Chart
from render import TOP, load

EXAMPLES = TOP / "docs/examples/rollouts"
CHART = "apiVersion: v2\nname: example\nversion: 0.1.0\n"


def rendered(template):
    """The document that the template of a chart with these named templates renders."""
    with tempfile.TemporaryDirectory() as directory:
        chart = Path(directory)
        (chart / "templates").mkdir()
        (chart / "Chart.yaml").write_text(CHART)
        (chart / "values.yaml").write_text("")
        (chart / "templates/_drained.tpl").write_text((EXAMPLES / "_drained.tpl").read_text())
        (chart / "templates/pod.yaml").write_text(template)
        with Chart.load(chart) as loaded:
            (text,) = loaded.render({}, name="example", namespace="default").values()
    return yaml.safe_load(text)


def stateful_set():
    """The pod spec of the StatefulSet."""
    _, document = load((EXAMPLES / "statefulset.yaml").read_text())
    return document["spec"]["template"]["spec"]


class Rollouts(unittest.TestCase):
    def test_chart_template_renders_the_hook_of_the_stateful_set(self):
        usage = re.search(r"(?s)templates:\n\n(  spec:.*?)\*/", (EXAMPLES / "_drained.tpl").read_text())[1]
        container = rendered(usage)["spec"]["containers"][0]
        self.assertEqual(container["lifecycle"], stateful_set()["containers"][0]["lifecycle"])

    def test_timeout_is_shorter_than_the_grace_period(self):
        pod = stateful_set()
        _, timeout = pod["containers"][0]["lifecycle"]["preStop"]["httpGet"]["path"].split("?timeout=")
        self.assertLess(int(timeout.removesuffix("s")), pod["terminationGracePeriodSeconds"])

    def test_admission_policy_adds_the_same(self):
        policy, binding = load((EXAMPLES / "mutating-admission-policy.yaml").read_text())
        self.assertEqual(binding["spec"]["policyName"], policy["metadata"]["name"])
        variables = {variable["name"]: variable["expression"] for variable in policy["spec"]["variables"]}
        hook = yaml.safe_load(re.sub(r"dyn\(([^)]*)\)", r"\1", variables["hook"]))
        self.assertEqual(hook, stateful_set()["containers"][0]["lifecycle"]["preStop"])


if __name__ == "__main__":
    unittest.main()
