"""Renders the chart with Helm's library and parses the result.

Golden files omit keys and certificates, which differ in every run, and copies of what is in files/."""

import re
from pathlib import Path

import yaml
from helm_python import Chart

CHART = Path(__file__).resolve().parent.parent
TOP = CHART.parent.parent
CASES = sorted((CHART / "tests/cases").glob("*.yaml"))
RELEASE, NAMESPACE = "fairlead", "kube-system"


class Strict(yaml.SafeLoader):
    """YAML without duplicate keys, of which Helm and Kubernetes would use the last one without an error."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        duplicates = {key for key in keys if keys.count(key) > 1}
        if duplicates:
            raise yaml.constructor.ConstructorError(None, None, f"duplicate keys: {duplicates}", node.start_mark)
        return super().construct_mapping(node, deep)


def load(text):
    return [document for document in yaml.load_all(text, Strict) if document]


def values(case):
    return yaml.load(case.read_text(), Strict)


def templates(given, renderer=None, **options):
    """The text of each template with any output, by path within the chart."""
    with Chart.load(CHART) as chart:
        render = chart.render if renderer is None else lambda *args, **kw: renderer.render(chart, *args, **kw)
        rendered = render(given, name=RELEASE, namespace=NAMESPACE, **options)
    return {path.split("/", 1)[1]: text for path, text in sorted(rendered.items()) if text.strip()}


def objects(given, **options):
    """All objects of a release."""
    files = templates(given, **options)
    return [item for path, text in files.items() if not path.endswith("NOTES.txt") for item in load(text)]


def masked(text):
    """Replaces keys and certificates, which differ in each rendering. Base64 stays valid."""
    text = re.sub(r"(?m)^(  tls\.(?:crt|key): ).+$", r"\1bWFkZQ==", text)
    pem = r"(?s)-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----"
    return re.sub(pem, "(a certificate)", text)


def abridged(text):
    """Omits the dashboard, and all rules of a group but the first. tests/test_chart.py compares both with files/."""
    text = re.sub(r"(?s)(  fairlead\.json: \|\n)    \{.*\n    \}", r"\1    (files/dashboard.json)", text)
    rule = r"      - alert: .*\n(?:        .*\n?)+"
    return re.sub(rf"({rule})(?:{rule})+", r"\1      # The others are in files/alerts.yaml.\n", text)


def golden(case):
    """The expected content of the golden file of a case."""
    parts = [f"# Rendered with tests/cases/{case.name}. `.ci/charts --accept` writes it.\n"]
    for path, text in templates(values(case)).items():
        if not path.endswith("NOTES.txt"):
            parts.append(f"---\n# {path}\n{abridged(masked(text)).strip()}\n")
    return "".join(parts)


def golden_path(case):
    return CHART / "tests/golden" / case.name
