//! Every case, with the iptables backend of both variants.

mod nft {
    fairlead_e2e::conformance!(fairlead_e2e::Backend::IptablesNft);
}

mod legacy {
    fairlead_e2e::conformance!(fairlead_e2e::Backend::IptablesLegacy);
}
