//! What the registers hold while a rule is put into words.

use crate::nft::expr::{Constant, Register};

/// A value in a register.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) text: String,
    pub(super) kind: Kind,
    /// How many registers it fills.
    pub(super) words: u8,
    /// The mask it went through, when nothing else happened to it.
    pub(super) mask: Option<Constant>,
    /// The part of the rule's text that goes when this value is used: see [`Registers::take`].
    pub(super) loaded_by: Option<usize>,
}

/// How a constant that the value is compared with is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Addr,
    Proto,
    Port,
    /// A number in host byte order.
    Number,
    CtState,
    AddrType,
    Name,
    Raw,
}

impl Value {
    pub(super) fn new(text: impl Into<String>, kind: Kind, len: usize) -> Self {
        let words = u8::try_from(len.div_ceil(4)).unwrap_or(u8::MAX).max(1);
        Value { text: text.into(), kind, words, mask: None, loaded_by: None }
    }

    /// The number of the register behind it, when it starts at `start` and is the result of a map.
    pub(super) fn end(&self, start: Register) -> Option<u8> {
        self.loaded_by.map(|_| start.number().saturating_add(self.words))
    }
}

/// Sixteen registers; a value stands at the first one it fills.
#[derive(Debug, Default)]
pub(super) struct Registers([Option<Value>; 16]);

impl Registers {
    pub(super) fn load(&mut self, dreg: Register, value: Value) {
        let Some(at) = index(dreg) else { return };
        let end = at + usize::from(value.words);
        for (start, slot) in self.0.iter_mut().enumerate() {
            if slot.as_ref().is_some_and(|old| start < end && at < start + usize::from(old.words)) {
                *slot = None;
            }
        }
        self.0[at] = Some(value);
    }

    /// The value that starts at this register.
    pub(super) fn get(&self, sreg: Register) -> Option<&Value> {
        self.0[index(sreg)?].as_ref()
    }

    /// The words for what is in so many registers, or, if that is not known, in all that were filled without a gap.
    /// What has no words is called by its register. Also says which parts of the text these words make superfluous.
    pub(super) fn take(&self, sreg: Register, words: Option<u8>) -> (String, Vec<usize>) {
        let mut texts = Vec::new();
        let mut superfluous = Vec::new();
        let end = words.map(|words| sreg.number() + words.max(1));
        let mut number = sreg.number();
        while end.is_none_or(|end| number < end) {
            match Register::new(number).and_then(|register| self.get(register)) {
                Some(value) => {
                    texts.push(value.text.clone());
                    superfluous.extend(value.loaded_by);
                    number = number.saturating_add(value.words);
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
        (texts.join(" . "), superfluous)
    }
}

fn index(register: Register) -> Option<usize> {
    usize::from(register.number()).checked_sub(8)
}
