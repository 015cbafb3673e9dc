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


class Rollouts(unittest.TestCase):
    def test_chart_templates_render_the_fields_of_the_stateful_set(self):
        usage = re.search(r"(?s)templates:\n\n(  spec:.*?)\*/", (EXAMPLES / "_drained.tpl").read_text())[1]
        pod = rendered(usage)["spec"]
        _, stateful_set = load((EXAMPLES / "statefulset.yaml").read_text())
        expected = stateful_set["spec"]["template"]["spec"]
        for field in ["volumes", "initContainers"]:
            self.assertEqual(pod[field], expected[field], field)
        for field in ["env", "volumeMounts", "lifecycle"]:
            self.assertEqual(pod["containers"][0][field], expected["containers"][0][field], field)

    def test_timeouts_are_shorter_than_the_grace_period(self):
        _, stateful_set = load((EXAMPLES / "statefulset.yaml").read_text())
        pod = stateful_set["spec"]["template"]["spec"]
        *_, timeout = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        self.assertLess(int(timeout.removesuffix("s")), pod["terminationGracePeriodSeconds"])

    def test_admission_policy_adds_the_same(self):
        policy, binding = load((EXAMPLES / "mutating-admission-policy.yaml").read_text())
        self.assertEqual(binding["spec"]["policyName"], policy["metadata"]["name"])
        text = (EXAMPLES / "statefulset.yaml").read_text()
        variables = {variable["name"]: variable["expression"] for variable in policy["spec"]["variables"]}
        for name in ["volume", "install", "mount", "hook", "env"]:
            for literal in re.findall(r'"([^"]+)"', variables[name]):
                self.assertIn(literal, text, name)


if __name__ == "__main__":
    unittest.main()
