//! The records of all live requests.

use hashbrown::HashMap;

use super::record::Record;

/// Records by request id. They lie side by side without gaps, mostly in the order the requests came in, apart from the
/// map of their ids: a pass goes through all of them, mostly in that order.
#[derive(Default)]
pub(super) struct Records {
    places: HashMap<u64, u32>,
    records: Vec<Record>,
    /// One per record, apart, since all of them are looked at in every pass.
    marks: Vec<Mark>,
}

/// Of one record.
#[derive(Debug, Clone, Copy)]
struct Mark {
    id: u64,
    /// The call of `build` that saw it last.
    seen_in: u64,
}

/// One record, and what else a pass needs of it.
pub(super) struct Visit<'a> {
    pub place: u32,
    /// The call of `build` that saw it last.
    pub seen_in: &'a mut u64,
    pub record: &'a mut Record,
}

impl Records {
    pub fn len(&self) -> usize {
        self.records.len()
    }

    fn place(&self, id: u64) -> Option<u32> {
        self.places.get(&id).copied()
    }

    /// The request's record, found at once if it lies at `guess`: a pass mostly lists the requests of the one before.
    pub fn visit(&mut self, id: u64, guess: u32) -> Option<Visit<'_>> {
        let place = match self.marks.get(guess as usize) {
            Some(mark) if mark.id == id => guess,
            _ => self.place(id)?,
        };
        self.visit_at(place, id)
    }

    /// The request's record, if it lies there.
    #[inline(always)] // into the loop over the steps
    pub fn visit_at(&mut self, place: u32, id: u64) -> Option<Visit<'_>> {
        let mark = self.marks.get_mut(place as usize)?;
        if mark.id != id {
            return None;
        }
        Some(Visit {
            place,
            seen_in: &mut mark.seen_in,
            record: self.records.get_mut(place as usize)?,
        })
    }

    /// The record at a place that a visit gave; places are good until a record is removed.
    pub fn at(&mut self, place: u32) -> Option<&mut Record> {
        self.records.get_mut(place as usize)
    }

    pub fn get(&self, id: &u64) -> Option<&Record> {
        let place = self.place(*id)?;
        self.records.get(place as usize)
    }

    pub fn get_mut(&mut self, id: &u64) -> Option<&mut Record> {
        let place = self.place(*id)?;
        self.at(place)
    }

    /// All records with their requests' ids, in no order.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (&u64, &Record)> {
        self.marks.iter().map(|mark| &mark.id).zip(&self.records)
    }

    /// Adds the record of a request that has none.
    pub fn insert(&mut self, id: u64, record: Record) {
        // As many live requests as 32 bits can number do not fit into any memory.
        self.places.insert(id, self.records.len() as u32);
        self.records.push(record);
        self.marks.push(Mark { id, seen_in: 0 });
    }

    /// Removes a request's record. The last one takes its place.
    pub fn remove(&mut self, id: &u64) -> Option<Record> {
        let place = self.places.remove(id)?;
        self.marks.swap_remove(place as usize);
        if let Some(moved) = self.marks.get(place as usize) {
            self.places.insert(moved.id, place);
        }
        Some(self.records.swap_remove(place as usize))
    }
}
