//! Reads the content of the archive from the kernel, files and the backend.

use std::{fs, net::SocketAddr, path::Path};

use anyhow::{Context as _, Result, ensure};
use backend::StoredState;
use netlink::nft::{Element, NftBatch, NftHandle, Table, TableFamily};
use serde_json::json;

use crate::{
    commands::services,
    http_get::{HttpResponse, RESPONSE_TIMEOUT, http_get},
};

/// Files of the kernel with network settings and statistics.
pub(super) const KERNEL_FILES: [&str; 10] = [
    "/proc/version",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/modules",
    "/proc/net/dev",
    "/proc/net/snmp",
    "/proc/net/netstat",
    "/proc/net/sockstat",
    "/proc/net/stat/nf_conntrack",
    "/proc/net/ip_vs_stats",
];
/// Files of the kernel with routes, whose addresses are hexadecimal numbers.
pub(super) const ROUTE_FILES: [&str; 2] = ["/proc/net/route", "/proc/net/ipv6_route"];
/// Sysctls, relative to `/proc/sys/net`.
const SYSCTLS: [&str; 16] = [
    "ipv4/ip_forward",
    "ipv4/ip_local_port_range",
    "ipv4/conf/all/rp_filter",
    "ipv4/conf/all/route_localnet",
    "ipv4/conf/all/arp_ignore",
    "ipv4/conf/all/arp_announce",
    "ipv6/conf/all/forwarding",
    "bridge/bridge-nf-call-iptables",
    "bridge/bridge-nf-call-ip6tables",
    "ipv4/vs/conntrack",
    "ipv4/vs/conn_reuse_mode",
    "ipv4/vs/expire_nodest_conn",
    "netfilter/nf_conntrack_count",
    "netfilter/nf_conntrack_max",
    "netfilter/nf_conntrack_buckets",
    "netfilter/nf_conntrack_tcp_be_liberal",
];

pub(super) fn file(path: &str) -> Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

pub(super) fn sysctls() -> String {
    let value = |name: &&str| {
        let value = file(&format!("/proc/sys/net/{name}")).unwrap_or_else(|error| format!("({error:#})"));
        format!("net.{} = {}\n", name.replace('/', "."), value.trim())
    };
    SYSCTLS.iter().map(value).collect()
}

/// The command lines of running processes of Fairlead.
pub(super) fn processes() -> Result<String> {
    let mut text = String::new();
    for process in fs::read_dir("/proc")?.flatten().map(|entry| entry.path()) {
        let is_fairlead = fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim() == "fairlead");
        if let (true, Ok(line)) = (is_fairlead, fs::read(process.join("cmdline"))) {
            let arguments: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
            text += &format!("{}: {}\n", process.display(), arguments.join("\n    "));
        }
    }
    Ok(text)
}

/// All tables of nf_tables, in the syntax of nft. One that cannot be read does not affect the others.
pub(super) fn nft() -> Result<Vec<(String, Result<String>)>> {
    let mut handle = NftHandle::open().context("cannot open a netlink socket for nf_tables")?;
    let mut tables = Vec::new();
    for family in [TableFamily::Ip, TableFamily::Ip6, TableFamily::Inet] {
        for table in handle.tables(family)? {
            let name = format!("{family}-{}", table.name);
            tables.push((name, self::table(&mut handle, &table)));
        }
    }
    Ok(tables)
}

fn table(handle: &mut NftHandle, table: &Table) -> Result<String> {
    let mut batch = NftBatch::new();
    batch.add_table(table);
    let sets = handle.sets(table)?;
    sets.iter().for_each(|set| batch.add_set(table, set));
    for chain in handle.chains(table)? {
        batch.add_chain(table, &chain);
    }
    for listed in handle.rules(table)? {
        batch.add_rule(table, &listed.chain, &listed.rule);
    }
    let mut text = batch.to_string();
    for set in &sets {
        // The dump restarts when another process changes the set.
        let add = |batch: &mut NftBatch, element: Element<'_>| batch.add_elements(table, set, [element]);
        text += &handle.elements(table, &set.name, NftBatch::new, add)?.to_string();
    }
    Ok(text)
}

/// Fairlead's virtual servers.
pub(super) async fn ipvs() -> Result<String> {
    let servers = backend_ipvs::virtual_servers().await?;
    ensure!(!servers.is_empty(), "no virtual servers");
    Ok(servers.iter().map(|server| format!("{server:#?}\n")).collect())
}

/// The last committed state, from the state file.
pub(super) fn state(dir: &Path, node: &str) -> Result<String> {
    let path = dir.join("state");
    ensure!(path.is_file(), "{} does not exist", path.display());
    let stored = StoredState::read(&path, node).context("the state file is unreadable, or of another node")?;
    Ok(serde_json::to_string_pretty(&to_json(&stored.state))?)
}

/// The state of a node as JSON.
pub(super) fn to_json(state: &backend::NodeState) -> serde_json::Value {
    json!({ "node": state.node(), "cluster": state.cluster(), "services": services::to_json(state) })
}

/// The body of a successful response of the backend.
pub(super) async fn backend_response(backend: Option<SocketAddr>, path: &str) -> Result<String> {
    let backend = backend.context("--backend-address is none")?;
    let HttpResponse { status, line, body } = http_get(backend, path, RESPONSE_TIMEOUT).await?;
    ensure!(status == 200, "{line}");
    Ok(body)
}
