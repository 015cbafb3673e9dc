//! The state of a packet while it traverses hooks and chains.

use std::net::{IpAddr, SocketAddr};

use netlink::{ipset::IpsetEntry, nft::Hook};

use crate::{
    choices::Choices,
    kernel::Kernel,
    outcome::{PacketVerdict, Path, SourceTranslation, TraceStep},
    packet::{Packet, PacketOrigin},
};

/// A packet during one evaluation.
pub(crate) struct Traversal<'a> {
    pub(crate) packet: Packet,
    /// The source and the destination before translation.
    pub(crate) original: (SocketAddr, SocketAddr),
    /// The current hook.
    pub(crate) hook: Hook,
    pub(crate) mark: u32,
    pub(crate) ct_mark: u32,
    tracking: Tracking,
    /// The rule that set bits of a mark last.
    pub(crate) marked_by: String,
    /// The result so far. IPVS handles a packet only once, and connection tracking does not treat that as translation.
    pub(crate) path: Path,
    /// The output interface, once the packet is routed.
    pub(crate) out: Option<String>,
    /// The elements that rules have added to ipsets.
    pub(crate) added: Vec<(String, IpsetEntry)>,
    /// The rules that jumped to the current chain.
    pub(crate) jumped_by: Vec<String>,
    pub(crate) choices: &'a mut Choices,
    pub(crate) kernel: &'a mut dyn Kernel,
}

/// The verdict of a base chain, or of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChainVerdict {
    Accept,
    /// The packet is dropped or rejected.
    Ended(PacketVerdict),
    /// IPVS sends it to an endpoint; the remaining chains of this hook are skipped.
    SentByIpvs,
}

/// Whether connection tracking has seen the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tracking {
    /// Not yet.
    Undecided,
    Tracked,
    /// It ignores the packet.
    Untracked,
}

impl<'a> Traversal<'a> {
    pub(crate) fn new(packet: Packet, choices: &'a mut Choices, kernel: &'a mut dyn Kernel) -> Self {
        Self {
            original: (packet.source, packet.destination),
            packet,
            hook: Hook::Prerouting,
            mark: 0,
            ct_mark: 0,
            tracking: Tracking::Undecided,
            marked_by: String::new(),
            path: Path::default(),
            out: None,
            added: Vec::new(),
            jumped_by: Vec::new(),
            choices,
            kernel,
        }
    }

    pub(crate) fn step(&mut self, chain: String, rule: String, action: String) {
        let hook = self.hook.name();
        self.path.steps.push(TraceStep { hook, chain, rule, action });
    }

    /// Records something that cannot be evaluated.
    pub(crate) fn unknown(&mut self, note: String) {
        if !self.path.unknown.contains(&note) {
            self.path.unknown.push(note);
        }
    }

    /// Sets the mark; `reason`: the rule's comment, empty if it has none.
    pub(crate) fn set_mark(&mut self, mark: u32, reason: &str) {
        if mark & !self.mark != 0 {
            self.marked_by = match (reason, self.jumped_by.last()) {
                ("", Some(jumped_by)) => jumped_by.clone(),
                (reason, _) => reason.to_owned(),
            };
        }
        self.mark = mark;
    }

    /// Translates the destination to an endpoint.
    pub(crate) fn translate(&mut self, address: Option<IpAddr>, port: Option<u16>) {
        let destination = &mut self.packet.destination;
        if let Some(address) = address {
            destination.set_ip(address);
        }
        if let Some(port) = port {
            destination.set_port(port);
        }
        self.path.endpoint = Some(*destination);
    }

    /// Connection tracking sees the packet, unless a rule has prevented that.
    pub(crate) fn track(&mut self) {
        if self.tracking == Tracking::Undecided {
            self.tracking = Tracking::Tracked;
        }
    }

    /// Connection tracking is to ignore the packet. Returns whether it does, which it does not if it has seen the
    /// packet.
    pub(crate) fn untrack(&mut self) -> bool {
        if self.tracking == Tracking::Undecided {
            self.tracking = Tracking::Untracked;
        }
        self.is_untracked()
    }

    /// Whether connection tracking ignores the packet.
    pub(crate) fn is_untracked(&self) -> bool {
        self.tracking == Tracking::Untracked
    }

    /// Whether connection tracking has recorded a translated destination.
    pub(crate) fn is_translated(&self) -> bool {
        self.path.endpoint.is_some() && self.path.scheduled.is_none()
    }

    /// Sets the mark of its connection.
    pub(crate) fn set_ct_mark(&mut self, mark: u32, reason: &str) {
        if mark & !self.ct_mark != 0 {
            self.marked_by = reason.to_owned();
        }
        self.ct_mark = mark;
    }

    /// Translates the source to this address, or to one of this node.
    pub(crate) fn masquerade(&mut self, source: Option<IpAddr>, rule: &str) {
        let reason = if self.marked_by.is_empty() { rule } else { &self.marked_by }.to_owned();
        let source = source.or_else(|| self.kernel.source_address(self.packet.destination.ip()));
        if let Some(source) = source {
            self.packet.source.set_ip(source);
        }
        self.path.masquerade = Some(SourceTranslation { source, reason });
    }

    /// The name of the input interface; empty for packets that this node sends.
    pub(crate) fn input(&mut self) -> String {
        match (&self.packet.origin, self.hook) {
            (PacketOrigin::Node, Hook::Prerouting | Hook::Input) => "lo".to_owned(),
            (_, Hook::Output | Hook::Postrouting) | (PacketOrigin::Node, _) => String::new(),
            (PacketOrigin::Interface(name), _) => {
                let name = name.clone();
                if name.is_empty() {
                    self.unknown("input interface (set it with --interface)".to_owned());
                }
                name
            }
        }
    }

    /// The name of the output interface, at hooks after routing.
    pub(crate) fn output(&mut self) -> String {
        match self.hook {
            Hook::Forward | Hook::Output | Hook::Postrouting => self.out.clone().unwrap_or_default(),
            _ => String::new(),
        }
    }
}
