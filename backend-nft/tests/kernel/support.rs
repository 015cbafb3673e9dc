//! Shared by the tests: a network namespace with a runtime, the backend, and the command `nft`.

use backend::testing::ProgramAll as _;
use std::process::Command;

use backend::{
    NodeState, SyncReport,
    dataplane::{DataplaneOptions, LocalDetector},
};
use backend_nft::Nft;
pub(crate) use netlink::testing::block_on_in_netns as run;
use netlink::{nft::TableFamily, testing::rename_table};

/// With pods in 10.244.0.0/16 and fd00:244::/32.
pub(crate) fn options() -> DataplaneOptions {
    let cidrs = ["10.244.0.0/16", "fd00:244::/32"];
    let local_detector = LocalDetector::ClusterCidr(cidrs.map(|cidr| cidr.parse().unwrap()).to_vec());
    DataplaneOptions { local_detector, ..DataplaneOptions::default() }
}

pub(crate) fn backend() -> Nft {
    backend_nft::open(options()).unwrap()
}

/// Reconciles with a new instance, as after a restart.
pub(crate) async fn reconcile(state: &NodeState) -> SyncReport {
    backend().reconcile_all(state).await.unwrap()
}

/// Runs `nft` with these arguments, which must print no warnings. Returns its output.
#[track_caller]
pub(crate) fn nft(arguments: &str) -> String {
    let (output, warnings) = nft_with_warnings(arguments);
    assert!(warnings.is_empty(), "nft {arguments}: {warnings}");
    output
}

/// Runs `nft`. Returns its output and its warnings.
#[track_caller]
fn nft_with_warnings(arguments: &str) -> (String, String) {
    let output = Command::new("nft").args(arguments.split(' ')).output().unwrap();
    let warnings = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "nft {arguments}: {:?} {warnings}", output.status);
    (String::from_utf8(output.stdout).unwrap(), warnings)
}

/// Makes our tables those of another layout.
pub(crate) fn rename_tables(name: &str) {
    for family in [TableFamily::Ip, TableFamily::Ip6] {
        rename_table(family, backend::NFT_TABLE, name).unwrap();
    }
}

/// Checks that nft can list our tables as text and as JSON.
#[track_caller]
pub(crate) fn assert_readable() {
    for table in ["ip fairlead1", "ip6 fairlead1"] {
        let text = nft(&format!("list table {table}"));
        assert!(text.starts_with(&format!("table {table} {{")), "{text}");
        for unknown in ["unknown", "0x00000000 [invalid type]"] {
            assert!(!text.contains(unknown), "{text}");
        }
        let (json, warnings) = nft_with_warnings(&format!("-j list table {table}"));
        // nft has no JSON for rules that write to a map, and prints them as text.
        let other = warnings.lines().find(|line| *line != "warning: stmt ops map have no json callback");
        assert_eq!(other, None);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!(json["nftables"].as_array().is_some_and(|list| list.len() > 10));
    }
}
