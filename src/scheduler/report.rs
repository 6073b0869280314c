//! What became of earlier passes, and the end of requests.

use super::record::{Record, Retry, SPARES};
use super::{FailedBlock, FinishReason, Scheduler};
use crate::error::{Result, bail};
use crate::plant::{self, Bug};

impl Scheduler {
    /// Takes the local worker's report. Every call of the engine's begins with it, so that a
    /// decision never rests on an older state than it must.
    pub(super) fn take_report(&mut self) {
        let mut report = std::mem::take(&mut self.report);
        self.link.take_report(&mut report);
        if !report.is_empty() {
            for &pass in &report.started {
                self.mark_started(pass);
            }
            for &pass in &report.submitted {
                self.confirm(pass);
            }
            for failed in &report.failed_saves {
                let record = self.records.get_mut(&failed.request_id);
                if let Some(record) = record.filter(|record| record.generation == failed.generation)
                    && !plant::is(Bug::PutForgotten)
                    && !record
                        .retries
                        .iter()
                        .any(|retry| retry.block == failed.block && retry.emitted_in.is_none())
                {
                    record.retries.retain(|retry| retry.block != failed.block);
                    record.retries.push(Retry {
                        block: failed.block,
                        emitted_in: None,
                    });
                }
            }
            for failed in &report.failed_loads {
                let record = self.records.get_mut(&failed.request_id);
                if let Some(record) = record.filter(|record| record.generation == failed.generation)
                {
                    record.spoilt = true;
                    if let Some(found) = FailedBlock::new(failed.block, &record.chain) {
                        let first = self.failed_from.entry(failed.request_id).or_insert(found);
                        if found.block < first.block {
                            *first = found;
                        }
                    }
                }
            }
            for &(id, generation) in &report.loaded {
                if let Some(record) = self.records.get_mut(&id)
                    && record.generation == generation
                    && let Some(load) = &mut record.load
                {
                    load.counts = true;
                }
            }
            for id in &report.released {
                self.pinned.remove(id);
            }
            report.clear();
        }
        self.report = report;
    }

    /// The loads of `pass` were started: positions behind them may be reported as computed.
    fn mark_started(&mut self, pass: u64) {
        let Some(log) = self.logs.iter().find(|log| log.pass == pass) else {
            return;
        };
        for emitted in log.emitted.iter().filter(|emitted| emitted.load) {
            if let Some(record) = self.records.get_mut(&emitted.request_id)
                && record.generation == emitted.generation
                && let Some(load) = &mut record.load
            {
                load.counts = true;
            }
        }
    }

    /// The saves of `pass` are queued: watermarks move. Older passes without a report never ran.
    fn confirm(&mut self, pass: u64) {
        while self.logs.front().is_some_and(|log| log.pass <= pass) {
            let Some(log) = self.logs.pop_front() else {
                return;
            };
            if log.pass == pass {
                for emitted in &log.emitted {
                    let Some(up_to) = emitted.saved_up_to else {
                        continue;
                    };
                    let Some(place) = self.records.place(emitted.request_id) else {
                        continue;
                    };
                    if let Some(record) = self.records.at(place)
                        && (record.generation == emitted.generation
                            || plant::is(Bug::ConfirmAnyLife))
                    {
                        record.confirmed = record.confirmed.max(up_to);
                        record
                            .retries
                            .retain(|retry| retry.emitted_in != Some(pass));
                        // It decodes on.
                        self.records.begin_line(place);
                    }
                }
            }
            self.spare_logs.push(log);
        }
    }

    /// The request ended, was cancelled or preempted. True: its pages must stay as they are until
    /// every rank reported the id through `get_finished`. An id that is not known is no error.
    pub fn finished(&mut self, request_id: u64, reason: FinishReason) -> bool {
        self.take_report();
        if reason != FinishReason::Preempted {
            self.failed_from.remove(&request_id);
        }
        // The leader cannot know what each rank still moves: any save or load that was emitted pins. A second
        // call before the local worker's report gets the same answer, since pages may be in flight.
        if self
            .records
            .get(&request_id)
            .is_some_and(Record::may_be_in_flight)
        {
            self.pinned.insert(request_id);
        }
        self.drop_record(request_id);
        // Also what a scheduler before this one had queued.
        if self.link.inherits_transfers(request_id) {
            self.pinned.insert(request_id);
        }
        self.pinned.contains(&request_id)
    }

    /// The request's allocation was released and it will run again: everything tied to it is
    /// forgotten, but not which of its loads failed. An id that is not known is no error.
    ///
    /// Errors: `Busy`, the pool may still use the pages, in a call that did not return in time: they must stay as they are
    /// until another call of this succeeds. All the rest is done.
    pub fn reset(&mut self, request_id: u64) -> Result<()> {
        self.take_report();
        let life = self.records.get(&request_id).map(|it| it.generation);
        self.release_record(request_id);
        self.lent.extend(life.map(|life| (request_id, life)));
        let link = &self.link;
        self.lent
            .retain(|life| life.0 != request_id || link.may_use_pages(life.0, life.1));
        if self.lent.iter().any(|life| life.0 == request_id) {
            bail!(
                Busy,
                "request {request_id}: the pool may still use its pages, which have to stay as they are until another call of this succeeds"
            );
        }
        Ok(())
    }

    /// Forgets a life whose pages are the engine's already.
    pub(super) fn release_record(&mut self, request_id: u64) {
        if let Some(record) = self.records.get(&request_id) {
            self.link.life_released(request_id, record.generation);
        }
        self.drop_record(request_id);
    }

    fn drop_record(&mut self, request_id: u64) {
        let Some(record) = self.records.remove(&request_id) else {
            return;
        };
        self.link.life_ended(request_id, record.generation);
        if let Some(reservation) = record.reservation() {
            self.reservations.remove(&reservation);
        }
        if record.may_be_in_flight() || record.load.as_ref().is_some_and(|load| load.emitted) {
            self.ended.push((request_id, record.generation));
        }
        if self.spares.len() < SPARES {
            self.spares.push(record);
        }
    }
}
