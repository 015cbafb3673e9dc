//! Numbers of `linux/rtnetlink.h`, `linux/if_link.h` and `linux/if_addr.h`.

/// `RTM_NEWLINK`, `RTM_DELLINK`, `RTM_GETLINK`.
pub(super) const NEW_LINK: u16 = 16;
pub(super) const DELETE_LINK: u16 = 17;
pub(super) const GET_LINK: u16 = 18;
/// `RTM_NEWADDR`, `RTM_DELADDR`, `RTM_GETADDR`.
pub(super) const NEW_ADDRESS: u16 = 20;
pub(super) const DELETE_ADDRESS: u16 = 21;
pub(super) const GET_ADDRESS: u16 = 22;

/// `AF_INET`, `AF_INET6`.
pub(super) const INET: u8 = 2;
pub(super) const INET6: u8 = 10;

/// Length of `struct ifinfomsg`: family 1, padding 1, type 2, index 4, flags 4, change 4.
pub(super) const IFINFOMSG: usize = 16;
/// Length of `struct ifaddrmsg`: family 1, prefix length 1, flags 1, scope 1, index 4.
pub(super) const IFADDRMSG: usize = 8;

/// `IFLA_*`.
pub(super) mod link {
    pub(crate) const NAME: u16 = 3;
    pub(crate) const INFO: u16 = 18;
    /// `IFLA_INFO_KIND`, in [`INFO`].
    pub(crate) const KIND: u16 = 1;
}

/// `IFA_*`.
pub(super) mod address {
    pub(crate) const ADDRESS: u16 = 1;
    pub(crate) const LOCAL: u16 = 2;
    pub(crate) const CACHEINFO: u16 = 6;
    pub(crate) const FLAGS: u16 = 8;
}

/// `IFF_UP`.
pub(super) const UP: u32 = 1;
/// `IFA_F_NODAD`, `IFA_F_NOPREFIXROUTE`: usable at once, and no second route.
pub(super) const NODAD: u32 = 0x02;
pub(super) const NOPREFIXROUTE: u32 = 0x200;
/// `RT_SCOPE_UNIVERSE`, `RT_SCOPE_LINK`, `RT_SCOPE_HOST`.
pub(super) const SCOPE_UNIVERSE: u8 = 0;
pub(super) const SCOPE_LINK: u8 = 253;
pub(super) const SCOPE_HOST: u8 = 254;
