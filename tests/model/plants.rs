//! Bugs that are planted in the library, one at a time, to see that each is found.

use std::process::ExitCode;

#[cfg(not(kvb_plant))]
pub fn run(_wanted: &crate::Wanted, _name: &str) -> ExitCode {
    println!("this build has no bugs to plant: scripts/model makes one with --cfg kvb_plant");
    ExitCode::from(2)
}

#[cfg(kvb_plant)]
pub fn run(wanted: &crate::Wanted, name: &str) -> ExitCode {
    use crate::history::Bench;
    use kvbridge::plant::Bug;

    if name == "list" {
        for bug in Bug::ALL {
            println!("{:<22} {}", bug.name(), bug.what());
        }
        return ExitCode::SUCCESS;
    }
    let chosen = |bug: &&Bug| name == "all" || name == bug.name();
    let bugs: Vec<Bug> = Bug::ALL.iter().filter(chosen).copied().collect();
    if bugs.is_empty() {
        println!("{name}: no such bug; --plant list names them");
        return ExitCode::from(2);
    }
    let mut missed = 0;
    for &bug in &bugs {
        kvbridge::plant::plant(Some(bug));
        let mut bench = Bench::new();
        let mut total = crate::Total::default();
        // With no history step by step: can it be found with threads?
        let threads = wanted.histories == 0;
        let count = if threads {
            wanted.threaded
        } else {
            wanted.histories
        };
        let found = crate::search(&mut bench, wanted, count, threads, &mut total);
        match found {
            None => {
                missed += 1;
                println!(
                    "{:<22} NOT found in {} histories",
                    bug.name(),
                    total.histories
                );
            }
            Some(run) => {
                let invariant = run.failure.as_ref().map_or("", |failure| failure.invariant);
                println!(
                    "{:<22} found in history {:>4}: {invariant}",
                    bug.name(),
                    total.histories
                );
                if bugs.len() == 1 {
                    crate::show(&mut bench, &run);
                }
            }
        }
        kvbridge::plant::plant(None);
    }
    println!(
        "test result: {}. {} passed; {missed} failed; 0 ignored",
        if missed == 0 { "ok" } else { "FAILED" },
        bugs.len() - missed
    );
    ExitCode::from(u8::from(missed > 0))
}
