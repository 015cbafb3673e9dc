//! The Service conformance cases with the iptables backend in both variants, and tests of what only iptables has.

mod localhost;
mod rejected;
mod tools;

mod nft {
    e2e::conformance!(gate e2e::Backend::IptablesNft);
}

mod legacy {
    e2e::conformance!(unmarked e2e::Backend::IptablesLegacy);
}
