//! Calico's Felix beside Fairlead: with `nftablesMode: Auto` it uses nf_tables while kube-proxy does, and is restarted
//! when the cleanup deletes kube-proxy's table. Its test for kube-proxy is written here anew; Calico itself does not
//! run.

use e2e::{Cluster, Netns, fairlead};
use serde_json::Value;

/// kube-proxy's table and Felix', each with a chain.
const TABLES: &str = "add table ip kube-proxy\nadd chain ip kube-proxy services\n\
                      add table ip calico\nadd chain ip calico filter-FORWARD\n";

/// What Felix asks every 15 s: are there chains in a table `kube-proxy`?
fn felix_sees_kube_proxy(node: &Netns) -> bool {
    ["ip", "ip6"].iter().any(|family| {
        let listed = node.output("nft", &["--json", "list", "chains", family]);
        let listed: Value = serde_json::from_str(&listed).expect("JSON");
        let objects = listed["nftables"].as_array().expect("objects");
        objects.iter().any(|object| object["chain"]["table"] == "kube-proxy")
    })
}

/// The output of a command on the node.
fn run(node: &Netns, arguments: &[&str]) -> String {
    let mut command = fairlead();
    command.args(arguments);
    let output = node.run(|| command.output()).expect("fairlead runs");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn felix_is_announced_before_the_table_that_it_follows_is_deleted() {
    let cluster = Cluster::builder().nodes(1).pods_per_node(1).start();
    let node = &cluster.node('a').netns;
    assert!(!felix_sees_kube_proxy(node));
    node.run_with_input("nft", &["-f", "-"], TABLES);
    assert!(felix_sees_kube_proxy(node));

    let checked = run(node, &["check", "--pre", "--backend", "nftables"]);
    assert!(checked.contains("calico") && checked.contains("set nftablesMode: Enabled"), "{checked}");
    let cleanup = ["cleanup", "--of", "kube-proxy", "--force"];
    let announced = run(node, &[&cleanup[..], &["--dry-run"]].concat());
    assert!(announced.contains("note: Calico's Felix uses nf_tables"), "{announced}");
    assert!(felix_sees_kube_proxy(node));

    run(node, &cleanup);
    assert!(!felix_sees_kube_proxy(node), "this is when Felix restarts, unless nftablesMode is Enabled");
    let chains = node.output("nft", &["list", "chains", "ip"]);
    assert!(chains.contains("table ip calico"), "Felix' own rules stay: {chains}");
    let checked = run(node, &["check", "--pre", "--backend", "nftables"]);
    assert!(!checked.contains("nftablesMode"), "{checked}");
}
