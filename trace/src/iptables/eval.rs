//! A packet in a chain of iptables: rule after rule, until one decides.

use anyhow::{Result, bail};

use super::{Match, Policy, Rule, Sense, Side, Table, Target, What};
use crate::flow::{DEEPEST, Decision, Flow};

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
        if !matches(flow, table, name, rule) {
            continue;
        }
        let place = table.place(name);
        let why = || if rule.comment.is_empty() { place.clone() } else { rule.comment.clone() };
        if let Target::Unknown(target) = &rule.target {
            flow.unknown(format!("{place}: target {target}, taken for one that does nothing: {}", rule.text));
        }
        let does = act(flow, rule);
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
            Target::None | Target::Mark { .. } | Target::Harmless | Target::Unknown(_) => continue,
        };
        return Ok(Left::Decided(decision));
    }
    Ok(Left::Back)
}

/// Does what the target does to the packet; in words.
fn act(flow: &mut Flow<'_>, rule: &Rule) -> String {
    match &rule.target {
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
        Target::Dnat { address, port } => {
            flow.translate(*address, *port);
            format!("the destination becomes {}", flow.packet.destination)
        }
        Target::Snat(address) => {
            flow.masquerade(*address, why(rule, "SNAT"));
            format!("the source becomes {}", flow.packet.source.ip())
        }
        Target::Masquerade => {
            flow.masquerade(None, why(rule, "MASQUERADE"));
            "the source becomes an address of this node".to_owned()
        }
        Target::Harmless => "goes on".to_owned(),
        Target::Unknown(target) => format!("not understood: {target}"),
    }
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
fn matches(flow: &mut Flow<'_>, table: &Table, chain: &str, rule: &Rule) -> bool {
    rule.matches.iter().all(|Match { sense, what }| match holds(flow, what) {
        Some(holds) => holds == (*sense == Sense::Is),
        None => {
            let rule = format!("{}: {}", table.place(chain), rule.text);
            flow.unknown(format!(
                "a rule that is not understood, and taken for one that does not match: {rule}"
            ));
            false
        }
    })
}

/// `None`: nobody here knows.
fn holds(flow: &mut Flow<'_>, what: &What) -> Option<bool> {
    let end = |flow: &Flow<'_>, side: &Side| match side {
        Side::Source => flow.packet.source,
        Side::Destination => flow.packet.destination,
    };
    Some(match what {
        What::Address(side, net) => net.contains(&end(flow, side).ip()),
        What::Protocol(number) => *number == flow.packet.protocol.number() || *number == 0,
        What::Interface(side, wanted) => {
            let name = match side {
                Side::Source => flow.input(),
                Side::Destination => flow.output(),
            };
            match wanted.strip_suffix('+') {
                Some(prefix) => name.starts_with(prefix),
                None => name == *wanted,
            }
        }
        What::Ports(side, ranges) => {
            let port = end(flow, side).port();
            ranges.iter().any(|range| range.contains(&port))
        }
        What::Mark { value, mask } => flow.mark & mask == *value,
        What::ConnMark { value, mask } => flow.ct_mark & mask == *value,
        What::State(words) => words.iter().any(|word| match word.as_str() {
            "NEW" => true,
            "DNAT" => flow.endpoint.is_some(),
            "SNAT" => flow.masquerade.is_some(),
            _ => false,
        }),
        What::Local(side) => {
            let address = end(flow, side).ip();
            flow.kernel.is_local(address)
        }
        What::Random(probability) => flow.choices.choose(&[*probability, 1.0 - probability]) == 0,
        What::Remembered(list) => flow.kernel.remembers(list, flow.packet.source.ip()),
        What::Remember(_) => true,
        What::Unknown(_) => return None,
    })
}
