//! Tables and their families.

use std::fmt;

use proto::model::IpFamily;

numbered! {
    /// The family of a table: the packets that it processes. The number of `nfgenmsg.nfgen_family` and of the
    /// expression `nat`.
    TableFamily {
        /// IPv4, `NFPROTO_IPV4`.
        Ip = 2 "ip",
        /// IPv6, `NFPROTO_IPV6`.
        Ip6 = 10 "ip6",
        /// Both, `NFPROTO_INET`.
        Inet = 1 "inet",
    }
}

impl fmt::Display for TableFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<IpFamily> for TableFamily {
    fn from(family: IpFamily) -> Self {
        match family {
            IpFamily::V4 => Self::Ip,
            IpFamily::V6 => Self::Ip6,
        }
    }
}

/// A table. Operations on its objects use the family and the name only.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Table {
    /// The family.
    pub family: TableFamily,
    /// The name, at most 255 bytes.
    pub name: String,
    /// `NFT_TABLE_F_*`; 1 for a dormant table, whose chains the kernel does not call.
    pub flags: u32,
    /// The comment in listings.
    pub comment: Option<String>,
}

impl Table {
    /// A table without flags and comment.
    pub fn new(family: impl Into<TableFamily>, name: impl Into<String>) -> Self {
        Table { family: family.into(), name: name.into(), flags: 0, comment: None }
    }
}
