//! Round trips of random values, and what the wire must not get away with.
