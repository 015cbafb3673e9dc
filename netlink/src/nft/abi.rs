//! Numbers of `linux/netfilter/nfnetlink.h` and `linux/netfilter/nf_tables.h` that several files need; those of a
//! single object or expression stand beside its code.

/// `NFNL_SUBSYS_NFTABLES`, in the high byte of a message's type.
pub(crate) const SUBSYSTEM: u16 = 10 << 8;
/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`.
pub(crate) const BATCH_BEGIN: u16 = 0x10;
pub(crate) const BATCH_END: u16 = 0x11;

/// Length of `struct nfgenmsg`, behind every message's header.
pub(crate) const NFGENMSG: usize = 4;

/// `NFNLGRP_NFTABLES`: the multicast group of changes.
pub(crate) const GROUP: u32 = 7;

/// `enum nf_tables_msg_types`.
pub(crate) mod msg {
    pub(crate) const NEWTABLE: u16 = 0;
    pub(crate) const GETTABLE: u16 = 1;
    pub(crate) const DELTABLE: u16 = 2;
    pub(crate) const NEWCHAIN: u16 = 3;
    pub(crate) const GETCHAIN: u16 = 4;
    pub(crate) const DELCHAIN: u16 = 5;
    pub(crate) const NEWRULE: u16 = 6;
    pub(crate) const GETRULE: u16 = 7;
    pub(crate) const DELRULE: u16 = 8;
    pub(crate) const NEWSET: u16 = 9;
    pub(crate) const GETSET: u16 = 10;
    pub(crate) const DELSET: u16 = 11;
    pub(crate) const NEWSETELEM: u16 = 12;
    pub(crate) const GETSETELEM: u16 = 13;
    pub(crate) const DELSETELEM: u16 = 14;
    pub(crate) const NEWGEN: u16 = 15;
    pub(crate) const GETGEN: u16 = 16;
}

/// The table's name is the first attribute of every object: `NFTA_TABLE_NAME`, `NFTA_CHAIN_TABLE`, `NFTA_RULE_TABLE`,
/// `NFTA_SET_TABLE`, `NFTA_SET_ELEM_LIST_TABLE`.
pub(crate) const TABLE: u16 = 1;

/// `enum nft_table_attributes`.
pub(crate) mod table {
    pub(crate) const FLAGS: u16 = 2;
    pub(crate) const USERDATA: u16 = 6;
}

/// `enum nft_chain_attributes` and `enum nft_hook_attributes`.
pub(crate) mod chain {
    pub(crate) const NAME: u16 = 3;
    pub(crate) const HOOK: u16 = 4;
    pub(crate) const POLICY: u16 = 5;
    pub(crate) const TYPE: u16 = 7;
    pub(crate) const USERDATA: u16 = 12;
    pub(crate) const HOOK_NUM: u16 = 1;
    pub(crate) const HOOK_PRIORITY: u16 = 2;
}

/// `enum nft_rule_attributes` and `enum nft_expr_attributes`.
pub(crate) mod rule {
    pub(crate) const CHAIN: u16 = 2;
    pub(crate) const HANDLE: u16 = 3;
    pub(crate) const EXPRESSIONS: u16 = 4;
    pub(crate) const USERDATA: u16 = 7;
    pub(crate) const EXPR_NAME: u16 = 1;
    pub(crate) const EXPR_DATA: u16 = 2;
}

/// `enum nft_set_attributes`, `enum nft_set_desc_attributes` and `enum nft_set_field_attributes`.
pub(crate) mod set {
    pub(crate) const NAME: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
    pub(crate) const KEY_TYPE: u16 = 4;
    pub(crate) const KEY_LEN: u16 = 5;
    pub(crate) const DATA_TYPE: u16 = 6;
    pub(crate) const DATA_LEN: u16 = 7;
    pub(crate) const DESC: u16 = 9;
    pub(crate) const ID: u16 = 10;
    pub(crate) const TIMEOUT: u16 = 11;
    pub(crate) const USERDATA: u16 = 13;
    pub(crate) const COUNT: u16 = 20;
    pub(crate) const DESC_SIZE: u16 = 1;
    pub(crate) const DESC_CONCAT: u16 = 2;
    pub(crate) const FIELD_LEN: u16 = 1;
}

/// `enum nft_set_elem_list_attributes`.
pub(crate) mod elements {
    pub(crate) const SET: u16 = 2;
    pub(crate) const LIST: u16 = 3;
}

/// `NFTA_LIST_ELEM`: each expression of a rule, each element, each field of a concatenation.
pub(crate) const LIST_ELEM: u16 = 1;

/// `enum nft_gen_attributes`.
pub(crate) mod generation {
    pub(crate) const ID: u16 = 1;
    pub(crate) const PROC_PID: u16 = 2;
    pub(crate) const PROC_NAME: u16 = 3;
}
