//! Reservations: another protocol for what match, allocated and cancel_load do. An id that the
//! engine chooses holds an offer until parts of it were released and the rest accepted.

use std::ops::Range;

use super::offer::{as_blocks, check_destinations, remaining};
use super::record::Record;
use super::{GroupPages, Offer, Request, Scheduler};
use crate::error::{Error, Kind, Result, bail};
use crate::link::GroupInfo;
use crate::plant::{self, Bug};

/// A reservation that the engine accepts with a pass: what it still holds is loaded.
#[derive(Debug, Clone, Copy)]
pub struct Accepted<'a> {
    /// The reservation.
    pub reservation_id: u64,
    /// The request it was made for.
    pub request_id: u64,
    /// The request's pages so far.
    pub pages: &'a [GroupPages<'a>],
}

impl Scheduler {
    /// Answers like [`Scheduler::match_request`] and holds the offer under `reservation_id`. Asked again with
    /// the same id, the answer is what it still holds beyond `local_tokens`. Another reservation of the
    /// request takes the place of the earlier one. Ids are fresh per allocation: `InvalidArgument` for one that
    /// another request holds.
    pub fn reserve(
        &mut self,
        request: &Request<'_>,
        local_tokens: u64,
        reservation_id: u64,
    ) -> Result<Offer> {
        if let Some(&holder) = self.reservations.get(&reservation_id)
            && holder != request.id
        {
            bail!(
                InvalidArgument,
                "request {}: reservation_id = {reservation_id} holds an offer of request {holder}",
                request.id
            );
        }
        let held = self.records.get(&request.id).and_then(|record| {
            let start = record.start.as_ref()?;
            let same = start.reservation == Some(reservation_id);
            same.then(|| (record.generation, start.offered.open.clone()))
        });
        let mut offer = self.match_request(request, local_tokens)?;
        let Some(record) = self.records.get_mut(&request.id) else {
            return Ok(offer);
        };
        let Some(start) = &mut record.start else {
            return Ok(offer);
        };
        match held {
            Some((generation, open)) if generation == record.generation => {
                let inside = (open.start..=open.end).contains(&local_tokens)
                    && local_tokens.is_multiple_of(u64::from(self.terms.tokens_per_block));
                offer.tokens = if inside { open.end - local_tokens } else { 0 };
                offer.is_async = offer.tokens > 0 && self.terms.async_load;
                start.offered.open = open;
                start.offered.made = true;
            }
            _ => {
                if let Some(earlier) = start.reservation.replace(reservation_id)
                    && !plant::is(Bug::StaleAccepted)
                {
                    self.reservations.remove(&earlier);
                }
                self.reservations.insert(reservation_id, request.id);
            }
        }
        Ok(offer)
    }

    /// Gives back the prompt tokens `from … to` of what a reservation holds: at its head or its tail, in
    /// whole blocks. What it does not hold (any more) is ignored, and so is an id that holds nothing.
    /// `InvalidArgument` for a hole in the middle or parts of blocks.
    pub fn release_reservation(&mut self, reservation_id: u64, from: u64, to: u64) -> Result<()> {
        self.take_report();
        let size = self.block_tokens();
        let Some(record) = held_by(&self.reservations, &mut self.records, reservation_id) else {
            return Ok(());
        };
        let refused = || {
            let text = format!(
                "reservation {reservation_id}: tokens {from} … {to} are no whole-block head or tail of what it holds"
            );
            Error::new(Kind::InvalidArgument, text)
        };
        if from > to || !from.is_multiple_of(size) || !to.is_multiple_of(size) {
            return Err(refused());
        }
        let held = record.held(size);
        let given = from.max(held.start)..to.min(held.end);
        if given.is_empty() {
            return Ok(());
        }
        let left = remaining(&held, given, size).ok_or_else(refused)?;
        match (&mut record.load, &mut record.start) {
            _ if plant::is(Bug::ReleaseIgnored) => {}
            (Some(load), _) => load.blocks = as_blocks(&left, size),
            (None, Some(start)) => start.offered.open = left,
            (None, None) => {}
        }
        Ok(())
    }

    /// Settles what is accepted, all of it or nothing; what to undo should the pass be refused for
    /// another reason.
    pub(super) fn accept(
        &mut self,
        accepted: &[Accepted<'_>],
        groups: &[GroupInfo],
    ) -> Result<Undo> {
        let mut undo = Undo {
            records: Vec::new(),
            to_park: self.to_park.len(),
        };
        for one in accepted {
            if let Err(error) = self.accept_one(one, groups, &mut undo) {
                self.take_back(undo);
                return Err(error);
            }
        }
        Ok(undo)
    }

    fn accept_one(
        &mut self,
        one: &Accepted<'_>,
        groups: &[GroupInfo],
        undo: &mut Undo,
    ) -> Result<()> {
        let size = self.block_tokens();
        let id = one.request_id;
        let holder = self.reservations.get(&one.reservation_id);
        if holder != Some(&id) && !(plant::is(Bug::WrongHolder) && holder.is_some()) {
            return Ok(());
        }
        let Some(record) = held_by(&self.reservations, &mut self.records, one.reservation_id)
        else {
            return Ok(());
        };
        let blocks = as_blocks(&record.held(size), size);
        if groups.is_empty() && !blocks.is_empty() {
            bail!(
                BadState,
                "request {id}: reservation {} is accepted, but no layout is registered",
                one.reservation_id
            );
        }
        if groups.is_empty() {
            undo.records.push((id, record.clone()));
            record.sits_out |= !one.pages.is_empty();
            return Ok(());
        }
        record.check_pages(id, one.pages, groups)?;
        check_destinations(id, record, one.pages, groups, blocks.clone())?;
        undo.records.push((id, record.clone()));
        record.enter_pages(one.pages, groups);
        record.settle(blocks, self.terms.async_load);
        if self.terms.async_load {
            self.to_park.push(id);
        }
        Ok(())
    }

    pub(super) fn take_back(&mut self, undo: Undo) {
        self.to_park.truncate(undo.to_park);
        // The last first, should one have been accepted twice.
        for (id, before) in undo.records.into_iter().rev() {
            if let Some(record) = self.records.get_mut(&id) {
                *record = before;
            }
        }
    }
}

/// How the scheduler was before a pass's acceptances.
pub(super) struct Undo {
    records: Vec<(u64, Record)>,
    to_park: usize,
}

impl Record {
    /// What its reservation holds, in prompt tokens.
    fn held(&self, size: u64) -> Range<u64> {
        match (&self.load, &self.start) {
            (Some(load), _) => load.tokens(size),
            (None, Some(start)) => start.offered.open.clone(),
            (None, None) => 0..0,
        }
    }
}

/// The record whose offer the reservation holds; none for an id that is unknown, or stale because
/// the load travelled or the request ran.
fn held_by<'a>(
    reservations: &hashbrown::HashMap<u64, u64>,
    records: &'a mut super::Records,
    reservation_id: u64,
) -> Option<&'a mut Record> {
    let record = records.get_mut(reservations.get(&reservation_id)?)?;
    let travelled = record.load.as_ref().is_some_and(|load| load.emitted);
    let holds = record.reservation() == Some(reservation_id) || plant::is(Bug::StaleAccepted);
    (holds && !record.runs() && !travelled).then_some(record)
}
