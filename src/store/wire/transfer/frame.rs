//! The frames of the data protocol: a request of 24 bytes, and in version 2 a status of 8.
//!
//! All numbers are little-endian. A request is the size in bytes, the absolute address, one byte of operation and seven of
//! padding; the bytes of a write follow it. Version 2 sets the highest bit of the operation and answers with a status,
//! before the bytes of a read and after those of a write were stored; version 1 answers with the bytes of a read alone.
//! Requests of one connection are served in order.

/// Size of a request without its data.
pub const REQUEST: usize = 24;
/// Size of a status.
pub const STATUS: usize = 8;

const VERSION_2: u8 = 0x80;
const READ: u8 = 0;
const WRITE: u8 = 1;
/// The upper half of every status.
const MARK: u64 = 0x4D43_5456 << 32;
const REJECTED: u64 = 1;

/// Versions of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Without statuses.
    One,
    /// With them.
    Two,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Send me bytes.
    Read,
    /// Store the bytes that follow.
    Write,
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Bytes to move.
    pub size: u64,
    /// Where, as the owner of the memory counts.
    pub address: u64,
    /// Which way.
    pub operation: Operation,
    /// How it is answered.
    pub version: Version,
}

/// The answer of version 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Served.
    Fine,
    /// The owner does not lend these addresses; it closes the connection.
    Rejected,
    /// A number that no version known here sends.
    Other(u32),
}

impl Request {
    /// The bytes of the request.
    pub fn encode(&self) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        let (size, rest) = bytes.split_at_mut(8);
        let (address, rest) = rest.split_at_mut(8);
        size.copy_from_slice(&self.size.to_le_bytes());
        address.copy_from_slice(&self.address.to_le_bytes());
        if let Some(operation) = rest.first_mut() {
            *operation = match self.operation {
                Operation::Read => READ,
                Operation::Write => WRITE,
            } | match self.version {
                Version::One => 0,
                Version::Two => VERSION_2,
            };
        }
        bytes
    }

    /// Reads a request; `None` when the operation is neither a read nor a write. Padding may hold anything.
    pub fn decode(bytes: &[u8; REQUEST]) -> Option<Self> {
        let (size, rest) = bytes.split_first_chunk::<8>()?;
        let (address, rest) = rest.split_first_chunk::<8>()?;
        let operation = *rest.first()?;
        let version = if operation & VERSION_2 == 0 {
            Version::One
        } else {
            Version::Two
        };
        let operation = match operation & !VERSION_2 {
            READ => Operation::Read,
            WRITE => Operation::Write,
            _ => return None,
        };
        Some(Self {
            size: u64::from_le_bytes(*size),
            address: u64::from_le_bytes(*address),
            operation,
            version,
        })
    }
}

impl Status {
    /// The bytes of the status.
    pub fn encode(self) -> [u8; STATUS] {
        let low = match self {
            Self::Fine => 0,
            Self::Rejected => REJECTED,
            Self::Other(low) => low.into(),
        };
        (MARK | low).to_le_bytes()
    }

    /// Reads a status; `None` when it is none.
    pub fn decode(bytes: [u8; STATUS]) -> Option<Self> {
        let number = u64::from_le_bytes(bytes);
        if number & !u64::from(u32::MAX) != MARK {
            return None;
        }
        Some(match number & u64::from(u32::MAX) {
            0 => Self::Fine,
            REJECTED => Self::Rejected,
            low => Self::Other(u32::try_from(low).unwrap_or(u32::MAX)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_and_statuses_are_these_bytes() {
        let request = Request {
            size: 0x1122,
            address: 0x0102_0304_0506_0708,
            operation: Operation::Write,
            version: Version::Two,
        };
        let bytes = request.encode();
        assert_eq!(
            bytes,
            *b"\x22\x11\0\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\x81\0\0\0\0\0\0\0"
        );
        let read = Request {
            operation: Operation::Read,
            version: Version::One,
            ..request
        };
        assert_eq!(read.encode()[16..], [0; 8]);
        assert_eq!(Status::Fine.encode(), *b"\0\0\0\0VTCM");
        assert_eq!(Status::Rejected.encode(), *b"\x01\0\0\0VTCM");
    }

    proptest! {
        #[test]
        fn whatever_decodes_means_the_same_again(bytes: [u8; REQUEST]) {
            if let Some(request) = Request::decode(&bytes) {
                prop_assert_eq!(Request::decode(&request.encode()), Some(request));
                prop_assert_eq!(&request.encode()[..17], &bytes[..17]);
            } else {
                prop_assert!(bytes[16] & 0x7F > 1);
            }
        }

        #[test]
        fn a_status_is_its_bytes(number: u64, marked: bool) {
            let number = if marked { MARK | number >> 32 } else { number };
            match Status::decode(number.to_le_bytes()) {
                Some(status) => prop_assert_eq!(status.encode(), number.to_le_bytes()),
                None => prop_assert_ne!(number >> 32, MARK >> 32),
            }
        }
    }
}
