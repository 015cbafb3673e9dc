//! The Service conformance cases with the nftables backend.

e2e::conformance!(e2e::Backend::Nft);
