//! Gather and scatter on a GPU against the rate of its link, and the ways of a batch against each other.
//! `scripts/gpu-check` builds this and carries it to a machine with a GPU.
//!
//! - `device`: says which GPU there is; status 3 if there is none.
//! - `measure [--quick]`: prints tables.
//!
//! Without a word it does nothing, which is what a test run over all targets wants.
//!
//! A figure is the median over rounds of the ratio of two turns: one copy of the same bytes between the same
//! memories by one call, which is the link's rate, and ours. Time is that of the wall: the work is the device's.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the figures go to the standard output, errors to the other one"
)]
#![allow(unsafe_code, reason = "copies between addresses that it allocated")]

mod driver;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use driver::Gpu;
use kvbridge::device::cuda::{CudaDevice, LEAST_PIECES, MOST_BYTES, Way};
use kvbridge::device::{Device, Direction, StagingMemory, Transfer};

type Outcome<T> = Result<T, Box<dyn Error>>;

const NO_GPU: u8 = 3;

/// Of the link's rate; below that a row is marked.
const TARGET: f64 = 0.9;

const PAGES: [u64; 4] = [64 << 10, 256 << 10, 1 << 20, 4 << 20];
const REGIONS: [u64; 4] = [1, 4, 16, 64];
const WAYS: [(Way, &str); 4] = [
    (Way::Kernel, "kernel"),
    (Way::Batch, "batch"),
    (Way::Rows, "rows"),
    (Way::Single, "single"),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["device"] => device(),
        ["measure"] => measure(false),
        ["measure", "--quick"] => measure(true),
        _ => return ExitCode::SUCCESS,
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn device() -> Outcome<ExitCode> {
    match Gpu::open()? {
        Ok(gpu) => {
            println!("{}", gpu.name);
            Ok(ExitCode::SUCCESS)
        }
        Err(why) => {
            println!("{why}");
            Ok(ExitCode::from(NO_GPU))
        }
    }
}

/// Memories of one size on both sides, and how often to measure.
struct Bench {
    gpu: Gpu,
    device: CudaDevice,
    cache: u64,
    staging: StagingMemory,
    bytes: u64,
    rounds: usize,
}

/// One workload's figures.
struct Figure {
    /// Bytes per second.
    rate: f64,
    of_link: f64,
}

impl Bench {
    fn copy(&self, direction: Direction, transfers: &[Transfer]) -> Outcome<Duration> {
        let begun = Instant::now();
        // SAFETY: ranges of `cache` and `staging`, which nobody else has, each byte once.
        unsafe { self.device.copy(None, direction, transfers) }?;
        Ok(begun.elapsed())
    }

    /// As many bytes by one call.
    fn link(&self, direction: Direction, bytes: u64) -> Outcome<Duration> {
        let staging = self.staging.range().start;
        let (to, from) = match direction {
            Direction::Gather => (staging, self.cache),
            Direction::Scatter => (self.cache, staging),
        };
        let begun = Instant::now();
        // SAFETY: both have at least so many bytes, and nobody else uses them.
        unsafe { self.gpu.copy(to, from, bytes as usize) }?;
        Ok(begun.elapsed())
    }

    fn figure(&self, direction: Direction, transfers: &[Transfer]) -> Outcome<Figure> {
        let bytes: u64 = transfers.iter().map(|transfer| transfer.size).sum();
        let mut ratios = Vec::new();
        let mut times = Vec::new();
        self.copy(direction, transfers)?;
        for _ in 0..self.rounds {
            let link = self.link(direction, bytes)?;
            let ours = self.copy(direction, transfers)?;
            ratios.push(link.as_secs_f64() / ours.as_secs_f64());
            times.push(ours.as_secs_f64());
        }
        Ok(Figure {
            rate: bytes as f64 / median(times),
            of_link: median(ratios),
        })
    }

    /// Pages of `regions` pieces that lie apart in the cache and together in staging, as slots do.
    fn pages(&self, page: u64, regions: u64) -> Vec<Transfer> {
        let (piece, count) = (page / regions, self.bytes / page);
        let place = |page_index: u64, region: u64| Transfer {
            cache: self.cache + (region * count + page_index) * piece,
            staging: self.staging.range().start + (page_index * regions + region) * piece,
            size: piece,
        };
        (0..count)
            // An order in which neighbours are none, as an engine's pages come.
            .map(|at| if count % 2 == 0 { at ^ 1 } else { at })
            .flat_map(|page_index| (0..regions).map(move |region| place(page_index, region)))
            .collect()
    }

    /// The figures of all ways, and "–" for those that are not there.
    fn ways(
        &mut self,
        direction: Direction,
        transfers: &[Transfer],
    ) -> Outcome<[Option<Figure>; 4]> {
        let mut figures = [None, None, None, None];
        for (figure, (way, _)) in figures.iter_mut().zip(WAYS) {
            self.device.take_only(Some(way));
            if self.device.way_of(transfers) == way {
                *figure = Some(self.figure(direction, transfers)?);
            }
        }
        self.device.take_only(None);
        Ok(figures)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn measure(quick: bool) -> Outcome<ExitCode> {
    let gpu = match Gpu::open()? {
        Ok(gpu) => gpu,
        Err(why) => {
            println!("{why}");
            return Ok(ExitCode::from(NO_GPU));
        }
    };
    let bytes: u64 = if quick { 4 << 20 } else { 64 << 20 };
    let mut device = CudaDevice::adopt(Some(0))?;
    if !device.load_kernel() {
        println!("the kernel cannot be loaded here");
    }
    let mut staging = device.stage(bytes)?;
    staging.bytes_mut().fill(1);
    let mut bench = Bench {
        cache: gpu.allocate(bytes as usize)?,
        staging,
        gpu,
        device,
        bytes,
        rounds: if quick { 3 } else { 15 },
    };
    println!("{}", bench.gpu.name);
    println!(
        "batches of {}, medians of {} rounds",
        size(bytes),
        bench.rounds
    );
    for direction in [Direction::Gather, Direction::Scatter] {
        let link = bytes as f64 / bench.link(direction, bytes)?.as_secs_f64();
        println!("link, {direction:?}: {:.1} GB/s by one copy", link / 1e9);
    }
    let crossings = pages(&mut bench)?;
    let fewest = counts(&mut bench)?;
    println!();
    println!("the kernel is at least as fast as every other way");
    for (direction, largest) in crossings {
        match largest {
            Some(bytes) => println!("  {direction:?}: for pieces of up to {}", size(bytes)),
            None => println!("  {direction:?}: for no size measured"),
        }
    }
    match fewest {
        Some(count) => println!("  from {count} pieces of 4 KiB on"),
        None => println!("  for no number of pieces measured"),
    }
    println!(
        "in the code: pieces of up to {}, from {LEAST_PIECES} on (src/device/cuda/kernel.rs)",
        size(MOST_BYTES)
    );
    Ok(ExitCode::SUCCESS)
}

/// The table of pages and regions; for each direction up to which piece the kernel is the fastest.
fn pages(bench: &mut Bench) -> Outcome<Vec<(Direction, Option<u64>)>> {
    println!();
    println!(
        "{:<12} {:>8} {:>8} {:>8}  {:<7} {:>7} {:>8}  {:>8} {:>8} {:>8} {:>8}",
        "",
        "page",
        "regions",
        "piece",
        "way",
        "GB/s",
        "of link",
        "kernel",
        "batch",
        "rows",
        "single"
    );
    let mut crossings = Vec::new();
    for direction in [Direction::Gather, Direction::Scatter] {
        // Piece, and whether the kernel won in all that had it.
        let mut wins: Vec<(u64, bool)> = Vec::new();
        for page in PAGES {
            for regions in REGIONS {
                let transfers = bench.pages(page, regions);
                let ours = bench.figure(direction, &transfers)?;
                let way = bench.device.way_of(&transfers);
                let name = WAYS
                    .iter()
                    .find(|(known, _)| *known == way)
                    .map_or("", |it| it.1);
                let figures = bench.ways(direction, &transfers)?;
                let mark = if ours.of_link < TARGET { "short" } else { "" };
                let row = format!("gpu_{direction:?}").to_lowercase();
                print!(
                    "{row:<12} {:>8} {regions:>8} {:>8}  {name:<7} {:>7.1} {:>8.2}",
                    size(page),
                    size(page / regions),
                    ours.rate / 1e9,
                    ours.of_link
                );
                for figure in &figures {
                    match figure {
                        Some(figure) => print!(" {:>8.2}", figure.of_link),
                        None => print!(" {:>8}", "–"),
                    }
                }
                println!("  {mark}");
                wins.push((page / regions, kernel_wins(&figures)));
            }
        }
        wins.sort_unstable();
        let losses = wins.iter().find(|(_, won)| !won).map(|(piece, _)| *piece);
        let best = wins
            .iter()
            .map(|(piece, _)| *piece)
            .filter(|piece| losses.is_none_or(|loss| *piece < loss));
        crossings.push((direction, best.max()));
    }
    Ok(crossings)
}

/// The table of small batches; from how many pieces on the kernel is the fastest.
fn counts(bench: &mut Bench) -> Outcome<Option<usize>> {
    println!();
    println!(
        "{:<12} {:>8} {:>8}  microseconds per batch",
        "pieces", "", ""
    );
    let all = bench.pages(4 << 20, 1024);
    let mut fewest = None;
    for count in [1, 2, 4, 8, 16, 32, 64, 128] {
        // Every other one, so that no two lie side by side.
        let transfers: Vec<_> = all.iter().step_by(2).take(count).copied().collect();
        let figures = bench.ways(Direction::Gather, &transfers)?;
        print!("{count:<12} {:>8} {:>8}", "4 KiB", "");
        for (figure, (_, name)) in figures.iter().zip(WAYS) {
            if let Some(figure) = figure {
                print!("  {name} {:.1}", count as f64 * 4096.0 / figure.rate * 1e6);
            }
        }
        println!();
        fewest = match kernel_wins(&figures) {
            true => fewest.or(Some(count)),
            false => None,
        };
    }
    Ok(fewest)
}

/// Whether the kernel is there and no other way is faster.
fn kernel_wins(figures: &[Option<Figure>; 4]) -> bool {
    let [Some(kernel), others @ ..] = figures else {
        return false;
    };
    let mut others = others.iter().flatten();
    others.all(|other| other.of_link <= kernel.of_link)
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}
