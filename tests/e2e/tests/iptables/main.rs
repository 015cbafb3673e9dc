//! The Service conformance cases with the iptables backend in both variants, and tests of what only iptables has.
#![allow(clippy::expect_used, reason = "a panic is how tests fail, in their helpers too")]

mod localhost;
mod rejected;
mod tools;

mod nft {
    fairlead_e2e::conformance!(fairlead_e2e::Backend::IptablesNft);
}

mod legacy {
    fairlead_e2e::conformance!(fairlead_e2e::Backend::IptablesLegacy);
}
