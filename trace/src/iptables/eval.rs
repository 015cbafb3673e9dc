//! Evaluates the rules of a chain of iptables.

use anyhow::{Result, bail};

use ::iptables::{Condition, Match, Policy, Rule, Side, Target};

use super::Table;
use crate::{
    ipset::{self, SetLookup},
    traversal::{ChainVerdict, MAX_DEPTH, Traversal},
};

/// The result of a chain.
enum ChainResult {
    /// The calling chain continues.
    Return,
    Verdict(ChainVerdict),
}

/// Evaluates a built-in chain.
pub(crate) fn base(traversal: &mut Traversal<'_>, table: &Table, name: &str) -> Result<ChainVerdict> {
    Ok(match chain(traversal, table, name, 0)? {
        ChainResult::Verdict(verdict) => verdict,
        ChainResult::Return if table.policies.get(name) == Some(&Policy::Drop) => {
            ChainVerdict::Drop { reason: format!("the policy of {}", table.full_name(name)) }
        }
        ChainResult::Return => ChainVerdict::Accept,
    })
}

fn chain(traversal: &mut Traversal<'_>, table: &Table, name: &str, depth: usize) -> Result<ChainResult> {
    if depth > MAX_DEPTH {
        bail!("{}: chains jump to each other in a cycle", table.full_name(name));
    }
    for rule in table.rules.get(name).into_iter().flatten() {
        if !matches(traversal, table, name, rule)? {
            continue;
        }
        let chain_name = table.full_name(name);
        let reason = || if rule.comment.is_empty() { chain_name.clone() } else { rule.comment.clone() };
        if let Target::Unknown(target) = &rule.target {
            traversal.unknown(format!("{chain_name}: unknown target {target}, treated as continue: {}", rule.text));
        }
        let Some(action) = apply(traversal, rule, &chain_name)? else { continue };
        traversal.step(chain_name.clone(), rule.text.clone(), action);
        let verdict = match &rule.target {
            Target::Accept | Target::Dnat { .. } | Target::Snat(_) | Target::Masquerade => ChainVerdict::Accept,
            Target::Drop => ChainVerdict::Drop { reason: reason() },
            Target::Reject(with) => ChainVerdict::Reject { with: reject_type(with), reason: reason() },
            Target::Return => return Ok(ChainResult::Return),
            Target::Jump(to) | Target::Goto(to) => {
                traversal.jumped_by.push(reason());
                let result = chain(traversal, table, to, depth + 1)?;
                traversal.jumped_by.pop();
                match (result, &rule.target) {
                    (ChainResult::Return, Target::Jump(_)) => continue,
                    (result, _) => return Ok(result),
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
        return Ok(ChainResult::Verdict(verdict));
    }
    Ok(ChainResult::Return)
}

/// Applies the target to the packet, and describes that. `None`: the target had no effect.
fn apply(traversal: &mut Traversal<'_>, rule: &Rule, chain_name: &str) -> Result<Option<String>> {
    Ok(Some(match &rule.target {
        Target::None => "continue".to_owned(),
        Target::Accept => "accept".to_owned(),
        Target::Drop => "drop".to_owned(),
        Target::Return => "return".to_owned(),
        Target::Reject(with) => format!("rejected with {}", reject_type(with)),
        Target::Jump(to) => format!("jump {to}"),
        Target::Goto(to) => format!("goto {to}"),
        Target::Mark { value, mask } => {
            let before = traversal.mark;
            traversal.set_mark((before & !mask) ^ value, &rule.comment);
            format!("mark {before:#x} set to {:#x}", traversal.mark)
        }
        Target::MapMark { name, sides } => return map_mark(traversal, name, sides, chain_name),
        Target::ConnMark { value, mask } => {
            let mark = (traversal.ct_mark & !mask) ^ value;
            traversal.set_ct_mark(mark, comment_or(rule, &rule.text));
            format!("connection mark set to {mark:#x}")
        }
        Target::SaveMark { packet, connection } => {
            let mark = (traversal.ct_mark & !connection) ^ (traversal.mark & packet);
            traversal.set_ct_mark(mark, comment_or(rule, &rule.text));
            format!("connection mark set to {mark:#x}")
        }
        Target::RestoreMark { packet, connection } => {
            let mark = (traversal.mark & !packet) ^ (traversal.ct_mark & connection);
            traversal.set_mark(mark, &rule.comment);
            format!("mark set to {mark:#x}")
        }
        Target::Dnat { address, port } => {
            traversal.translate(*address, *port);
            format!("destination translated to {}", traversal.packet.destination)
        }
        Target::Snat(address) => {
            traversal.masquerade(*address, comment_or(rule, &rule.text));
            format!("source translated to {}", traversal.packet.source.ip())
        }
        Target::Masquerade => {
            traversal.masquerade(None, comment_or(rule, &rule.text));
            "source masqueraded".to_owned()
        }
        Target::NoEffect => "continue".to_owned(),
        Target::Unknown(target) => format!("unknown target {target}"),
    }))
}

/// Sets the mark to that of the packet's entry in an ipset. `None` when the set does not contain it.
fn map_mark(traversal: &mut Traversal<'_>, name: &str, sides: &[Side], chain_name: &str) -> Result<Option<String>> {
    let entry = match lookup(traversal, name, sides)? {
        SetLookup::Entry(entry) => entry,
        SetLookup::NeverMatches => return Ok(None),
        SetLookup::Unknown => {
            traversal.unknown(format!("{chain_name}: the type of ipset {name} is not supported, treated as empty"));
            return Ok(None);
        }
    };
    let Some(mark) = traversal.kernel.ipset_mark(name, &entry)? else { return Ok(None) };
    let before = std::mem::replace(&mut traversal.mark, mark);
    Ok(Some(format!("{} is in {name}: mark {before:#x} set to {mark:#x}", ipset::describe(&entry))))
}

/// The lookup of the packet in an ipset. One that does not exist contains nothing.
fn lookup(traversal: &mut Traversal<'_>, name: &str, sides: &[Side]) -> Result<SetLookup> {
    let set = traversal.kernel.ipset(name)?;
    Ok(set.map_or(SetLookup::NeverMatches, |set| ipset::lookup(&set, sides, &traversal.packet)))
}

fn comment_or<'a>(rule: &'a Rule, otherwise: &'a str) -> &'a str {
    if rule.comment.is_empty() { otherwise } else { &rule.comment }
}

/// Describes `--reject-with`.
fn reject_type(with: &str) -> String {
    match with {
        "tcp-reset" => "TCP reset".to_owned(),
        "icmp-port-unreachable" => "ICMP port unreachable".to_owned(),
        "icmp6-port-unreachable" => "ICMPv6 port unreachable".to_owned(),
        other => other.to_owned(),
    }
}

/// Whether all conditions hold. An unknown condition does not.
fn matches(traversal: &mut Traversal<'_>, table: &Table, chain: &str, rule: &Rule) -> Result<bool> {
    for Match { negated, condition } in &rule.matches {
        let Some(holds) = holds(traversal, condition)? else {
            let rule = format!("{}: {}", table.full_name(chain), rule.text);
            traversal.unknown(format!("unknown condition, the rule is treated as not matching: {rule}"));
            return Ok(false);
        };
        if holds == *negated {
            return Ok(false);
        }
    }
    Ok(true)
}

/// `None`: unknown.
fn holds(traversal: &mut Traversal<'_>, condition: &Condition) -> Result<Option<bool>> {
    let end = |traversal: &Traversal<'_>, side: &Side| match side {
        Side::Source => traversal.packet.source,
        Side::Destination => traversal.packet.destination,
    };
    Ok(Some(match condition {
        Condition::Address(side, net) => net.contains(&end(traversal, side).ip()),
        Condition::Protocol(number) => *number == traversal.packet.protocol.number() || *number == 0,
        Condition::Interface(side, wanted) => {
            let name = match side {
                Side::Source => traversal.input(),
                Side::Destination => traversal.output(),
            };
            match wanted.strip_suffix('+') {
                Some(prefix) => name.starts_with(prefix),
                None => name == *wanted,
            }
        }
        Condition::Ports(side, ranges) => {
            let port = end(traversal, side).port();
            ranges.iter().any(|range| range.contains(&port))
        }
        Condition::Mark { value, mask } => traversal.mark & mask == *value,
        Condition::ConnMark { value, mask } => traversal.ct_mark & mask == *value,
        Condition::State(words) => words.iter().any(|word| match word.as_str() {
            "NEW" => true,
            "DNAT" => traversal.is_translated(),
            "SNAT" => traversal.masquerade.is_some(),
            _ => false,
        }),
        Condition::Local(side) => {
            let address = end(traversal, side).ip();
            traversal.kernel.is_local(address)
        }
        Condition::Random(probability) => traversal.choices.choose(&[*probability, 1.0 - probability]) == 0,
        Condition::Recent(list) => traversal.kernel.is_in_recent_list(list, traversal.packet.source.ip()),
        Condition::SetRecent(_) => true,
        Condition::InSet { name, sides } => match lookup(traversal, name, sides)? {
            SetLookup::Entry(entry) => traversal.kernel.ipset_has(name, &entry)?,
            SetLookup::NeverMatches => false,
            SetLookup::Unknown => return Ok(None),
        },
        Condition::Unknown(_) => return Ok(None),
    }))
}
