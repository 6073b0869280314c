//! The Rust side of the benchmark suite: what has no peer in Python, and the parts that a peer is
//! held against but that the C ABI does not reach.
//!
//! - `rows [--quick]`: times every pair of contenders and prints one JSON line per pair, with the
//!   nanoseconds per unit of every round. A round's figure of a contender is its best of a few short
//!   turns, taken in turns with the other, so that whatever else the machine does hits both.
//! - `turns`: waits for lines `check NAME` and `turn NAME` on the standard input and answers each
//!   with one JSON line, so that another process can take turns with it.
//!
//! Without either word it does nothing, which is what a test run over all targets wants.
#![allow(
    clippy::print_stdout,
    reason = "the figures go to the standard output, for benches/bench.py to read"
)]

mod abi;
mod clock;
mod keys;
mod passes;
mod pool;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, Write};
use std::time::Duration;

use clock::Stopwatch;

type Outcome<T> = Result<T, Box<dyn Error>>;
/// Does a turn's work and says how long the part of it took that counts.
type Turn = Box<dyn FnMut() -> Duration>;

/// Two contenders for one figure.
struct Pair {
    row: &'static str,
    workload: String,
    /// What the contender is.
    against: &'static str,
    /// Units of work in one turn of either.
    units: usize,
    ours: Turn,
    contender: Turn,
}

/// Our side of a figure whose contender is in another process.
struct Solo {
    name: String,
    units: usize,
    ours: Turn,
    /// Bytes that the peer must come to as well.
    check: Vec<u8>,
}

/// A turn that counts whole: `work` done `times` times.
fn timed(times: usize, mut work: impl FnMut() + 'static) -> Turn {
    Box::new(move || {
        let start = Stopwatch::start();
        for _ in 0..times {
            work();
        }
        start.elapsed()
    })
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let says = |word: &str| words.iter().any(|given| given == word);
    // `cargo bench` passes --bench and means the rows.
    if says("turns") {
        turns()
    } else if says("rows") || says("--bench") {
        rows(says("--quick"))
    } else {
        Ok(())
    }
}

fn rows(quick: bool) -> Outcome<()> {
    let rounds = if quick { 7 } else { 25 };
    // One group after the other: some of them take gigabytes.
    for make in [
        keys::pairs,
        abi::pairs,
        passes::pairs,
        pool::lookups,
        pool::transfers,
        pool::seals,
    ] {
        make(&mut |mut pair| {
            measure(&mut pair, rounds);
            Ok(())
        })?;
    }
    Ok(())
}

fn measure(pair: &mut Pair, rounds: usize) {
    const TURNS: usize = 4;
    let per_unit = |time: Duration| time.as_secs_f64() * 1e9 / pair.units as f64;
    // Once without counting: memory is touched, lists get their size.
    (pair.ours)();
    (pair.contender)();
    let (mut ours, mut contender) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut best = [Duration::MAX; 2];
        for turn in 0..TURNS {
            // Each leads as often as the other: the first finds the colder cache.
            for side in [turn % 2, 1 - turn % 2] {
                let time = match side {
                    0 => (pair.ours)(),
                    _ => (pair.contender)(),
                };
                best[side] = best[side].min(time);
            }
        }
        ours.push(per_unit(best[0]));
        contender.push(per_unit(best[1]));
    }
    println!(
        "{{\"row\":\"{}\",\"workload\":\"{}\",\"against\":\"{}\",\"ours\":{ours:.3?},\"contender\":{contender:.3?}}}",
        pair.row, pair.workload, pair.against
    );
}

fn turns() -> Outcome<()> {
    let mut solos = BTreeMap::new();
    for solo in keys::solos()? {
        solos.insert(solo.name.clone(), solo);
    }
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (verb, name) = line.split_once(' ').ok_or("a line is VERB NAME")?;
        let solo = solos.get_mut(name).ok_or("no such name")?;
        match verb {
            "check" => {
                let hex: String = solo
                    .check
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                println!("\"{hex}\"");
            }
            _ => {
                let time = (solo.ours)();
                println!("{:.3}", time.as_secs_f64() * 1e9 / solo.units as f64);
            }
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}
