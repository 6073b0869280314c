//! The records of all live requests.

use hashbrown::HashMap;

use super::record::Record;

/// Records by request id. They lie side by side in the order the requests came in, apart from the map
/// of their ids: a pass goes through all of them, mostly in that order, and finds each of them once
/// to check it and again, by its place, to apply the step.
#[derive(Default)]
pub(super) struct Records {
    places: HashMap<u64, u32>,
    slots: Vec<Option<Record>>,
    vacant: Vec<u32>,
}

impl Records {
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Where the request's record lies, until it is removed.
    pub fn place(&self, id: u64) -> Option<u32> {
        self.places.get(&id).copied()
    }

    pub fn at(&mut self, place: u32) -> Option<&mut Record> {
        self.slots.get_mut(place as usize)?.as_mut()
    }

    pub fn get(&self, id: &u64) -> Option<&Record> {
        let place = self.place(*id)?;
        self.slots.get(place as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, id: &u64) -> Option<&mut Record> {
        let place = self.place(*id)?;
        self.at(place)
    }

    /// All records with their requests' ids, in no order.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (&u64, &Record)> {
        self.places
            .keys()
            .filter_map(|id| Some((id, self.get(id)?)))
    }

    /// Adds the record of a request that has none.
    pub fn insert(&mut self, id: u64, record: Record) {
        let place = match self.vacant.pop() {
            Some(place) => place,
            None => {
                self.slots.push(None);
                // As many live requests as 32 bits can number do not fit into any memory.
                (self.slots.len() - 1) as u32
            }
        };
        self.slots[place as usize] = Some(record);
        self.places.insert(id, place);
    }

    pub fn remove(&mut self, id: &u64) -> Option<Record> {
        let place = self.places.remove(id)?;
        self.vacant.push(place);
        self.slots.get_mut(place as usize)?.take()
    }
}
