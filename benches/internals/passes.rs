//! What a pass costs the engine's thread: polling beside many parked requests, and starting loads that run elsewhere.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use kvbridge::config::Config;
use kvbridge::device::{CacheMemory, HostDevice, HostMemory, Stream};
use kvbridge::engine::{DeviceChoice, Drafter, Engine, Serving};
use kvbridge::keys::{Scope, Tokens};
use kvbridge::lane::{Mode, Stepper};
use kvbridge::layout::{Group, Layout, Region};
use kvbridge::scheduler::{FinishReason, GroupPages, Request, Scheduler, Step};
use kvbridge::store::embedded::Pool;
use kvbridge::sync::SystemClock;
use kvbridge::worker::{Fence, Worker};

use super::clock::Stopwatch;
use super::{Outcome, Pair, timed};

const BLOCK: usize = 16;

/// A worker and its scheduler on host memory.
struct Server {
    worker: Worker,
    scheduler: Scheduler,
    /// Behind the worker, so that it is freed after it.
    _memory: HostMemory,
}

/// A pool, and a prompt of so many blocks that it holds.
struct Stock {
    pool: Arc<Pool>,
    prompt: Vec<i32>,
    page: u64,
}

impl Server {
    fn new(stock: &Stock, slots: u64, async_load: bool, mode: &Mode) -> Outcome<Self> {
        let text = format!(
            r#"{{"model_key": "bench", "async_load": {async_load}, "async_load_workers": 1}}"#
        );
        let config = Config::from_json(text.as_bytes())?;
        let engine = Engine {
            tokens_per_block: BLOCK as u32,
            tp_rank: 0,
            tp_size: 1,
            pp_size: 1,
            cp_size: 1,
            ranks_on_node: 1,
            attention_dp: false,
            serving: Serving::Aggregated,
            drafter: Drafter::None,
            max_draft_len: None,
            draft_shares_cache: true,
            supplies_fences: false,
            device: DeviceChoice::Host,
        };
        let mut worker = Worker::new(&config, &engine, stock.pool.handle()?, mode)?;
        let memory = HostMemory::new(stock.page * slots)?;
        let mut layout = Layout::new(0);
        layout.add_group(Group {
            id: 0,
            window: 0,
            number_format: "float16".to_owned(),
            layout_tag: String::new(),
            layer_ids: vec![0],
        })?;
        let region = Region {
            base: memory.range().start,
            size: stock.page,
            stride: stock.page,
            slots,
            reservation_base: 0,
        };
        layout.add_region(0, region)?;
        #[allow(
            unsafe_code,
            reason = "the memory is kept beside the worker, and nothing else touches it"
        )]
        // SAFETY: as the reason says.
        let cache = unsafe { CacheMemory::new(layout, Arc::new(HostDevice)) }?;
        worker.register_layout(cache)?;
        let handle = worker.handle();
        let scheduler = Scheduler::new(worker.handle().terms().clone(), handle.link()?)?;
        Ok(Self {
            worker,
            scheduler,
            _memory: memory,
        })
    }

    /// Matches and allocates the whole prompt from page `first` on, and honours what is offered.
    fn admit(&mut self, id: u64, prompt: &[i32], first: usize) -> Outcome<u64> {
        let request = Request {
            id,
            prompt: Tokens::I32(prompt),
            scope: Scope::default(),
            has_media: false,
            context_only: false,
        };
        let offer = self.scheduler.match_request(&request, 0)?;
        let pages: Vec<i32> = (first..first + prompt.len().div_ceil(BLOCK))
            .map(|page| page as i32)
            .collect();
        let lists = [GroupPages {
            group: 0,
            first_block: 0,
            indices: &pages,
            replace: false,
        }];
        self.scheduler.allocated(id, offer.tokens, &lists)?;
        Ok(offer.tokens)
    }

    /// A pass with this step, or none; the time in `start_load`.
    fn pass(&mut self, steps: &[Step<'_>]) -> Outcome<Duration> {
        let metadata = self.scheduler.build(steps)?;
        self.worker.bind(metadata, Fence::None);
        let start = Stopwatch::start();
        self.worker.start_load(Stream::default())?;
        let spent = start.elapsed();
        self.worker.wait_for_save(Stream::default())?;
        Ok(spent)
    }
}

fn step(id: u64, prompt: &[i32], restored: u64, is_async: bool) -> Step<'_> {
    Step {
        request_id: id,
        new_tokens: Tokens::I32(prompt),
        pages: &[],
        computed_position: if is_async { restored } else { 0 },
        scheduled_tokens: prompt.len() as u64 - restored,
    }
}

fn stock(blocks: usize, page: u64) -> Outcome<Stock> {
    let pool = Pool::new(
        256 << 20,
        0.05,
        Duration::ZERO,
        Arc::new(SystemClock::new()),
    )?;
    let stock = Stock {
        pool,
        prompt: (0..(blocks * BLOCK + 1) as i32).collect(),
        page,
    };
    let mut writer = Server::new(&stock, blocks as u64 + 1, false, &Mode::Threads)?;
    writer.admit(1, &stock.prompt, 0)?;
    writer.pass(&[step(1, &stock.prompt, 0, false)])?;
    writer.worker.shutdown(Duration::from_secs(60))?;
    Ok(stock)
}

/// Empty polls beside this many requests that wait for their loads, which never run.
fn polls(stock: &Stock, parked: usize) -> Outcome<super::Turn> {
    let mode = Mode::Stepped(Stepper::new());
    let each = stock.prompt.len().div_ceil(BLOCK);
    let mut server = Server::new(stock, (parked * each) as u64, true, &mode)?;
    for number in 0..parked {
        server.admit(number as u64 + 1, &stock.prompt, number * each)?;
    }
    server.pass(&[])?;
    let ids: Vec<u64> = (1..=parked as u64).collect();
    server.worker.get_finished(&[], &ids)?;
    Ok(timed(1000, move || {
        let reported = server.worker.get_finished(&[], &[]);
        assert!(black_box(reported).is_ok_and(|reported| reported.loaded.is_empty()));
    }))
}

/// Loads the stock's prompt once per turn; the time that the engine's thread spends in `start_load`.
fn starts(stock: Stock, is_async: bool) -> Outcome<super::Turn> {
    let blocks = stock.prompt.len().div_ceil(BLOCK);
    let mut server = Server::new(&stock, blocks as u64, is_async, &Mode::Threads)?;
    let mut id = 0;
    let mut once = move || -> Outcome<Duration> {
        id += 1;
        let restored = server.admit(id, &stock.prompt, 0)?;
        assert_eq!(restored as usize, stock.prompt.len() - 1);
        let mut spent = Duration::ZERO;
        if is_async {
            spent += server.pass(&[])?;
            let mut announced = vec![id];
            while server
                .worker
                .get_finished(&[], &announced)?
                .loaded
                .is_empty()
            {
                announced.clear();
                std::thread::yield_now();
            }
        }
        spent += server.pass(&[step(id, &stock.prompt, restored, is_async)])?;
        server.scheduler.finished(id, FinishReason::Ended);
        server.worker.get_finished(&[id], &[])?;
        Ok(spent)
    };
    Ok(Box::new(move || once().unwrap_or(Duration::MAX)))
}

pub fn pairs(each: &mut dyn FnMut(Pair) -> Outcome<()>) -> Outcome<()> {
    let small = stock(1, 64)?;
    each(Pair {
        row: "get_finished",
        workload: "10,000 parked requests".to_owned(),
        against: "÷ 10 parked requests",
        units: 1000,
        ours: polls(&small, 10_000)?,
        contender: polls(&small, 10)?,
    })?;
    each(Pair {
        row: "async_overlap",
        workload: "64 pages of 64 KiB, in start_load".to_owned(),
        against: "÷ synchronous",
        units: 1,
        ours: starts(stock(64, 64 << 10)?, true)?,
        contender: starts(stock(64, 64 << 10)?, false)?,
    })
}
