//! The scheduler beside a worker that only pretends: every answer and report is the test's.

mod lines;
mod offers;
mod passes;
mod properties;
mod reports;

use std::sync::Arc;

use parking_lot::Mutex;

use super::*;
use crate::config::Config;
use crate::engine::{Drafter, Engine, Serving};
use crate::error::Kind;
use crate::link::{BlockOf, GroupInfo};
use crate::metadata::Metadata;

const T: u64 = 4;

#[derive(Default)]
struct Fake {
    /// Blocks from the head of any question that are stored, and the questions so far.
    stored: Mutex<usize>,
    asked: Mutex<Vec<usize>>,
    groups: Mutex<Option<Arc<[GroupInfo]>>>,
    report: Mutex<Report>,
    /// Lives that the scheduler forgot, with their generation.
    ended: Mutex<Vec<(u64, u64)>>,
}

impl LocalWorker for Fake {
    fn lookup(&self, hashes: &[u8]) -> usize {
        self.asked.lock().push(hashes.len() / 32);
        *self.stored.lock()
    }
    fn groups(&self) -> Option<Arc<[GroupInfo]>> {
        self.groups.lock().clone()
    }
    fn take_report(&self, into: &mut Report) {
        std::mem::swap(&mut *self.report.lock(), into);
    }
    fn life_ended(&self, request_id: u64, generation: u64) {
        self.ended.lock().push((request_id, generation));
    }
    fn life_released(&self, _: u64, _: u64) {}
    fn inherits_transfers(&self, _: u64) -> bool {
        false
    }
    fn source(&self) -> u64 {
        7
    }
}

struct Bench {
    fake: Arc<Fake>,
    scheduler: Scheduler,
}

fn groups(count: u32) -> Arc<[GroupInfo]> {
    (0..count)
        .map(|position| GroupInfo {
            id: position * 10,
            slots: 100,
        })
        .collect()
}

fn engine() -> Engine {
    Engine {
        tokens_per_block: T as u32,
        ..Engine::example(0, 1)
    }
}

fn config(role: &str) -> Config {
    Config::from_json(format!(r#"{{"model_key": "m", "role": "{role}"}}"#).as_bytes()).unwrap()
}

fn bench_with(role: &str, engine: &Engine, group_count: u32) -> Bench {
    bench_on(&config(role), engine, group_count)
}

fn bench_on(config: &Config, engine: &Engine, group_count: u32) -> Bench {
    let fake = Arc::new(Fake::default());
    *fake.groups.lock() = Some(groups(group_count));
    let terms = engine.terms(config).unwrap();
    let scheduler = Scheduler::new(terms, Arc::clone(&fake) as Arc<dyn LocalWorker>).unwrap();
    Bench { fake, scheduler }
}

fn bench() -> Bench {
    bench_with("both", &engine(), 1)
}

fn tokens(count: u64) -> Vec<i32> {
    (0..count as i32).collect()
}

fn request(id: u64, prompt: &[i32]) -> Request<'_> {
    Request {
        id,
        prompt: Tokens::I32(prompt),
        scope: Scope::default(),
        has_media: false,
        context_only: true,
    }
}

fn pages(group: u32, indices: &[i32]) -> GroupPages<'_> {
    GroupPages {
        group,
        first_block: 0,
        indices,
        replace: false,
    }
}

fn step(id: u64, new: &[i32], computed: u64, scheduled: u64) -> Step<'_> {
    Step {
        request_id: id,
        new_tokens: Tokens::I32(new),
        pages: &[],
        computed_position: computed,
        scheduled_tokens: scheduled,
    }
}

/// Ordinals of the blocks of one direction.
fn blocks(transfers: &crate::metadata::Transfers) -> Vec<u32> {
    let runs = transfers.runs().iter();
    let mut blocks: Vec<u32> = runs
        .flat_map(|run| run.first_block..run.first_block + run.blocks)
        .collect();
    blocks.sort_unstable();
    blocks
}

fn saves(metadata: &Metadata) -> Vec<u32> {
    blocks(metadata.saves())
}

fn loads(metadata: &Metadata) -> Vec<u32> {
    blocks(metadata.loads())
}

impl Bench {
    fn store(&self, blocks: usize) {
        *self.fake.stored.lock() = blocks;
    }

    fn offer(&mut self, id: u64, prompt: &[i32], local: u64) -> u64 {
        let offer = self.scheduler.match_request(&request(id, prompt), local);
        offer.unwrap().tokens
    }

    fn questions(&self) -> Vec<usize> {
        std::mem::take(&mut self.fake.asked.lock())
    }

    /// A request with a page for each block, honouring so many blocks of what is offered.
    fn admit(&mut self, id: u64, prompt: &[i32], honoured: u64) {
        self.offer(id, prompt, 0);
        let list: Vec<i32> = (0..prompt.len().div_ceil(T as usize) as i32).collect();
        self.scheduler
            .allocated(id, honoured * T, &[pages(0, &list)])
            .unwrap();
    }

    fn build(&mut self, steps: &[Step<'_>]) -> Arc<Metadata> {
        self.scheduler.build(steps).unwrap()
    }

    fn started(&self, pass: &Metadata) {
        self.fake.report.lock().started.push(pass.pass());
    }

    fn submitted(&self, pass: &Metadata) {
        self.fake.report.lock().submitted.push(pass.pass());
    }

    /// Everything that decides later answers, in words.
    fn snapshot(&self) -> String {
        let mut records: Vec<String> = self
            .scheduler
            .records
            .iter()
            .map(|(id, record)| format!("{id} {record:?}"))
            .collect();
        records.sort();
        let mut failed: Vec<String> = self
            .scheduler
            .failed_from
            .iter()
            .map(|(id, block)| format!("{id} {block:?}"))
            .collect();
        failed.sort();
        let mut pinned: Vec<_> = self.scheduler.pinned.iter().collect();
        pinned.sort();
        format!(
            "{records:?} {failed:?} {pinned:?} {:?} {}",
            self.scheduler.logs, self.scheduler.pass
        )
    }

    fn refuses<R: std::fmt::Debug>(
        &mut self,
        kind: Kind,
        call: impl FnOnce(&mut Scheduler) -> Result<R>,
    ) {
        let before = self.snapshot();
        let error = call(&mut self.scheduler).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(self.snapshot(), before, "{error}");
    }
}
