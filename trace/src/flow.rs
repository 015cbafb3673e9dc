//! A packet on its way: what has become of it, and what it has met.

use std::net::{IpAddr, SocketAddr};

use netlink::nft::Hook;

use crate::{
    choice::Choices,
    kernel::Kernel,
    outcome::{Scheduled, Step, Translation},
    packet::{Entry, Packet},
};

/// A packet on its way through one run.
pub(crate) struct Flow<'a> {
    pub(crate) packet: Packet,
    /// Where it is.
    pub(crate) hook: Hook,
    pub(crate) mark: u32,
    pub(crate) ct_mark: u32,
    /// The rule that set the mark last.
    pub(crate) marked_by: String,
    pub(crate) endpoint: Option<SocketAddr>,
    /// If IPVS has chosen the endpoint: it looks at no packet twice, and connection tracking takes that for no translation.
    pub(crate) scheduled: Option<Scheduled>,
    pub(crate) masquerade: Option<Translation>,
    /// Which interface it leaves through, once it is routed.
    pub(crate) out: Option<String>,
    pub(crate) steps: Vec<Step>,
    pub(crate) unknown: Vec<String>,
    /// The rules that led to the chain that it is in.
    pub(crate) led_by: Vec<String>,
    pub(crate) choices: &'a mut Choices,
    pub(crate) kernel: &'a mut dyn Kernel,
}

/// What ends the way of a packet through a base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Accept,
    Drop {
        why: String,
    },
    Refuse {
        with: String,
        why: String,
    },
    /// IPVS sends it to an endpoint itself, past what is left of this hook.
    Sent,
}

/// So many chains within each other; the kernel allows 16 in nf_tables.
pub(crate) const DEEPEST: usize = 32;

// === impl Flow ===

impl<'a> Flow<'a> {
    pub(crate) fn new(packet: Packet, choices: &'a mut Choices, kernel: &'a mut dyn Kernel) -> Self {
        Self {
            packet,
            hook: Hook::Prerouting,
            mark: 0,
            ct_mark: 0,
            marked_by: String::new(),
            endpoint: None,
            scheduled: None,
            masquerade: None,
            out: None,
            steps: Vec::new(),
            unknown: Vec::new(),
            led_by: Vec::new(),
            choices,
            kernel,
        }
    }

    pub(crate) fn step(&mut self, place: String, rule: String, does: String) {
        let hook = self.hook.name();
        self.steps.push(Step { hook, place, rule, does });
    }

    /// Something that nobody here understands.
    pub(crate) fn unknown(&mut self, what: String) {
        if !self.unknown.contains(&what) {
            self.unknown.push(what);
        }
    }

    /// The mark changes; `why`: the rule's comment, empty if it has none.
    pub(crate) fn set_mark(&mut self, mark: u32, why: &str) {
        if mark & !self.mark != 0 {
            self.marked_by = match (why, self.led_by.last()) {
                ("", Some(led_by)) => led_by.clone(),
                (why, _) => why.to_owned(),
            };
        }
        self.mark = mark;
    }

    /// The destination becomes an endpoint.
    pub(crate) fn translate(&mut self, address: Option<IpAddr>, port: Option<u16>) {
        let to = self.packet.destination;
        let to = SocketAddr::new(address.unwrap_or(to.ip()), port.unwrap_or(to.port()));
        self.packet.destination = to;
        self.endpoint = Some(to);
    }

    /// Whether connection tracking knows of another destination than it was sent to.
    pub(crate) fn is_translated(&self) -> bool {
        self.endpoint.is_some() && self.scheduled.is_none()
    }

    /// The mark of its connection changes.
    pub(crate) fn set_ct_mark(&mut self, mark: u32, why: &str) {
        if mark & !self.ct_mark != 0 {
            self.marked_by = why.to_owned();
        }
        self.ct_mark = mark;
    }

    /// The source becomes one of this node's addresses, or the given one.
    pub(crate) fn masquerade(&mut self, source: Option<IpAddr>, rule: &str) {
        let why = if self.marked_by.is_empty() { rule } else { &self.marked_by }.to_owned();
        let source = source.or_else(|| self.kernel.source_towards(self.packet.destination.ip()));
        if let Some(source) = source {
            self.packet.source.set_ip(source);
        }
        self.masquerade = Some(Translation { source, why });
    }

    /// The name of the interface that it came in through; empty for what this node sends.
    pub(crate) fn input(&mut self) -> String {
        match (&self.packet.entry, self.hook) {
            (Entry::Node, Hook::Prerouting | Hook::Input) => "lo".to_owned(),
            (_, Hook::Output | Hook::Postrouting) | (Entry::Node, _) => String::new(),
            (Entry::Interface(name), _) => {
                let name = name.clone();
                if name.is_empty() {
                    self.unknown("through which interface it comes in (--from INTERFACE says so)".to_owned());
                }
                name
            }
        }
    }

    /// The name of the interface that it leaves through, where it is routed already.
    pub(crate) fn output(&mut self) -> String {
        match self.hook {
            Hook::Forward | Hook::Output | Hook::Postrouting => self.out.clone().unwrap_or_default(),
            _ => String::new(),
        }
    }
}
