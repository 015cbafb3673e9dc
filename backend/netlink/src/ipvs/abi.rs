//! Numbers of `linux/ip_vs.h`.

/// `IPVS_GENL_NAME`.
pub(super) const FAMILY: &str = "IPVS";

/// `IPVS_CMD_*`.
pub(super) mod cmd {
    constants! { u8:
        NEW_SERVICE = 1, SET_SERVICE = 2, DEL_SERVICE = 3, GET_SERVICE = 4, NEW_DEST = 5, SET_DEST = 6, DEL_DEST = 7,
        GET_DEST = 8, SET_CONFIG = 12, GET_CONFIG = 13,
    }
}

// `IPVS_CMD_ATTR_*`.
constants! { u16: SERVICE = 1, DEST = 2, TIMEOUT_TCP = 4, TIMEOUT_TCP_FIN = 5, TIMEOUT_UDP = 6 }

/// `IP_VS_SVC_F_HASHED`: the kernel's own.
pub(super) const HASHED: u32 = 2;

/// `IPVS_SVC_ATTR_*`.
pub(super) mod svc {
    constants! { u16:
        AF = 1, PROTOCOL = 2, ADDR = 3, PORT = 4, FWMARK = 5, SCHED_NAME = 6, FLAGS = 7, TIMEOUT = 8, NETMASK = 9,
    }
}

/// `IPVS_DEST_ATTR_*`.
pub(super) mod dest {
    constants! { u16:
        ADDR = 1, PORT = 2, FWD_METHOD = 3, WEIGHT = 4, U_THRESH = 5, L_THRESH = 6, ACTIVE_CONNS = 7, INACT_CONNS = 8,
        ADDR_FAMILY = 11,
    }
}
