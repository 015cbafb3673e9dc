//! Where the texts come from: the kernel, files, the agent, the frontend.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, Result, bail};
use backend::Store;
use netlink::nft::{Element, NftBatch, NftHandle, Table, TableFamily};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// How long the agent may take for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Files of the kernel that tell of its network.
pub(super) const KERNEL_FILES: [&str; 12] = [
    "/proc/version",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/modules",
    "/proc/net/dev",
    "/proc/net/route",
    "/proc/net/ipv6_route",
    "/proc/net/snmp",
    "/proc/net/netstat",
    "/proc/net/sockstat",
    "/proc/net/stat/nf_conntrack",
    "/proc/net/ip_vs_stats",
];
/// Settings, below `/proc/sys/net`.
const SETTINGS: [&str; 16] = [
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

pub(super) fn settings() -> String {
    let value = |name: &&str| {
        let value = file(&format!("/proc/sys/net/{name}")).unwrap_or_else(|error| format!("({error:#})"));
        format!("net.{} = {}\n", name.replace('/', "."), value.trim())
    };
    SETTINGS.iter().map(value).collect()
}

/// The command lines of the programs of ours that run here.
pub(super) fn processes() -> Result<String> {
    let mut text = String::new();
    for process in fs::read_dir("/proc")?.flatten().map(|entry| entry.path()) {
        let is_ours = fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim() == "fairlead");
        if let (true, Ok(line)) = (is_ours, fs::read(process.join("cmdline"))) {
            let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
            text += &format!("{}: {}\n", process.display(), words.join("\n    "));
        }
    }
    Ok(text)
}

/// Every table of nf_tables, as nft would write it.
pub(super) fn nft() -> Result<Vec<(String, String)>> {
    let mut handle = NftHandle::open().context("open nf_tables")?;
    let mut tables = Vec::new();
    for family in [TableFamily::Ip, TableFamily::Ip6, TableFamily::Inet] {
        for table in handle.tables(family)? {
            let name = format!("nft/{family}-{}.txt", table.name);
            tables.push((name, self::table(&mut handle, &table)?));
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
        // Gathered anew when somebody disturbs it.
        let add = |batch: &mut NftBatch, element: Element<'_>| batch.add_elements(table, set, [element]);
        text += &handle.elements(table, &set.name, NftBatch::new, add)?.to_string();
    }
    Ok(text)
}

/// The virtual servers of ours.
pub(super) async fn ipvs() -> Result<String> {
    let servers = backend_ipvs::virtual_servers().await?;
    let lines = servers.iter().map(|server| format!("{server:#?}\n"));
    let text: String = lines.collect();
    if text.is_empty() {
        bail!("there are none");
    }
    Ok(text)
}

/// The last state that was kept, in words.
pub(super) fn state(dir: &Path, node: &str) -> Result<String> {
    let path = dir.join("state");
    if !path.is_file() {
        bail!("{} is not there", path.display());
    }
    let (_, stored) = Store::open(path, node);
    let stored = stored.context("it cannot be read, or is of another node")?;
    Ok(serde_json::to_string_pretty(&to_json(&stored.state))?)
}

/// What a node is told.
pub(super) fn to_json(state: &backend::NodeState) -> serde_json::Value {
    let services = state
        .service_ports()
        .values()
        .map(|service| json!({ "service_port": service.port, "cluster": service.cluster, "local": service.local }));
    json!({ "node": state.node(), "cluster": state.cluster(), "services": services.collect::<Vec<_>>() })
}

/// What the agent answers to GET.
pub(super) async fn ask(agent: SocketAddr, path: &str) -> Result<String> {
    let asked = async {
        let mut stream = TcpStream::connect(agent).await.with_context(|| format!("connect to {agent}"))?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {agent}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        anyhow::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = timeout(PATIENCE, asked).await.with_context(|| format!("no answer within {PATIENCE:?}"))??;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer in HTTP")?;
    let status = head.lines().next().unwrap_or_default();
    if !status.contains(" 200 ") && !status.ends_with(" 200") {
        bail!("{status}");
    }
    Ok(body.to_owned())
}
