//! The values in the registers while a rule is converted to text.

use super::names;
use crate::nft::{
    expr::{Constant, Register},
    set::DataType,
};

/// A value in a register.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) text: String,
    /// The type of the value, and of constants that it is compared with.
    pub(super) kind: DataType,
    /// The number of registers that it fills.
    pub(super) registers: u8,
    /// The mask of a `bitwise` expression without XOR.
    pub(super) mask: Option<Constant>,
    /// The bytes of a constant, whose use tells its type.
    pub(super) constant: Option<Constant>,
    /// The part of the rule's text that a use of this value replaces: see [`Registers::take`].
    pub(super) loaded_by: Option<usize>,
}

impl Value {
    /// A value of this type, without a mask.
    pub(super) fn new(text: impl Into<String>, kind: DataType) -> Self {
        Value::with_len(text, kind, kind.len())
    }

    /// As [`Value::new`], with another length in bytes than that of the type.
    pub(super) fn with_len(text: impl Into<String>, kind: DataType, len: usize) -> Self {
        let registers = u8::try_from(len.div_ceil(4)).unwrap_or(u8::MAX).max(1);
        Value { text: text.into(), kind, registers, mask: None, constant: None, loaded_by: None }
    }

    fn masked_text(&self) -> String {
        match &self.mask {
            Some(mask) => format!("{} & {}", self.text, names::constant(self.kind, mask)),
            None => self.text.clone(),
        }
    }
}

/// The sixteen registers; a value is stored at the first register that it fills.
#[derive(Debug, Default)]
pub(super) struct Registers([Option<Value>; 16]);

impl Registers {
    /// Stores a value, which overwrites all values whose registers it fills.
    pub(super) fn load(&mut self, dreg: Register, value: Value) {
        let Some(at) = index(dreg) else { return };
        let end = at + usize::from(value.registers);
        for (start, slot) in self.0.iter_mut().enumerate() {
            if slot.as_ref().is_some_and(|old| start < end && at < start + usize::from(old.registers)) {
                *slot = None;
            }
        }
        self.0[at] = Some(value);
    }

    /// The value that starts at this register.
    pub(super) fn get(&self, sreg: Register) -> Option<&Value> {
        self.0[index(sreg)?].as_ref()
    }

    /// The type of the value that starts at this register.
    pub(super) fn kind(&self, sreg: Register) -> DataType {
        self.get(sreg).map_or(DataType::UNKNOWN, |value| value.kind)
    }

    /// The text of the values in this number of registers; if it is `None`, in all registers up to the first empty one.
    /// The text of an empty register is its name. Also returns the parts of the rule's text that this text replaces.
    pub(super) fn take(&self, sreg: Register, count: Option<u8>) -> (String, Vec<usize>) {
        let end = count.map(|count| sreg.number() + count.max(1));
        let mut texts = Vec::new();
        let mut replaced = Vec::new();

        let mut number = sreg.number();
        while end.is_none_or(|end| number < end) {
            match Register::new(number).and_then(|register| self.get(register)) {
                Some(value) => {
                    texts.push(value.masked_text());
                    replaced.extend(value.loaded_by);
                    number = number.saturating_add(value.registers);
                }
                None if end.is_some() || texts.is_empty() => {
                    texts.push(format!("r{number}"));
                    number += 1;
                    if end.is_none() {
                        break;
                    }
                }
                None => break,
            }
        }

        (texts.join(" . "), replaced)
    }
}

fn index(register: Register) -> Option<usize> {
    usize::from(register.number()).checked_sub(8)
}
