//! Tables and their families.

use std::fmt;

use super::userdata::Comment;

/// Which packets a table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TableFamily {
    /// IPv4, `NFPROTO_IPV4`.
    Ip,
    /// IPv6, `NFPROTO_IPV6`.
    Ip6,
    /// Both, `NFPROTO_INET`.
    Inet,
}

impl TableFamily {
    /// The number in `nfgenmsg.nfgen_family` and in the `nat` expression.
    pub(crate) const fn number(self) -> u8 {
        match self {
            TableFamily::Inet => 1,
            TableFamily::Ip => 2,
            TableFamily::Ip6 => 10,
        }
    }

    pub(crate) const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(TableFamily::Inet),
            2 => Some(TableFamily::Ip),
            10 => Some(TableFamily::Ip6),
            _ => None,
        }
    }
}

impl fmt::Display for TableFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TableFamily::Ip => "ip",
            TableFamily::Ip6 => "ip6",
            TableFamily::Inet => "inet",
        })
    }
}

/// A table. It is also the address of everything inside: operations look at its family and name only.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Table {
    /// Its family.
    pub family: TableFamily,
    /// Its name, at most 255 bytes.
    pub name: String,
    /// `NFT_TABLE_F_*`; 0 in our tables, 1 if another process made it dormant (none of its chains is called).
    pub flags: u32,
    /// Shown in listings.
    pub comment: Option<Comment>,
}

impl Table {
    /// A table without flags and comment.
    pub fn new(family: TableFamily, name: impl Into<String>) -> Self {
        Table { family, name: name.into(), flags: 0, comment: None }
    }

    /// With this comment.
    #[must_use]
    pub fn comment(mut self, comment: impl Into<Comment>) -> Self {
        self.comment = Some(comment.into());
        self
    }
}
