//! The sixteen registers of nf_tables, four bytes each.

use netlink::nft::Register;

/// The content of the registers.
#[derive(Clone, Debug)]
pub(super) struct Registers([u8; 64]);

impl Registers {
    /// All zeros.
    pub(super) const fn new() -> Self {
        Self([0; 64])
    }

    /// Stores a value, padded with zeros to whole registers.
    pub(super) fn load(&mut self, dreg: Register, value: &[u8]) {
        let at = offset(dreg);
        let whole = value.len().next_multiple_of(4);
        if let Some(bytes) = self.0.get_mut(at..at + whole) {
            bytes.fill(0);
            bytes[..value.len()].copy_from_slice(value);
        }
    }

    /// Reads `len` bytes; empty when they extend past the last register.
    pub(super) fn get(&self, sreg: Register, len: usize) -> &[u8] {
        let at = offset(sreg);
        self.0.get(at..at + len).unwrap_or_default()
    }

    /// A number in host byte order.
    pub(super) fn number(&self, sreg: Register) -> u32 {
        self.get(sreg, 4).try_into().map(u32::from_ne_bytes).unwrap_or_default()
    }
}

fn offset(register: Register) -> usize {
    usize::from(register.number().saturating_sub(Register::FIRST.number())) * 4
}
