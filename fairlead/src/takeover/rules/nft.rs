//! In nftables mode: maps of VIPs, and chains behind them that end in dnat.

use std::{collections::HashMap, net::SocketAddr};

use anyhow::{Context as _, Result};
use backend::dataplane::Vip;
use netlink::nft::{ElementData, Expr, FieldReader, NftHandle, Rule, Table, Verdict};
use proto::model::{IpFamily, Protocol};

use super::{Chains, ConnectionVerdict, KubeProxyRules, RuleTargets, VipKey, VipRules};
use crate::{
    modes::Mode,
    takeover::{KUBE_PROXY_TABLE, nft_tables},
};

/// The elements of a map.
type Verdicts = Vec<(VipKey, Verdict<'static>)>;

pub(super) fn read() -> Result<KubeProxyRules> {
    let mut handle = NftHandle::open()?;
    let mut vips = KubeProxyRules::new();
    for (family, table) in nft_tables(&mut handle, KUBE_PROXY_TABLE)? {
        let mut chains = Chains::default();
        for listed in handle.rules(&table).context("list kube-proxy's rules")? {
            let targets = targets(&mut handle, &table, family, &listed.rule)?;
            chains.0.entry(listed.chain).or_default().push(targets);
        }
        for map in ["service-ips", "service-nodeports"] {
            for (vip, verdict) in verdicts(&mut handle, &table, map, family)? {
                let Some(chain) = verdict.chain() else { continue };
                let endpoints = chains.reached(chain, chain.starts_with("external-"));
                vips.insert(vip, VipRules::new(Mode::Nftables, service(chain), endpoints));
            }
        }
        for map in ["no-endpoint-services", "no-endpoint-nodeports"] {
            for (vip, verdict) in verdicts(&mut handle, &table, map, family)? {
                let rejects = verdict.chain().is_some();
                let verdict = if rejects { ConnectionVerdict::Reject } else { ConnectionVerdict::Drop };
                // With policy Local it may apply to external connections only.
                vips.entry(vip).or_insert_with(|| VipRules::everywhere(Mode::Nftables, None, verdict));
            }
        }
    }
    Ok(vips)
}

/// The service port in the name of a chain: `ns1/svc1:p80` of `service-ULMVA6XW-ns1/svc1/tcp/p80`.
fn service(chain: &str) -> Option<String> {
    // The prefix and the hash contain no dashes.
    let mut words = chain.splitn(3, '-').nth(2)?.split('/');
    let namespace = words.next()?;
    let name = words.next()?;
    let _protocol = words.next()?;
    match words.next() {
        Some(port) if !port.is_empty() => Some(format!("{namespace}/{name}:{port}")),
        _ => Some(format!("{namespace}/{name}")),
    }
}

/// The elements of a map of VIPs: the keys of `*-nodeports` have no address. A map that does not exist is empty.
fn verdicts(handle: &mut NftHandle, table: &Table, map: &str, family: IpFamily) -> Result<Verdicts> {
    let has_address = !map.ends_with("-nodeports");
    let listed = handle.elements(table, map, Vec::new, |list: &mut Vec<_>, element| {
        let mut fields = FieldReader::new(element.key);
        let address = if has_address { fields.addr(family) } else { None };
        let protocol = fields.proto().and_then(Protocol::from_number);
        let (Some(protocol), Some(port)) = (protocol, fields.port()) else { return };
        let vip = match address {
            Some(address) => Vip::AddressPort { address, port, protocol },
            None => Vip::NodePort { port, protocol },
        };
        if let ElementData::Verdict(verdict) = element.data {
            list.push((VipKey { family, vip }, verdict.into_owned()));
        }
    });
    match listed {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        listed => listed.with_context(|| format!("list the map {map}")),
    }
}

fn targets(handle: &mut NftHandle, table: &Table, family: IpFamily, rule: &Rule) -> Result<RuleTargets> {
    let mut targets = RuleTargets::default();
    let mut constants = HashMap::new();
    for expr in &rule.exprs {
        match expr {
            Expr::Cmp { .. } | Expr::Range { .. } | Expr::Fib { .. } => targets.is_conditional = true,
            // Named maps contain VIPs, and clients with session affinity; anonymous maps endpoints, or their chains.
            Expr::Lookup { set, dreg: Some(_), .. } if set.starts_with("__") => {
                targets.is_conditional = true;
                let mapped = mapped_targets(handle, table, family, set).context("list the endpoints of a chain")?;
                targets.endpoints.extend(mapped.endpoints);
                targets.chains.extend(mapped.chains);
            }
            Expr::Lookup { .. } => targets.is_conditional = true,
            Expr::Verdict(verdict) => targets.chains.extend(verdict.chain().map(str::to_owned)),
            Expr::Immediate { dreg, data } => drop(constants.insert(*dreg, data)),
            // `dnat to 10.244.1.5:8080`
            Expr::Nat { addr: Some(addr), port: Some(port), .. } => {
                let [addr, port] =
                    [addr, port].map(|register| constants.get(register).map(|data| FieldReader::new(data)));
                let address = addr.and_then(|mut fields| fields.addr(family));
                let port = port.and_then(|mut fields| fields.port());
                targets.endpoints.extend(address.zip(port).map(SocketAddr::from));
            }
            _ => {}
        }
    }
    Ok(targets)
}

/// The endpoints in an anonymous map, or their chains.
fn mapped_targets(handle: &mut NftHandle, table: &Table, family: IpFamily, map: &str) -> Result<RuleTargets> {
    let listed = handle.elements(table, map, RuleTargets::default, |targets, element| match element.data {
        ElementData::Value(value) => {
            let mut fields = FieldReader::new(value);
            let endpoint = fields.addr(family).zip(fields.port());
            targets.endpoints.extend(endpoint.map(SocketAddr::from));
        }
        ElementData::Verdict(verdict) => targets.chains.extend(verdict.chain().map(str::to_owned)),
        ElementData::None => {}
    });
    Ok(listed?)
}
