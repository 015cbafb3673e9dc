//! Numbers of `linux/netfilter/nfnetlink.h` and `linux/netfilter/nf_tables.h` that several files need; those of a
//! single object or expression stand beside its code.

/// `NFNL_SUBSYS_NFTABLES`, in the high byte of a message's type.
pub(crate) const SUBSYSTEM: u16 = 10 << 8;
/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`.
pub(crate) const BATCH_BEGIN: u16 = 0x10;
pub(crate) const BATCH_END: u16 = 0x11;

/// `NFNLGRP_NFTABLES`: the multicast group of changes.
pub(crate) const GROUP: u32 = 7;

/// `enum nf_tables_msg_types`.
pub(crate) mod msg {
    constants! { u16:
        NEWTABLE = 0, GETTABLE = 1, DELTABLE = 2, NEWCHAIN = 3, GETCHAIN = 4, DELCHAIN = 5, NEWRULE = 6, GETRULE = 7,
        DELRULE = 8, NEWSET = 9, GETSET = 10, DELSET = 11, NEWSETELEM = 12, GETSETELEM = 13, DELSETELEM = 14,
        NEWGEN = 15, GETGEN = 16, DESTROYSETELEM = 30,
    }
}

/// The table's name is the first attribute of every object: `NFTA_TABLE_NAME`, `NFTA_CHAIN_TABLE`, `NFTA_RULE_TABLE`,
/// `NFTA_SET_TABLE`, `NFTA_SET_ELEM_LIST_TABLE`.
pub(crate) const TABLE: u16 = 1;

/// `enum nft_table_attributes`.
pub(crate) mod table {
    constants! { u16: FLAGS = 2, USERDATA = 6 }
}

/// `enum nft_chain_attributes` and `enum nft_hook_attributes`.
pub(crate) mod chain {
    constants! { u16:
        NAME = 3, HOOK = 4, POLICY = 5, TYPE = 7, USERDATA = 12, HOOK_NUM = 1, HOOK_PRIORITY = 2,
    }
}

/// `enum nft_rule_attributes` and `enum nft_expr_attributes`.
pub(crate) mod rule {
    constants! { u16: CHAIN = 2, HANDLE = 3, EXPRESSIONS = 4, USERDATA = 7, EXPR_NAME = 1, EXPR_DATA = 2 }
}

/// `enum nft_set_attributes`, `enum nft_set_desc_attributes` and `enum nft_set_field_attributes`.
pub(crate) mod set {
    constants! { u16:
        NAME = 2, FLAGS = 3, KEY_TYPE = 4, KEY_LEN = 5, DATA_TYPE = 6, DATA_LEN = 7, DESC = 9, ID = 10, TIMEOUT = 11,
        USERDATA = 13, COUNT = 20, DESC_SIZE = 1, DESC_CONCAT = 2, FIELD_LEN = 1,
    }
}

/// `enum nft_set_elem_list_attributes`.
pub(crate) mod elements {
    constants! { u16: SET = 2, LIST = 3 }
}

/// `NFTA_LIST_ELEM`: each expression of a rule, each element, each field of a concatenation.
pub(crate) const LIST_ELEM: u16 = 1;

/// `enum nft_gen_attributes`.
pub(crate) mod generation {
    constants! { u16: ID = 1, PROC_PID = 2, PROC_NAME = 3 }
}
