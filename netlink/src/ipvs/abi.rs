//! Numbers of `linux/ip_vs.h`.

/// `IPVS_GENL_NAME`.
pub(super) const FAMILY: &str = "IPVS";

/// `IPVS_CMD_*`.
pub(super) mod cmd {
    pub(crate) const NEW_SERVICE: u8 = 1;
    pub(crate) const SET_SERVICE: u8 = 2;
    pub(crate) const DEL_SERVICE: u8 = 3;
    pub(crate) const GET_SERVICE: u8 = 4;
    pub(crate) const NEW_DEST: u8 = 5;
    pub(crate) const SET_DEST: u8 = 6;
    pub(crate) const DEL_DEST: u8 = 7;
    pub(crate) const GET_DEST: u8 = 8;
    pub(crate) const SET_CONFIG: u8 = 12;
    pub(crate) const GET_CONFIG: u8 = 13;
}

/// `IPVS_CMD_ATTR_SERVICE`, `IPVS_CMD_ATTR_DEST`.
pub(super) const SERVICE: u16 = 1;
pub(super) const DEST: u16 = 2;
/// `IPVS_CMD_ATTR_TIMEOUT_TCP`, `IPVS_CMD_ATTR_TIMEOUT_TCP_FIN`, `IPVS_CMD_ATTR_TIMEOUT_UDP`.
pub(super) const TIMEOUT_TCP: u16 = 4;
pub(super) const TIMEOUT_TCP_FIN: u16 = 5;
pub(super) const TIMEOUT_UDP: u16 = 6;

/// `IP_VS_SVC_F_HASHED`: the kernel's own.
pub(super) const HASHED: u32 = 2;

/// `IPVS_SVC_ATTR_*`.
pub(super) mod svc {
    pub(crate) const AF: u16 = 1;
    pub(crate) const PROTOCOL: u16 = 2;
    pub(crate) const ADDR: u16 = 3;
    pub(crate) const PORT: u16 = 4;
    pub(crate) const FWMARK: u16 = 5;
    pub(crate) const SCHED_NAME: u16 = 6;
    pub(crate) const FLAGS: u16 = 7;
    pub(crate) const TIMEOUT: u16 = 8;
    pub(crate) const NETMASK: u16 = 9;
}

/// `IPVS_DEST_ATTR_*`.
pub(super) mod dest {
    pub(crate) const ADDR: u16 = 1;
    pub(crate) const PORT: u16 = 2;
    pub(crate) const FWD_METHOD: u16 = 3;
    pub(crate) const WEIGHT: u16 = 4;
    pub(crate) const U_THRESH: u16 = 5;
    pub(crate) const L_THRESH: u16 = 6;
    pub(crate) const ACTIVE_CONNS: u16 = 7;
    pub(crate) const INACT_CONNS: u16 = 8;
    /// From Linux 3.18.
    pub(crate) const ADDR_FAMILY: u16 = 11;
}
