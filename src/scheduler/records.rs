//! The records of all live requests.

use hashbrown::HashMap;

use super::lines::Lines;
use super::record::{Plain, Record};
use crate::plant::{self, Bug};

/// Records by request id. They lie side by side without gaps, mostly in the order the requests came in, apart from the
/// map of their ids: a pass goes through all of them, mostly in that order.
///
/// A pass in which nothing but decoding happens does not look at them, but at their [lines](super::lines). A record takes what
/// its line took when somebody looks at it.
pub(super) struct Records {
    places: HashMap<u64, u32>,
    records: Vec<Record>,
    lines: Lines,
    plain: Plain,
}

/// One record, and what else a pass needs of it.
pub(super) struct Visit<'a> {
    pub place: u32,
    /// The call of `build` that saw it last.
    pub seen_in: &'a mut u64,
    pub record: &'a mut Record,
}

impl Records {
    /// None yet.
    pub fn new(plain: Plain) -> Self {
        Self {
            places: HashMap::new(),
            records: Vec::new(),
            lines: Lines::new(plain.block_tokens),
            plain,
        }
    }

    /// What decides whether a step is plain.
    pub fn plain(&self) -> Plain {
        self.plain
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Where the request's record lies; good until a record is removed.
    pub fn place(&self, id: u64) -> Option<u32> {
        self.places.get(&id).copied()
    }

    /// The request's record, found at once if it lies at `guess`: a pass mostly lists the requests of the one before.
    pub fn visit(&mut self, id: u64, guess: u32) -> Option<Visit<'_>> {
        let place = match self.lines.id(guess) {
            Some(there) if there == id => guess,
            _ => self.place(id)?,
        };
        self.settle(place);
        Some(Visit {
            place,
            seen_in: self.lines.seen_in(place)?,
            record: self.records.get_mut(place as usize)?,
        })
    }

    /// The lines of all records.
    pub fn lines(&mut self) -> &mut Lines {
        &mut self.lines
    }

    /// From now on the line takes the tokens of the request there, until somebody looks at its record.
    pub fn begin_line(&mut self, place: u32) {
        self.settle(place);
        let most = self.lines.most();
        let record = self.records.get(place as usize);
        if let Some(limits) = record.and_then(|record| record.limits(most, self.plain)) {
            self.lines.begin(place, limits);
        }
    }

    /// The record takes what its line took, which takes no more.
    fn settle(&mut self, place: u32) {
        if let Some(record) = self.records.get_mut(place as usize) {
            let plain = self.plain;
            self.lines.end(place, |tokens| {
                if !plant::is(Bug::TailForgotten) {
                    record.take_kept(tokens, plain);
                }
            });
        }
    }

    /// The record at a place that a visit gave; places are good until a record is removed.
    pub fn at(&mut self, place: u32) -> Option<&mut Record> {
        self.settle(place);
        self.records.get_mut(place as usize)
    }

    /// A request's record, without the tokens that its line took.
    pub fn get(&self, id: &u64) -> Option<&Record> {
        let place = self.place(*id)?;
        self.records.get(place as usize)
    }

    pub fn get_mut(&mut self, id: &u64) -> Option<&mut Record> {
        let place = self.place(*id)?;
        self.at(place)
    }

    /// All records with their requests' ids, in no order, as they were if they were looked at.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (u64, Record)> {
        (0..).zip(&self.records).map(|(place, record)| {
            let mut record = record.clone();
            self.lines
                .taken(place, |tokens| record.take_kept(tokens, self.plain));
            (self.lines.id(place).unwrap(), record)
        })
    }

    /// Adds the record of a request that has none.
    pub fn insert(&mut self, id: u64, record: Record) {
        // As many live requests as 32 bits can number do not fit into any memory.
        self.places.insert(id, self.records.len() as u32);
        self.records.push(record);
        self.lines.push(id);
    }

    /// Removes a request's record. The last one takes its place.
    pub fn remove(&mut self, id: &u64) -> Option<Record> {
        let place = self.places.remove(id)?;
        // What lines took lies at their places.
        self.settle(place);
        if !plant::is(Bug::LinesMixedUp) {
            self.settle(self.records.len() as u32 - 1);
        }
        self.lines.swap_remove(place);
        if let Some(moved) = self.lines.id(place) {
            self.places.insert(moved, place);
        }
        Some(self.records.swap_remove(place as usize))
    }
}
