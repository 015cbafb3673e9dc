//! Evaluates a rule of iptables.

use ::iptables::{Condition, Match, Rule, Side, Target};
use anyhow::Result;

use crate::{
    ipset::{self, SetLookup},
    outcome::PacketVerdict,
    table::RuleResult,
    traversal::{ChainVerdict, Traversal},
};

/// Evaluates a rule of a chain.
pub(crate) fn evaluate(traversal: &mut Traversal<'_>, chain: &str, rule: &Rule) -> Result<RuleResult> {
    if !matches(traversal, chain, rule)? {
        return Ok(RuleResult::Continue);
    }

    let Some((action, result)) = apply(traversal, chain, rule)? else { return Ok(RuleResult::Continue) };
    traversal.step(chain.to_owned(), rule.text.clone(), action);
    Ok(result)
}

/// Applies the target to the packet, and describes that. `None`: the target had no effect.
fn apply(traversal: &mut Traversal<'_>, chain: &str, rule: &Rule) -> Result<Option<(String, RuleResult)>> {
    let accept = RuleResult::Decided(ChainVerdict::Accept);
    let commented_or = |otherwise: &str| if rule.comment.is_empty() { otherwise } else { &rule.comment }.to_owned();
    let reason = commented_or(chain);
    Ok(Some(match &rule.target {
        Target::None | Target::NoEffect => ("continue".to_owned(), RuleResult::Continue),
        Target::Accept => ("accept".to_owned(), accept),
        Target::Drop => {
            let dropped = ChainVerdict::Ended(PacketVerdict::Dropped { reason });
            ("drop".to_owned(), RuleResult::Decided(dropped))
        }
        Target::Reject(with) => {
            let with = reject_type(with).to_owned();
            let rejected = ChainVerdict::Ended(PacketVerdict::Rejected { with: with.clone(), reason });
            (format!("rejected with {with}"), RuleResult::Decided(rejected))
        }
        Target::Return => ("return".to_owned(), RuleResult::Return),
        Target::Jump(to) => (format!("jump {to}"), RuleResult::Call { to: to.clone(), is_goto: false, reason }),
        Target::Goto(to) => (format!("goto {to}"), RuleResult::Call { to: to.clone(), is_goto: true, reason }),
        Target::Mark(to) => {
            let before = traversal.mark;
            traversal.set_mark(to.apply(before), &rule.comment);
            (format!("mark {before:#x} set to {:#x}", traversal.mark), RuleResult::Continue)
        }
        Target::MapMark { name, sides } => {
            return Ok(map_mark(traversal, chain, name, sides)?.map(|action| (action, RuleResult::Continue)));
        }
        Target::AddToSet { name, sides } => {
            let SetLookup::Entry(entry) = lookup(traversal, name, sides)? else { return Ok(None) };
            traversal.added.push((name.clone(), entry));
            (format!("{} added to {name}", ipset::describe(&entry)), RuleResult::Continue)
        }
        Target::NoTrack if traversal.untrack() => ("not tracked".to_owned(), RuleResult::Continue),
        Target::NoTrack => ("continue".to_owned(), RuleResult::Continue),
        Target::ConnMark(_) | Target::SaveMark { .. } | Target::RestoreMark { .. } if traversal.is_untracked() => {
            ("continue".to_owned(), RuleResult::Continue)
        }
        Target::ConnMark(to) => set_ct_mark(traversal, to.apply(traversal.ct_mark), &commented_or(&rule.text)),
        Target::SaveMark { packet, connection } => {
            let mark = (traversal.ct_mark & !connection) ^ (traversal.mark & packet);
            set_ct_mark(traversal, mark, &commented_or(&rule.text))
        }
        Target::RestoreMark { packet, connection } => {
            let mark = (traversal.mark & !packet) ^ (traversal.ct_mark & connection);
            traversal.set_mark(mark, &rule.comment);
            (format!("mark set to {mark:#x}"), RuleResult::Continue)
        }
        Target::Dnat { address, port } => {
            traversal.translate(*address, *port);
            (format!("destination translated to {}", traversal.packet.destination), accept)
        }
        Target::Snat(address) => {
            traversal.masquerade(*address, &commented_or(&rule.text));
            (format!("source translated to {}", traversal.packet.source.ip()), accept)
        }
        Target::Masquerade => {
            traversal.masquerade(None, &commented_or(&rule.text));
            ("source masqueraded".to_owned(), accept)
        }
        Target::Unknown(target) => {
            traversal.unknown(format!("{chain}: unknown target {target}, treated as continue: {}", rule.text));
            (format!("unknown target {target}"), RuleResult::Continue)
        }
    }))
}

fn set_ct_mark(traversal: &mut Traversal<'_>, mark: u32, reason: &str) -> (String, RuleResult) {
    traversal.set_ct_mark(mark, reason);
    (format!("connection mark set to {mark:#x}"), RuleResult::Continue)
}

/// Sets the mark to that of the packet's entry in an ipset. `None` when the set does not contain it.
fn map_mark(traversal: &mut Traversal<'_>, chain: &str, name: &str, sides: &[Side]) -> Result<Option<String>> {
    let entry = match lookup(traversal, name, sides)? {
        SetLookup::Entry(entry) => entry,
        SetLookup::NeverMatches => return Ok(None),
        SetLookup::Unknown => {
            traversal.unknown(format!("{chain}: the type of ipset {name} is not supported, treated as empty"));
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

/// Describes `--reject-with`.
fn reject_type(with: &str) -> &str {
    match with {
        "tcp-reset" => "TCP reset",
        "icmp-port-unreachable" => "ICMP port unreachable",
        "icmp6-port-unreachable" => "ICMPv6 port unreachable",
        other => other,
    }
}

/// Whether all conditions hold. An unknown condition does not.
fn matches(traversal: &mut Traversal<'_>, chain: &str, rule: &Rule) -> Result<bool> {
    for Match { negated, condition } in &rule.matches {
        // The kernel inverts nothing where there is no connection.
        if matches!(condition, Condition::ConnMark(_)) && traversal.is_untracked() {
            return Ok(false);
        }
        let Some(holds) = holds(traversal, condition)? else {
            let rule = &rule.text;
            traversal.unknown(format!("unknown condition, the rule is treated as not matching: {chain}: {rule}"));
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
    Ok(Some(match condition {
        Condition::Address(side, net) => net.contains(&traversal.packet.end(*side).ip()),
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
            ranges.iter().any(|range| range.contains(&traversal.packet.end(*side).port()))
        }
        Condition::Mark(wanted) => wanted.matches(traversal.mark),
        Condition::ConnMark(wanted) => wanted.matches(traversal.ct_mark),
        Condition::State(words) => words.iter().any(|word| match word.as_str() {
            "NEW" => !traversal.is_untracked(),
            "UNTRACKED" => traversal.is_untracked(),
            "DNAT" => traversal.is_translated(),
            "SNAT" => traversal.path.masquerade.is_some(),
            _ => false,
        }),
        Condition::Local(side) => traversal.kernel.is_local(traversal.packet.end(*side).ip()),
        Condition::Random(probability) => traversal.choices.choose(&[*probability, 1.0 - probability]) == 0,
        Condition::Recent(list) => traversal.kernel.is_in_recent_list(list, traversal.packet.source.ip()),
        Condition::SetRecent(_) => true,
        Condition::InSet { name, sides } => match lookup(traversal, name, sides)? {
            SetLookup::Entry(entry) => {
                let is_added = traversal.added.iter().any(|(set, added)| set == name && *added == entry);
                is_added || traversal.kernel.ipset_has(name, &entry)?
            }
            SetLookup::NeverMatches => false,
            SetLookup::Unknown => return Ok(None),
        },
        Condition::Unknown(_) => return Ok(None),
    }))
}
