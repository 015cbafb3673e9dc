//! The Service conformance cases with the nftables backend.

fairlead_e2e::conformance!(fairlead_e2e::Backend::Nft);
