//! Calls as bytes.

use super::literal::{code_of, mark};
use super::write::with_head;
use super::{Unpack, Writer};
use crate::store::wire::family::Family;

/// A call of the master, unless it says otherwise. Described by `request!`.
pub trait Request {
    /// The class whose method it is; by default the one that the master offers.
    const CLASS: &'static str = "WrappedMasterService";
    /// The method's name.
    const METHOD: &'static str;
    /// What is answered; it borrows from the message.
    type Reply<'m>: Unpack<'m>;

    /// Appends the arguments' literals, and says how many there are.
    fn arguments(family: Family, out: &mut Vec<u8>) -> usize;

    /// The longest of all lengths in the arguments.
    fn longest(&self, family: Family) -> usize;

    /// Appends the arguments.
    fn write(&self, to: &mut Writer<'_>);

    /// The number by which the other side knows the method.
    fn function_id() -> u32 {
        let name = ["mooncake::", Self::CLASS, "::", Self::METHOD].concat();
        let [a, b, c, d, ..] = md5::compute(name).0;
        u32::from_be_bytes([a, b, c, d])
    }

    /// The type code of the arguments: one is itself, several are a tuple, which is described as a struct.
    /// `None` where there are none.
    fn code(family: Family) -> Option<u32> {
        let mut literal = vec![mark::STRUCT];
        match Self::arguments(family, &mut literal) {
            0 => None,
            1 => literal.get(1..).map(code_of),
            _ => {
                literal.push(mark::END);
                Some(code_of(&literal))
            }
        }
    }

    /// Appends the message.
    fn pack(&self, family: Family, out: &mut Vec<u8>) {
        if let Some(code) = Self::code(family) {
            with_head(code, self.longest(family), family, out, |to| self.write(to));
        }
    }
}
