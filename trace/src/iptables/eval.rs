//! A packet in a chain of iptables: rule after rule, until one decides.

use anyhow::{Result, bail};

use ::iptables::{Condition, Match, Policy, Rule, Side, Target};

use super::Table;
use crate::{
    flow::{DEEPEST, Decision, Flow},
    ipset::{self, Wanted},
};

/// How a chain ends.
enum Left {
    Back,
    Decided(Decision),
}

/// A built-in chain.
pub(crate) fn base(flow: &mut Flow<'_>, table: &Table, name: &str) -> Result<Decision> {
    Ok(match chain(flow, table, name, 0)? {
        Left::Decided(decision) => decision,
        Left::Back if table.policies.get(name) == Some(&Policy::Drop) => {
            Decision::Drop { why: format!("the policy of {}", table.place(name)) }
        }
        Left::Back => Decision::Accept,
    })
}

fn chain(flow: &mut Flow<'_>, table: &Table, name: &str, depth: usize) -> Result<Left> {
    if depth > DEEPEST {
        bail!("{}: chains lead to each other without end", table.place(name));
    }
    for rule in table.rules.get(name).into_iter().flatten() {
        if !matches(flow, table, name, rule)? {
            continue;
        }
        let place = table.place(name);
        let why = || if rule.comment.is_empty() { place.clone() } else { rule.comment.clone() };
        if let Target::Unknown(target) = &rule.target {
            flow.unknown(format!("{place}: target {target}, taken for one that does nothing: {}", rule.text));
        }
        let Some(does) = act(flow, rule, &place)? else { continue };
        flow.step(place.clone(), rule.text.clone(), does);
        let decision = match &rule.target {
            Target::Accept | Target::Dnat { .. } | Target::Snat(_) | Target::Masquerade => Decision::Accept,
            Target::Drop => Decision::Drop { why: why() },
            Target::Reject(with) => Decision::Refuse { with: reject(with), why: why() },
            Target::Return => return Ok(Left::Back),
            Target::Jump(to) | Target::Goto(to) => {
                flow.led_by.push(why());
                let left = chain(flow, table, to, depth + 1)?;
                flow.led_by.pop();
                match (left, &rule.target) {
                    (Left::Back, Target::Jump(_)) => continue,
                    (left, _) => return Ok(left),
                }
            }
            Target::None
            | Target::Mark { .. }
            | Target::MapMark { .. }
            | Target::ConnMark { .. }
            | Target::SaveMark { .. }
            | Target::RestoreMark { .. }
            | Target::NoEffect
            | Target::Unknown(_) => continue,
        };
        return Ok(Left::Decided(decision));
    }
    Ok(Left::Back)
}

/// Does what the target does to the packet; in words. `None` where it is as if the rule did not match.
fn act(flow: &mut Flow<'_>, rule: &Rule, place: &str) -> Result<Option<String>> {
    Ok(Some(match &rule.target {
        Target::None => "counted".to_owned(),
        Target::Accept => "accept".to_owned(),
        Target::Drop => "drop".to_owned(),
        Target::Return => "return".to_owned(),
        Target::Reject(with) => format!("refused with {}", reject(with)),
        Target::Jump(to) => format!("jump {to}"),
        Target::Goto(to) => format!("goto {to}"),
        Target::Mark { value, mask } => {
            let before = flow.mark;
            flow.set_mark((before & !mask) ^ value, &rule.comment);
            format!("mark {before:#x} becomes {:#x}", flow.mark)
        }
        Target::MapMark { name, sides } => return map_mark(flow, name, sides, place),
        Target::ConnMark { value, mask } => {
            let mark = (flow.ct_mark & !mask) ^ value;
            flow.set_ct_mark(mark, why(rule, &rule.text));
            format!("the connection's mark becomes {mark:#x}")
        }
        Target::SaveMark { packet, connection } => {
            let mark = (flow.ct_mark & !connection) ^ (flow.mark & packet);
            flow.set_ct_mark(mark, why(rule, &rule.text));
            format!("the connection's mark becomes {mark:#x}")
        }
        Target::RestoreMark { packet, connection } => {
            let mark = (flow.mark & !packet) ^ (flow.ct_mark & connection);
            flow.set_mark(mark, &rule.comment);
            format!("mark becomes {mark:#x}")
        }
        Target::Dnat { address, port } => {
            flow.translate(*address, *port);
            format!("the destination becomes {}", flow.packet.destination)
        }
        Target::Snat(address) => {
            flow.masquerade(*address, why(rule, &rule.text));
            format!("the source becomes {}", flow.packet.source.ip())
        }
        Target::Masquerade => {
            flow.masquerade(None, why(rule, &rule.text));
            "the source becomes an address of this node".to_owned()
        }
        Target::NoEffect => "goes on".to_owned(),
        Target::Unknown(target) => format!("not understood: {target}"),
    }))
}

/// The mark that the packet's element of a set has; it stays where the set has no such element.
fn map_mark(flow: &mut Flow<'_>, name: &str, sides: &[Side], place: &str) -> Result<Option<String>> {
    let entry = match look_for(flow, name, sides)? {
        Wanted::Entry(entry) => entry,
        Wanted::Nothing => return Ok(None),
        Wanted::Unknown => {
            flow.unknown(format!("{place}: set {name} of ipset, taken for one without elements"));
            return Ok(None);
        }
    };
    let Some(mark) = flow.kernel.ipset_mark(name, &entry)? else { return Ok(None) };
    let before = std::mem::replace(&mut flow.mark, mark);
    Ok(Some(format!("{} is in {name}: mark {before:#x} becomes {mark:#x}", ipset::words(&entry))))
}

/// What to look for in a set of ipset. A rule keeps its set from going; one that is not there all the same has nothing.
fn look_for(flow: &mut Flow<'_>, name: &str, sides: &[Side]) -> Result<Wanted> {
    let set = flow.kernel.ipset(name)?;
    Ok(set.map_or(Wanted::Nothing, |set| ipset::wanted(&set, sides, &flow.packet)))
}

fn why<'a>(rule: &'a Rule, otherwise: &'a str) -> &'a str {
    if rule.comment.is_empty() { otherwise } else { &rule.comment }
}

/// `--reject-with` in words.
fn reject(with: &str) -> String {
    match with {
        "tcp-reset" => "a TCP reset".to_owned(),
        "icmp-port-unreachable" => "ICMP port unreachable".to_owned(),
        "icmp6-port-unreachable" => "ICMPv6 port unreachable".to_owned(),
        other => other.to_owned(),
    }
}

/// Whether all conditions hold. What is not understood does not.
fn matches(flow: &mut Flow<'_>, table: &Table, chain: &str, rule: &Rule) -> Result<bool> {
    for Match { negated, condition } in &rule.matches {
        let Some(holds) = holds(flow, condition)? else {
            let rule = format!("{}: {}", table.place(chain), rule.text);
            flow.unknown(format!("a rule that is not understood, and taken for one that does not match: {rule}"));
            return Ok(false);
        };
        if holds == *negated {
            return Ok(false);
        }
    }
    Ok(true)
}

/// `None`: nobody here knows.
fn holds(flow: &mut Flow<'_>, condition: &Condition) -> Result<Option<bool>> {
    let end = |flow: &Flow<'_>, side: &Side| match side {
        Side::Source => flow.packet.source,
        Side::Destination => flow.packet.destination,
    };
    Ok(Some(match condition {
        Condition::Address(side, net) => net.contains(&end(flow, side).ip()),
        Condition::Protocol(number) => *number == flow.packet.protocol.number() || *number == 0,
        Condition::Interface(side, wanted) => {
            let name = match side {
                Side::Source => flow.input(),
                Side::Destination => flow.output(),
            };
            match wanted.strip_suffix('+') {
                Some(prefix) => name.starts_with(prefix),
                None => name == *wanted,
            }
        }
        Condition::Ports(side, ranges) => {
            let port = end(flow, side).port();
            ranges.iter().any(|range| range.contains(&port))
        }
        Condition::Mark { value, mask } => flow.mark & mask == *value,
        Condition::ConnMark { value, mask } => flow.ct_mark & mask == *value,
        Condition::State(words) => words.iter().any(|word| match word.as_str() {
            "NEW" => true,
            "DNAT" => flow.is_translated(),
            "SNAT" => flow.masquerade.is_some(),
            _ => false,
        }),
        Condition::Local(side) => {
            let address = end(flow, side).ip();
            flow.kernel.is_local(address)
        }
        Condition::Random(probability) => flow.choices.choose(&[*probability, 1.0 - probability]) == 0,
        Condition::Recent(list) => flow.kernel.remembers(list, flow.packet.source.ip()),
        Condition::SetRecent(_) => true,
        Condition::InSet { name, sides } => match look_for(flow, name, sides)? {
            Wanted::Entry(entry) => flow.kernel.ipset_has(name, &entry)?,
            Wanted::Nothing => false,
            Wanted::Unknown => return Ok(None),
        },
        Condition::Unknown(_) => return Ok(None),
    }))
}
