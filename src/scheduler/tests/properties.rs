//! Whatever an engine calls.

use proptest::prelude::*;

use super::*;

/// What a nonsensical engine may call.
#[derive(Debug, Clone)]
enum Nonsense {
    Match(u64, u64, u64, i32),
    Allocated(u64, u64, u32, u32, Vec<i32>, bool),
    Cancel(u64, u64, u64),
    Build(Vec<(u64, u64, u64, u64, bool)>),
    Finished(u64, u8),
    Reset(u64),
    Stored(usize),
    Groups(Option<u32>),
    Report(u8, u64, u64, u32),
}

fn nonsense() -> impl Strategy<Value = Nonsense> {
    let id = || 0u64..3;
    let position = || prop_oneof![6 => (0u64..8).prop_map(|block| block * T), 3 => 0u64..30, 1 => Just(u64::MAX)];
    let page = prop_oneof![8 => 0i32..12, 2 => Just(-1), 1 => prop_oneof![Just(-2), Just(100), Just(i32::MAX), Just(i32::MIN)]];
    prop_oneof![
        4 => (id(), 0u64..30, position(), 0i32..2).prop_map(|(a, b, c, d)| Nonsense::Match(a, b, c, d)),
        5 => (id(), position(), prop_oneof![9 => Just(0u32), 1 => Just(10)], prop_oneof![6 => Just(0u32), 2 => 0u32..6, 1 => Just(u32::MAX)],
              prop_oneof![3 => Just((0..8).collect::<Vec<i32>>()), 2 => prop::collection::vec(page, 0..8)], prop::bool::weighted(0.2))
            .prop_map(|(a, b, c, d, e, f)| Nonsense::Allocated(a, b, c, d, e, f)),
        2 => (id(), position(), position()).prop_map(|(a, b, c)| Nonsense::Cancel(a, b, c)),
        8 => prop::collection::vec((id(), 0u64..12, position(), position(), prop::bool::weighted(0.7)), 0..3).prop_map(Nonsense::Build),
        1 => (id(), 0u8..3).prop_map(|(a, b)| Nonsense::Finished(a, b)),
        1 => id().prop_map(Nonsense::Reset),
        1 => (0usize..1000).prop_map(Nonsense::Stored),
        1 => prop_oneof![Just(Some(1)), Just(Some(2)), Just(None)].prop_map(Nonsense::Groups),
        4 => (0u8..5, 0u64..12, id(), 0u32..9).prop_map(|(a, b, c, d)| Nonsense::Report(a, b, c, d)),
    ]
}

/// The calls that worked are the same calls without those that failed.
fn call(bench: &mut Bench, action: &Nonsense) -> Option<String> {
    let prompts: Vec<Vec<i32>> = (0..2)
        .map(|kind| (0..40).map(|i| i + kind).collect())
        .collect();
    let generation = |bench: &Bench, id: u64| {
        bench
            .scheduler
            .records
            .get(&id)
            .map_or(0, |record| record.generation)
    };
    match action {
        Nonsense::Match(id, length, local, kind) => {
            let prompt = &prompts[*kind as usize][..*length as usize];
            let result = bench.scheduler.match_request(&request(*id, prompt), *local);
            result.ok().map(|offer| format!("{offer:?}"))
        }
        Nonsense::Allocated(id, honoured, group, first_block, indices, replace) => {
            let list = GroupPages {
                group: *group,
                first_block: *first_block,
                indices,
                replace: *replace,
            };
            let result = bench.scheduler.allocated(*id, *honoured, &[list]);
            result.ok().map(|()| String::new())
        }
        Nonsense::Cancel(id, from, to) => {
            let result = bench.scheduler.cancel_load(*id, *from, *to);
            result.ok().map(|()| String::new())
        }
        Nonsense::Build(parts) => {
            let steps: Vec<Step<'_>> = parts
                .iter()
                .map(|(id, new, computed, scheduled, honest)| {
                    let record = bench.scheduler.records.get(id);
                    let first = record.filter(|record| !record.runs());
                    let new = match first {
                        Some(record) if *honest => record.prompt_tokens,
                        _ => *new,
                    };
                    step(*id, &prompts[0][..new as usize], *computed, *scheduled)
                })
                .collect();
            let metadata = bench.scheduler.build(&steps).ok()?;
            for transfers in [metadata.loads(), metadata.saves()] {
                for view in metadata.views(transfers) {
                    assert!(view.pages.iter().all(|page| (0..100).contains(page)));
                    assert_eq!(view.hashes.len(), view.run.blocks as usize * 32);
                }
            }
            let mut names: Vec<(u64, u32)> = metadata
                .saves()
                .runs()
                .iter()
                .flat_map(|run| (0..run.blocks).map(|b| (run.request_id, run.first_block + b)))
                .collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "a block is saved twice in one pass");
            Some(format!("{:?} {:?}", loads(&metadata), saves(&metadata)))
        }
        Nonsense::Finished(id, reason) => {
            let reason = [
                FinishReason::Ended,
                FinishReason::Cancelled,
                FinishReason::Preempted,
            ][*reason as usize];
            Some(bench.scheduler.finished(*id, reason).to_string())
        }
        Nonsense::Reset(id) => {
            bench.scheduler.reset(*id).unwrap();
            Some(String::new())
        }
        Nonsense::Stored(blocks) => {
            bench.store(*blocks);
            Some(String::new())
        }
        Nonsense::Groups(count) => {
            *bench.fake.groups.lock() = count.map(groups);
            Some(String::new())
        }
        Nonsense::Report(what, back, id, block) => {
            let pass = bench.scheduler.pass.wrapping_sub(*back);
            let block = BlockOf {
                request_id: *id,
                generation: generation(bench, *id),
                block: *block,
            };
            let mut report = bench.fake.report.lock();
            match what {
                0 => report.started.push(pass),
                1 => report.submitted.push(pass),
                2 => report.failed_saves.push(block),
                3 => report.failed_loads.push(block),
                _ => report.released.push(*id),
            }
            Some(String::new())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Never a panic; a call that fails leaves no trace: leaving it out gives the same answers.
    #[test]
    fn nonsense_is_answered_and_errors_change_nothing(
        actions in prop::collection::vec(nonsense(), 1..60),
    ) {
        let mut one = bench();
        let mut answers = Vec::new();
        for action in &actions {
            // Reports are taken by failing calls as well.
            one.scheduler.take_report();
            let before = one.snapshot();
            let answer = call(&mut one, action);
            if answer.is_none() {
                prop_assert_eq!(one.snapshot(), before, "{:?}", action);
            }
            answers.push(answer);
        }
        let mut two = bench();
        for (action, answer) in actions.iter().zip(&answers).filter(|(_, answer)| answer.is_some()) {
            prop_assert_eq!(&call(&mut two, action), answer, "{:?}", action);
        }
    }
}
