//! The numbers of IP families in the messages of all subsystems but nf_tables.

use proto::model::IpFamily;

/// `AF_INET`, `AF_INET6`.
pub(crate) const fn number(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => 2,
        IpFamily::V6 => 10,
    }
}

/// The family of a number; `None` for any other family.
pub(crate) fn from_number(found: u16) -> Option<IpFamily> {
    IpFamily::ALL.into_iter().find(|family| u16::from(number(*family)) == found)
}
