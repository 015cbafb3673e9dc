//! By its tables in nf_tables: maps of ways in, chains behind them that end in dnat.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context as _, Result};
use netlink::nft::{ElementData, Expr, FieldReader, NftHandle, Register, Rule, Table, Verdict};

use super::{Outcome, Reached, Served, To, Way};
use crate::{Family, nft::NAME};

const MODE: &str = "nftables";
/// More chains than a packet meets behind each other, should they lead in a circle.
const DEPTH: usize = 4;

/// A table of kube-proxy's, read.
struct Tables {
    family: Family,
    chains: BTreeMap<String, Vec<Rule>>,
    /// What is in the maps without a name, which rules have to themselves: endpoints, or chains.
    maps: BTreeMap<String, Vec<Entry>>,
}

/// What a map holds under some key.
enum Entry {
    Endpoint(SocketAddr),
    Chain(String),
}

pub(super) fn read(family: Family) -> Result<BTreeMap<Way, Served>> {
    let mut handle = NftHandle::open()?;
    let tables = handle.tables(family.of_nft()).context("list the tables of nf_tables")?;
    let Some(table) = tables.into_iter().find(|table| table.name == NAME) else {
        return Ok(BTreeMap::new());
    };
    let tables = Tables::read(&mut handle, &table, family)?;
    let mut ways = BTreeMap::new();
    for (map, has_address) in [("service-ips", true), ("service-nodeports", false)] {
        for (way, verdict) in verdicts(&mut handle, &table, map, family, has_address)? {
            let Some(chain) = verdict.chain() else { continue };
            let Reached { inside, outside } = tables.reached(chain);
            let (inside, outside) = (Outcome::of(inside, Outcome::Drop), Outcome::of(outside, Outcome::Drop));
            ways.insert(way, Served { mode: MODE, service: service(chain), inside, outside });
        }
    }
    for (map, has_address) in [("no-endpoint-services", true), ("no-endpoint-nodeports", false)] {
        for (way, verdict) in verdicts(&mut handle, &table, map, family, has_address)? {
            let outcome = if verdict.chain().is_some() { Outcome::Reject } else { Outcome::Drop };
            // With policy Local it may be a word about those outside only.
            ways.entry(way).or_insert_with(|| Served::everywhere(MODE, None, outcome));
        }
    }
    Ok(ways)
}

/// `ULMVA6XW-ns1/svc1/tcp/p80` behind a prefix: `ns1/svc1:p80`.
fn service(chain: &str) -> Option<String> {
    let mut words = chain.split('/');
    let namespace = words.next()?.rsplit_once('-').map(|_| chain.split('/').next())??;
    // The prefix and the hash have no more than these two dashes; namespaces may have some.
    let namespace = namespace.splitn(3, '-').nth(2)?;
    let (name, _protocol, port) = (words.next()?, words.next()?, words.next().unwrap_or_default());
    let colon = if port.is_empty() { "" } else { ":" };
    Some(format!("{namespace}/{name}{colon}{port}"))
}

/// A map of ways in. One that is not there is empty.
fn verdicts(
    handle: &mut NftHandle,
    table: &Table,
    map: &str,
    family: Family,
    has_address: bool,
) -> Result<Vec<(Way, Verdict<'static>)>> {
    let listed = handle.elements(table, map, Vec::new, |list: &mut Vec<_>, element| {
        let mut fields = FieldReader::new(element.key);
        let address = if has_address { address(&mut fields, family) } else { None };
        let (Some(protocol), Some(port)) = (fields.proto(), fields.port()) else { return };
        let to = address.map_or(To::NodePort(port), |address| To::Vip(address, port));
        if let ElementData::Verdict(verdict) = element.data {
            list.push((Way { family, to, protocol }, verdict.into_owned()));
        }
    });
    match listed {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        listed => listed.with_context(|| format!("list the map {map}")),
    }
}

fn address(fields: &mut FieldReader<'_>, family: Family) -> Option<IpAddr> {
    match family {
        Family::V4 => fields.ipv4().map(IpAddr::V4),
        Family::V6 => fields.ipv6().map(IpAddr::V6),
    }
}

impl Tables {
    fn read(handle: &mut NftHandle, table: &Table, family: Family) -> Result<Self> {
        let mut chains = BTreeMap::<_, Vec<_>>::new();
        let mut names = BTreeSet::new();
        for listed in handle.rules(table).context("list kube-proxy's rules")? {
            names.extend(listed.rule.exprs.iter().filter_map(looked_up).map(|(set, _)| set.to_owned()));
            chains.entry(listed.chain).or_default().push(listed.rule);
        }
        let mut maps = BTreeMap::new();
        // Those with a name hold clients, and ways in.
        for name in names.into_iter().filter(|name| name.starts_with("__")) {
            let entries = handle.elements(table, &name, Vec::new, |list: &mut Vec<_>, element| match element.data {
                ElementData::Value(value) => {
                    let mut fields = FieldReader::new(value);
                    let endpoint = address(&mut fields, family).zip(fields.port());
                    list.extend(endpoint.map(|endpoint| Entry::Endpoint(endpoint.into())));
                }
                ElementData::Verdict(verdict) => {
                    list.extend(verdict.chain().map(|chain| Entry::Chain(chain.to_owned())));
                }
                ElementData::None => {}
            });
            maps.insert(name, entries.context("list the endpoints of a chain")?);
        }
        Ok(Self { family, chains, maps })
    }

    /// Where a way in leads that ends at this chain.
    fn reached(&self, chain: &str) -> Reached {
        if !chain.starts_with("external-") {
            let endpoints = self.endpoints(chain, DEPTH);
            return Reached::by_all(endpoints);
        }
        let mut reached = Reached::default();
        for rule in self.chains.get(chain).into_iter().flatten() {
            let Some(target) = goto(rule) else { continue };
            let endpoints = self.endpoints(target, DEPTH);
            if is_conditional(rule) {
                reached.add_inside(endpoints);
            } else {
                reached.add_everywhere(endpoints);
            }
        }
        reached
    }

    /// All that chains behind this one translate to.
    fn endpoints(&self, chain: &str, depth: usize) -> BTreeSet<SocketAddr> {
        let mut endpoints = BTreeSet::new();
        for rule in self.chains.get(chain).into_iter().flatten() {
            let entries = rule.exprs.iter().filter_map(looked_up);
            for entry in entries.filter_map(|(set, _)| self.maps.get(set)).flatten() {
                match entry {
                    Entry::Endpoint(endpoint) => {
                        endpoints.insert(*endpoint);
                    }
                    Entry::Chain(chain) if depth > 0 => endpoints.extend(self.endpoints(chain, depth - 1)),
                    Entry::Chain(_) => {}
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
        let held = |register: Register| {
            rule.exprs.iter().find_map(|expr| match expr {
                Expr::Immediate { dreg, data } if *dreg == register => Some(data),
                _ => None,
            })
        };
        rule.exprs.iter().find_map(|expr| match expr {
            Expr::Nat { addr: Some(addr), port: Some(port), .. } => {
                let address = address(&mut FieldReader::new(held(*addr)?), self.family)?;
                Some(SocketAddr::new(address, FieldReader::new(held(*port)?).port()?))
            }
            _ => None,
        })
    }
}

/// The map that an expression looks something up in, and where it puts it.
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

/// Whether it is not for every packet.
fn is_conditional(rule: &Rule) -> bool {
    let asks =
        |expr: &Expr| matches!(expr, Expr::Cmp { .. } | Expr::Range { .. } | Expr::Lookup { .. } | Expr::Fib { .. });
    rule.exprs.iter().any(asks)
}
