"""The examples for Argo CD and Flux: their values are valid and render, and both name the same chart."""

import unittest

import render
from render import CHART, TOP

EXAMPLES = TOP / "docs/examples/gitops"


class GitOps(unittest.TestCase):
    def test_argocd_renders_without_the_cluster(self):
        (application,) = render.load((EXAMPLES / "argocd.yaml").read_text())
        source = application["spec"]["source"]
        self.assertEqual(TOP / source["path"], CHART)
        rendered = render.objects(source["helm"]["valuesObject"])
        # Certificates of Helm would differ in each rendering.
        self.assertEqual([item["metadata"]["name"] for item in rendered if item["kind"] == "Secret"], [])
        self.assertIn("Certificate", {item["kind"] for item in rendered})

    def test_flux_renders_with_what_helm_finds_in_the_cluster(self):
        repository, release = render.load((EXAMPLES / "flux.yaml").read_text())
        chart = release["spec"]["chart"]["spec"]
        self.assertEqual(TOP / chart["chart"], CHART)
        self.assertEqual(chart["sourceRef"]["name"], repository["metadata"]["name"])
        # Helm finds the API server in the cluster.
        self.assertTrue(render.objects({**release["spec"]["values"], "apiServer": {"host": "192.0.2.10"}}))


if __name__ == "__main__":
    unittest.main()
