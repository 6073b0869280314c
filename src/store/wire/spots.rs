//! Where in the memory of which owner the bytes of an object are: what is kept of the master's answers.

use std::collections::HashMap;

use super::messages::{Place, Replica};
use super::pack::Text;

/// Replicas of an object that are looked at: what a master names beyond them is its word alone, and would be kept.
pub const MOST_REPLICAS: usize = 16;

/// A range of an owner's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    /// Its number in [`Owners`].
    owner: usize,
    /// The first byte, as the owner counts.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

/// The owners that a call meets: mostly few, each named by many replicas.
#[derive(Debug, Default)]
pub struct Owners {
    names: Vec<String>,
    /// Their places. A master that names another owner with each replica shall not cost a search through all of them.
    places: HashMap<String, usize>,
}

impl Owners {
    /// Where a replica is; `None` if it is out of reach: not in memory, or in memory that only another transport
    /// reaches.
    pub fn spot(&mut self, replica: &Replica<'_>) -> Option<Spot> {
        let Place::Memory(memory) = &replica.place else {
            return None;
        };
        let buffer = &memory.buffer;
        if buffer.protocol != Text(b"tcp") {
            return None;
        }
        Some(Spot {
            owner: self.number(buffer.endpoint.as_str()?),
            address: buffer.address,
            size: buffer.size,
        })
    }

    /// How the owner is found.
    pub fn endpoint(&self, spot: Spot) -> &str {
        self.name(spot.owner)
    }

    /// The endpoint with this number.
    pub fn name(&self, owner: usize) -> &str {
        self.names.get(owner).map_or("", String::as_str)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// The number of the owner that this endpoint names.
    pub fn number(&mut self, endpoint: &str) -> usize {
        if let Some(&known) = self.places.get(endpoint) {
            return known;
        }
        let place = self.names.len();
        self.names.push(endpoint.to_owned());
        self.places.insert(endpoint.to_owned(), place);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::{Buffer, InFile, InMemory};
    use super::*;

    #[test]
    fn only_memory_over_tcp_is_in_reach() {
        let mut owners = Owners::default();
        let mut replica = |protocol: &'static str, endpoint: &'static [u8]| {
            let buffer = Buffer {
                size: 7,
                address: 9,
                protocol: protocol.into(),
                endpoint: Text(endpoint),
            };
            let place = Place::Memory(InMemory { buffer });
            owners.spot(&Replica {
                place,
                ..Replica::default()
            })
        };
        let first = replica("tcp", b"a:1").unwrap();
        let second = replica("tcp", b"b:1").unwrap();
        assert_eq!(replica("tcp", b"a:1"), Some(first));
        assert_eq!(replica("rdma", b"a:1"), None);
        assert_eq!(replica("tcp", &[0xff]), None);
        assert_eq!((first.address, first.size), (9, 7));
        assert_eq!(owners.endpoint(first), "a:1");
        assert_eq!(owners.endpoint(second), "b:1");
        let place = Place::File(InFile::default());
        let file = Replica {
            place,
            ..Replica::default()
        };
        assert_eq!(owners.spot(&file), None);
    }
}
