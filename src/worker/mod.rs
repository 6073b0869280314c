//! The half that moves pages: one worker per rank, with the connection to the pool, the registered
//! cache memory, one thread for saves and, with `async_load`, threads for loads. Synchronous loads
//! run on the caller's thread.
//!
//! - `plan.rs`: which pages a block has and how they are named
//! - `shared.rs`: what several threads see; lookups
//! - `mover.rs`: cache memory and staging slots; `sets.rs`: who has which slots, also late calls of the pool;
//!   `direct.rs`: pages of the cache that the pool uses itself, without slots
//! - `batch.rs`: one batch of a load; `load.rs`: synchronous loads; `park.rs`: asynchronous ones
//! - `save.rs`: the other direction
//! - `parked.rs`: the loads of requests that wait for them; `fence.rs`: what such a load waits for
//! - `finished.rs`: which requests' pages are the engine's again; `ended.rs`: which lives ended lately
//! - `explain.rs`: why a prompt gets the offer that it gets; `others.rs`: pages of other servers
//! - `pass.rs`: bind, get_finished: what a pass tells the worker
//! - `shutdown.rs`: the end

mod batch;
mod direct;
mod ended;
mod explain;
mod fence;
mod finished;
mod load;
#[cfg(test)]
#[cfg(loom)]
mod loom;
mod mover;
mod others;
mod park;
mod parked;
mod pass;
mod plan;
mod save;
mod sets;
mod shared;
mod shutdown;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod trouble;

pub use explain::{Explanation, Missing, Question, Why};
pub use fence::{Fence, Wait};
pub use others::Other;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::config::{Config, Role};
use crate::device::CacheMemory;
use crate::engine::{Declarations, DeviceChoice, Engine, Terms};
use crate::error::{Error, Result, bail};
use crate::keys::{Naming, Template};
use crate::lane::{Lane, Mode};
use crate::link::{LocalWorker, Report};
use crate::metadata::{Life, Metadata, Run};
use crate::plant::{self, Bug};
use crate::stats::{self, Gauges, PhaseTimes, PoolCounts, Stats};
use crate::store::Store;
use crate::store::connection::{check_capabilities, check_direct};
use crate::store::guarded::{self, Guarded};
use crate::sync::{Clock, SystemClock};
use batch::{LoadBatch, Tally};
use ended::EndedLives;
use mover::{Mover, Staging};
use plan::PagePlan;
use save::SaveScratch;
use shared::{PutWish, Shared};

/// Threads that call the pool beside those of loads: a lookup, the save thread, and one to spare.
const OTHER_CALLERS: usize = 3;

/// The metadata of the pass that is being worked on.
struct Bound {
    metadata: Arc<Metadata>,
    loads_started: bool,
    saves_taken: bool,
    /// Lives whose transfers must not begin any more.
    dropped: Vec<Life>,
    /// Lives whose saves must not: their request ended, as far as this rank can tell.
    unsaved: Vec<Life>,
}

impl Bound {
    fn is_dropped(&self, run: &Run) -> bool {
        self.dropped.contains(&run.life())
    }

    fn is_saved(&self, run: &Run) -> bool {
        !self.is_dropped(run) && !self.unsaved.contains(&run.life())
    }

    /// Takes out what was not begun; doing it again changes nothing.
    fn drop_lives(&mut self, lives: impl Iterator<Item = Life>) {
        for life in lives {
            if !self.dropped.contains(&life) {
                self.dropped.push(life);
            }
        }
    }
}

/// The worker half. See the module. Exclusive, except for what [`Worker::handle`] gives out.
pub struct Worker {
    shared: Arc<Shared>,
    naming: Naming,
    number_format: String,
    staging_bytes: u64,
    batch: u32,
    load_threads: u32,
    load_timeout: Duration,
    save_timeout: Duration,
    mode: Mode,
    /// The save thread, from the first layout on, for roles that write.
    saves: Option<Lane>,
    /// The load threads, from the first layout on, with asynchronous loads.
    loads: Option<Lane>,
    save_scratch: Arc<Mutex<SaveScratch>>,
    mover: Option<Arc<Mover>>,
    /// What was used by a layout whose memory the pool has not given back.
    leaving: Option<Arc<Mover>>,
    /// The pages of the first registration; a later one must have the same.
    first_plan: Option<Arc<PagePlan>>,
    bound: Option<Bound>,
    /// What `bind` could not say, for the next `start_load`.
    deferred: Option<Error>,
    load_scratch: (LoadBatch, Tally),
    failed_loads: Vec<u64>,
    failed_view: Vec<u64>,
    failed_async: Vec<u64>,
    failed_async_view: Vec<u64>,
    saved_view: Vec<u64>,
    loaded_view: Vec<u64>,
    /// Source and pass of the metadata whose asynchronous loads were queued last.
    parked_from: (u64, u64),
    /// The newest life of any request that was bound.
    newest_bound: u64,
    ended: EndedLives,
}

/// What may be used beside the exclusive calls of a worker, from any thread.
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

impl Worker {
    /// A worker on the pool behind `store`, which it closes in its shutdown: every worker, and everybody
    /// else who uses the pool, has a handle of its own. `EngineRefused`, `Unsupported`, `PoolRefused` and
    /// `ConfigInvalid` say what does not fit together. Starts threads only for a pool whose calls can be late; `NoThread`
    /// if there are none to be had.
    pub fn new(
        config: &Config,
        engine: &Engine,
        store: Arc<dyn Store>,
        mode: &Mode,
    ) -> Result<Self> {
        Self::with_clock(config, engine, store, mode, Arc::new(SystemClock::new()))
    }

    /// [`Worker::new`] with a clock that says when statistics are due.
    pub fn with_clock(
        config: &Config,
        engine: &Engine,
        store: Arc<dyn Store>,
        mode: &Mode,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let terms = engine.terms(config)?;
        let naming = Naming {
            scheme: terms.scheme,
            namespace: config.namespace().to_owned(),
            model_key: config.model_key().to_owned(),
            weights_digest: config.weights_digest().to_owned(),
            page_format: terms.page_format,
            tokens_per_block: terms.tokens_per_block,
        };
        let mut put_wish = PutWish {
            soft_pin_ttl: config.soft_pin_ttl_ms().map(Duration::from_millis),
            group: None,
        };
        if terms.role != Role::Capacity {
            // Refuses names that make keys too long, before any layout is there.
            let group = Template::group(&naming, terms.world)?;
            put_wish.group = Some(group).filter(|_| config.group_blocks());
        }
        check_capabilities(config, store.capabilities())?;
        check_direct(&terms, store.capabilities())?;
        let loads = match terms.async_load {
            true => config.async_load_workers() as usize,
            false => 1,
        };
        let guard = guarded::Settings::new(config, guarded::MOST_HELD, loads + OTHER_CALLERS);
        let store = Guarded::start(store, guard, Arc::clone(&clock), mode)?;
        Ok(Self {
            shared: Arc::new(Shared::new(
                terms,
                store,
                put_wish,
                config.lookup_chunk_blocks() as usize,
                config.stats_interval(),
                clock,
            )),
            naming,
            number_format: config.number_format().unwrap_or_default().to_owned(),
            staging_bytes: config.staging_buffer_bytes(),
            batch: config.transfer_batch_size(),
            load_threads: config.async_load_workers(),
            load_timeout: config.load_timeout(),
            save_timeout: config.save_timeout(),
            mode: mode.clone(),
            saves: None,
            loads: None,
            save_scratch: Arc::default(),
            mover: None,
            leaving: None,
            first_plan: None,
            bound: None,
            deferred: None,
            load_scratch: Default::default(),
            failed_loads: Vec::new(),
            failed_view: Vec::new(),
            failed_async: Vec::new(),
            failed_async_view: Vec::new(),
            saved_view: Vec::new(),
            loaded_view: Vec::new(),
            parked_from: (0, 0),
            newest_bound: 0,
            ended: EndedLives::default(),
        })
    }

    /// Where the engine said that its cache lies.
    pub fn device(&self) -> DeviceChoice {
        self.shared.terms.device
    }

    /// `DeviceLost` once the device of the registered layout works no more.
    fn device_usable(&self) -> Result<()> {
        let mover = self.mover.as_ref();
        mover.map_or(Ok(()), |mover| mover.memory.device().usable())
    }

    /// What may be used beside this worker's exclusive calls.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.shared))
    }

    /// Takes the cache memory of a layout into use: pins staging slots and registers them with the pool.
    ///
    /// Errors: `BadState` when a layout is registered, for the capacity role and after shutdown; `Contradiction` when an
    /// earlier registration had other pages; `InvalidArgument`, `ConfigInvalid` for what the layout
    /// holds; `NoMemory`; `NoThread` when the save thread cannot be started. Nothing stays registered then.
    pub fn register_layout(&mut self, memory: CacheMemory) -> Result<()> {
        if self.shared.is_closed() {
            bail!(Closed, "register_layout: the worker was shut down");
        }
        if self.shared.terms.role == Role::Capacity {
            bail!(
                BadState,
                "register_layout: role = capacity transfers nothing and takes no layout"
            );
        }
        if self.mover.is_some() {
            bail!(
                BadState,
                "register_layout: a layout is registered already; unregister it first"
            );
        }
        if self.leaving.is_some() {
            bail!(
                BadState,
                "register_layout: the pool has not given the memory of the layout before back; unregister it again first"
            );
        }
        memory.layout().validate()?;
        let plan = PagePlan::new(
            &self.shared.terms,
            &self.naming,
            &self.number_format,
            memory.layout(),
        )?;
        let plan = Arc::new(plan);
        if self
            .first_plan
            .as_ref()
            .is_some_and(|first| !first.same_pages(&plan))
        {
            bail!(
                Contradiction,
                "register_layout: the layout registered before had other groups, regions or formats; only addresses and page counts may change"
            );
        }
        let terms = &self.shared.terms;
        if self.saves.is_none() && terms.role.writes() {
            let name = format!("kvb-r{}-save", terms.global_rank);
            self.saves = Some(Lane::start(&name, 1, &self.mode)?);
        }
        if self.loads.is_none() && terms.async_load {
            let name = format!("kvb-r{}-load", terms.global_rank);
            let threads = self.load_threads as usize;
            self.loads = Some(Lane::start(&name, threads, &self.mode)?);
        }
        let staging = Staging {
            budget: self.staging_bytes,
            batch: self.batch,
            loads: match (terms.role.reads(), terms.async_load) {
                (false, _) => 0,
                (true, false) => 1,
                (true, true) => self.load_threads,
            },
            saves: u32::from(terms.role.writes()),
            ranks_on_node: terms.ranks_on_node,
        };
        let (named, store) = (Arc::clone(&plan), &self.shared.store);
        let mover = match terms.direct {
            false => Mover::staged(named, memory, store, staging)?,
            true => Mover::direct(named, memory, store, self.batch)?,
        };
        tracing::info!(
            "rank {}: a layout of {} layer groups is registered, {} pages per call of the pool",
            self.shared.terms.global_rank,
            plan.groups.len(),
            mover.batch
        );
        self.mover = Some(Arc::new(mover));
        self.first_plan = Some(Arc::clone(&plan));
        *self.shared.plan.write() = Some(plan);
        Ok(())
    }

    /// Gives the cache memory back: on return nothing of the library touches it. Saves of a bound
    /// metadata that were not queued are dropped, queued ones are waited for; asynchronous loads that
    /// are not done fail, or under TP, where the engine gave them up on every rank, are not reported any more.
    ///
    /// Blocks: until what runs of the loads has ended, at most `load_timeout_ms`, and the queued saves, at most
    /// `save_timeout_ms`; where the pool uses the cache itself, so long again for its late calls. `Busy` then, and the layout
    /// stays registered; also when the pool does not give parts of the cache back, which stay registered with it: calling
    /// again tries them again. `BadState` without a layout.
    pub fn unregister_layout(&mut self) -> Result<()> {
        let patience = self.save_timeout.max(guarded::LEAST_PATIENCE);
        let for_loans = self.load_timeout.max(self.save_timeout);
        if let Some(mover) = &self.leaving {
            no_loans(mover, for_loans)?;
            mover.close(patience)?;
            self.leaving = None;
            return Ok(());
        }
        let Some(mover) = self.mover.clone() else {
            bail!(BadState, "unregister_layout: no layout is registered");
        };
        let shared = Arc::clone(&self.shared);
        shared.give_up_loads();
        if plant::is(Bug::SleepForgotten) {
            *self.shared.plan.write() = None;
            self.mover = None;
            return Ok(());
        }
        // An item counts as ended before it is gone, and with it what it holds of the device.
        if let Some(loads) = &self.loads
            && !loads.wait_until(Some(self.load_timeout), || {
                shared.parked.lock().running() == 0 && loads.unfinished() == 0
            })
        {
            bail!(
                Busy,
                "unregister_layout: asynchronous loads are still running after {} ms",
                self.load_timeout.as_millis()
            );
        }
        if let Some(saves) = &self.saves
            && !saves.wait_until(Some(self.save_timeout), || {
                shared.finished.lock().in_flight() == 0 && saves.unfinished() == 0
            })
        {
            bail!(
                Busy,
                "unregister_layout: saves are still running after {} ms",
                self.save_timeout.as_millis()
            );
        }
        no_loans(&mover, for_loans)?;
        *self.shared.plan.write() = None;
        if let Some(bound) = &mut self.bound {
            bound.saves_taken = true;
        }
        let abandoned = self.abandon_loads();
        self.deferred = self.deferred.take().or(abandoned);
        self.mover = None;
        mover
            .close(patience)
            .inspect_err(|_| self.leaving = Some(Arc::clone(&mover)))
    }
}

/// Waits until the pool uses no page of the cache itself; `Busy` if it may after `patience`.
fn no_loans(mover: &Mover, patience: Duration) -> Result<()> {
    match mover.wait_for_loans(patience) {
        0 => Ok(()),
        loans => bail!(
            Busy,
            "unregister_layout: {loans} calls of the pool may still use pages of the cache"
        ),
    }
}

impl Handle {
    /// How many of the leading blocks are stored in every layer group and shard; `hashes` holds block
    /// hashes side by side. Errors: `InvalidArgument` for bytes that are no whole hashes, `BadState`
    /// without a layout, `Closed`. What the pool does not answer counts as missing.
    pub fn lookup(&self, hashes: &[u8]) -> Result<usize> {
        let bytes = self.0.terms.hash_bytes();
        if !hashes.len().is_multiple_of(bytes) {
            bail!(
                InvalidArgument,
                "lookup: {} bytes are not whole block hashes of {bytes} bytes",
                hashes.len()
            );
        }
        if self.0.is_closed() {
            bail!(Closed, "lookup: the worker was shut down");
        }
        if self.0.plan.read().is_none() {
            bail!(BadState, "lookup: no layout is registered");
        }
        Ok(self.0.lookup(hashes))
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        self.0.stats.snapshot()
    }

    /// What is under way.
    pub fn gauges(&self) -> Gauges {
        self.0.gauges()
    }

    /// Where loads spent their time; zero unless `stats_interval` is set.
    pub fn phase_times(&self) -> PhaseTimes {
        self.0.timers.snapshot()
    }

    /// Deadlines, breaker and late calls of this worker's connection.
    pub fn pool_counts(&self) -> PoolCounts {
        self.0.store.counts()
    }

    /// All numbers as Prometheus text.
    pub fn prometheus(&self) -> String {
        let times = self.phase_times();
        stats::prometheus(
            &self.stats(),
            &self.gauges(),
            &self.pool_counts(),
            &times,
            self.0.terms.global_rank,
        )
    }

    /// What the engine has to arrange.
    pub fn declarations(&self) -> Declarations {
        self.0.terms.declarations
    }

    /// The terms that a scheduler beside this worker must have as well.
    pub fn terms(&self) -> &Terms {
        &self.0.terms
    }

    /// Connects a scheduler; it takes the reports from now on. `BadState` while another one does.
    pub fn link(&self) -> Result<Arc<dyn LocalWorker>> {
        if !self.0.attach_scheduler() {
            bail!(BadState, "this worker has a scheduler already");
        }
        Ok(Arc::new(SchedulerLink(Arc::clone(&self.0))))
    }
}

/// A scheduler's connection; dropping it lets the next scheduler have the worker.
struct SchedulerLink(Arc<Shared>);

impl LocalWorker for SchedulerLink {
    fn lookup(&self, hashes: &[u8]) -> usize {
        self.0.lookup(hashes)
    }

    fn groups(&self) -> Option<Arc<[crate::link::GroupInfo]>> {
        self.0.groups()
    }

    fn take_report(&self, into: &mut Report) {
        self.0.take_report(into);
    }

    fn life_ended(&self, request_id: u64, generation: u64) {
        self.0.life_ended(request_id, generation);
    }

    fn life_released(&self, request_id: u64, generation: u64) {
        self.0.life_released((request_id, generation));
    }

    fn may_use_pages(&self, request_id: u64, generation: u64) -> bool {
        self.0.terms.direct && self.0.finished.lock().is_held((request_id, generation))
    }

    fn inherits_transfers(&self, request_id: u64) -> bool {
        self.0.inherits_transfers(request_id)
    }

    fn source(&self) -> u64 {
        self.0.source()
    }
}

impl Drop for SchedulerLink {
    fn drop(&mut self) {
        self.0.detach_scheduler();
    }
}
