//! In nftables mode: maps of VIPs, and chains behind them that end in dnat.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context as _, Result};
use netlink::nft::{ElementData, Expr, FieldReader, NftHandle, Register, Rule, Table, Verdict};
use proto::model::IpFamily;

use super::{ConnectionVerdict, Reached, VipAddress, VipKey, VipRules};
use crate::nft::{NAME, table_family};

const MODE: &str = "nftables";
/// More than the longest path of chains, in case they form a cycle.
const MAX_DEPTH: usize = 4;

/// The content of a table of kube-proxy.
struct TableContent {
    family: IpFamily,
    chains: BTreeMap<String, Vec<Rule>>,
    /// The anonymous maps of rules: endpoints, or chains.
    maps: BTreeMap<String, Vec<MapValue>>,
}

/// A value of a map.
enum MapValue {
    Endpoint(SocketAddr),
    Chain(String),
}

pub(super) fn read(family: IpFamily) -> Result<BTreeMap<VipKey, VipRules>> {
    let mut handle = NftHandle::open()?;
    let tables = handle.tables(table_family(family)).context("list the tables of nf_tables")?;
    let Some(table) = tables.into_iter().find(|table| table.name == NAME) else {
        return Ok(BTreeMap::new());
    };
    let content = TableContent::read(&mut handle, &table, family)?;
    let mut vips = BTreeMap::new();
    for (map, has_address) in [("service-ips", true), ("service-nodeports", false)] {
        for (vip, verdict) in verdicts(&mut handle, &table, map, family, has_address)? {
            let Some(chain) = verdict.chain() else { continue };
            let Reached { internal, external } = content.reached(chain);
            let [internal, external] =
                [internal, external].map(|endpoints| ConnectionVerdict::of(endpoints, ConnectionVerdict::Drop));
            vips.insert(vip, VipRules { mode: MODE, service: service(chain), internal, external });
        }
    }
    for (map, has_address) in [("no-endpoint-services", true), ("no-endpoint-nodeports", false)] {
        for (vip, verdict) in verdicts(&mut handle, &table, map, family, has_address)? {
            let verdict = if verdict.chain().is_some() { ConnectionVerdict::Reject } else { ConnectionVerdict::Drop };
            // With policy Local it may apply to external connections only.
            vips.entry(vip).or_insert_with(|| VipRules::everywhere(MODE, None, verdict));
        }
    }
    Ok(vips)
}

/// The service port in the name of a chain: `ns1/svc1:p80` of `service-ULMVA6XW-ns1/svc1/tcp/p80`.
fn service(chain: &str) -> Option<String> {
    let mut words = chain.split('/');
    let namespace = words.next()?.rsplit_once('-').map(|_| chain.split('/').next())??;
    // A dash follows the prefix and the hash; the namespace may contain dashes.
    let namespace = namespace.splitn(3, '-').nth(2)?;
    let (name, _protocol, port) = (words.next()?, words.next()?, words.next().unwrap_or_default());
    let colon = if port.is_empty() { "" } else { ":" };
    Some(format!("{namespace}/{name}{colon}{port}"))
}

/// The elements of a map of VIPs. A map that does not exist is empty.
fn verdicts(
    handle: &mut NftHandle,
    table: &Table,
    map: &str,
    family: IpFamily,
    has_address: bool,
) -> Result<Vec<(VipKey, Verdict<'static>)>> {
    let listed = handle.elements(table, map, Vec::new, |list: &mut Vec<_>, element| {
        let mut fields = FieldReader::new(element.key);
        let address = if has_address { address(&mut fields, family) } else { None };
        let (Some(protocol), Some(port)) = (fields.proto(), fields.port()) else { return };
        let address = address.map_or(VipAddress::NodePort(port), |address| VipAddress::Ip(address, port));
        if let ElementData::Verdict(verdict) = element.data {
            list.push((VipKey { family, address, protocol }, verdict.into_owned()));
        }
    });
    match listed {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        listed => listed.with_context(|| format!("list the map {map}")),
    }
}

fn address(fields: &mut FieldReader<'_>, family: IpFamily) -> Option<IpAddr> {
    match family {
        IpFamily::V4 => fields.ipv4().map(IpAddr::V4),
        IpFamily::V6 => fields.ipv6().map(IpAddr::V6),
    }
}

impl TableContent {
    fn read(handle: &mut NftHandle, table: &Table, family: IpFamily) -> Result<Self> {
        let mut chains = BTreeMap::<_, Vec<_>>::new();
        let mut names = BTreeSet::new();
        for listed in handle.rules(table).context("list kube-proxy's rules")? {
            names.extend(listed.rule.exprs.iter().filter_map(looked_up).map(|(set, _)| set.to_owned()));
            chains.entry(listed.chain).or_default().push(listed.rule);
        }
        let mut maps = BTreeMap::new();
        // Named maps contain VIPs, and clients with session affinity.
        for name in names.into_iter().filter(|name| name.starts_with("__")) {
            let entries = handle.elements(table, &name, Vec::new, |list: &mut Vec<_>, element| match element.data {
                ElementData::Value(value) => {
                    let mut fields = FieldReader::new(value);
                    let endpoint = address(&mut fields, family).zip(fields.port());
                    list.extend(endpoint.map(|endpoint| MapValue::Endpoint(endpoint.into())));
                }
                ElementData::Verdict(verdict) => {
                    list.extend(verdict.chain().map(|chain| MapValue::Chain(chain.to_owned())));
                }
                ElementData::None => {}
            });
            maps.insert(name, entries.context("list the endpoints of a chain")?);
        }
        Ok(Self { family, chains, maps })
    }

    /// The endpoints that a chain leads to.
    fn reached(&self, chain: &str) -> Reached {
        if !chain.starts_with("external-") {
            let endpoints = self.endpoints(chain, MAX_DEPTH);
            return Reached::by_all(endpoints);
        }
        let mut reached = Reached::default();
        for rule in self.chains.get(chain).into_iter().flatten() {
            let Some(target) = goto(rule) else { continue };
            let endpoints = self.endpoints(target, MAX_DEPTH);
            if is_conditional(rule) {
                reached.add_internal(endpoints);
            } else {
                reached.add_all(endpoints);
            }
        }
        reached
    }

    /// The destinations of dnat in a chain and those that it leads to.
    fn endpoints(&self, chain: &str, depth: usize) -> BTreeSet<SocketAddr> {
        let mut endpoints = BTreeSet::new();
        for rule in self.chains.get(chain).into_iter().flatten() {
            let entries = rule.exprs.iter().filter_map(looked_up);
            for entry in entries.filter_map(|(set, _)| self.maps.get(set)).flatten() {
                match entry {
                    MapValue::Endpoint(endpoint) => {
                        endpoints.insert(*endpoint);
                    }
                    MapValue::Chain(chain) if depth > 0 => endpoints.extend(self.endpoints(chain, depth - 1)),
                    MapValue::Chain(_) => {}
                }
            }
            endpoints.extend(self.constant(rule));
            if let Some(target) = goto(rule).filter(|_| depth > 0) {
                endpoints.extend(self.endpoints(target, depth - 1));
            }
        }
        endpoints
    }

    /// `dnat to 10.244.1.5:8080`.
    fn constant(&self, rule: &Rule) -> Option<SocketAddr> {
        let value = |register: Register| {
            rule.exprs.iter().find_map(|expr| match expr {
                Expr::Immediate { dreg, data } if *dreg == register => Some(data),
                _ => None,
            })
        };
        rule.exprs.iter().find_map(|expr| match expr {
            Expr::Nat { addr: Some(addr), port: Some(port), .. } => {
                let address = address(&mut FieldReader::new(value(*addr)?), self.family)?;
                Some(SocketAddr::new(address, FieldReader::new(value(*port)?).port()?))
            }
            _ => None,
        })
    }
}

/// The map of a lookup, and the register that receives the value.
fn looked_up(expr: &Expr) -> Option<(&str, Register)> {
    match expr {
        Expr::Lookup { set, dreg: Some(dreg), .. } => Some((set, *dreg)),
        _ => None,
    }
}

fn goto(rule: &Rule) -> Option<&str> {
    rule.exprs.iter().find_map(|expr| match expr {
        Expr::Verdict(verdict) => verdict.chain(),
        _ => None,
    })
}

/// Whether a rule matches only some packets.
fn is_conditional(rule: &Rule) -> bool {
    let compares =
        |expr: &Expr| matches!(expr, Expr::Cmp { .. } | Expr::Range { .. } | Expr::Lookup { .. } | Expr::Fib { .. });
    rule.exprs.iter().any(compares)
}
