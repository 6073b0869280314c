//! A token in 32 bits may go by its request's line, in 64 bits it never does: two schedulers that get the same tokens, each in
//! one width, have to say the same in every pass, whatever comes in between.

use proptest::prelude::*;

use super::*;
use crate::keys::Scheme;

/// Requests that decode in most passes, in this order; the ids above them come in sometimes.
const ALWAYS: u64 = 36;
const IDS: u64 = 40;
const PAGES: usize = 16;

/// Block sizes below and above what a line takes at most, both schemes, and a drafter, with which no generated token is hashed.
const KINDS: [(u32, Scheme, Drafter); 4] = [
    (4, Scheme::Kvb1, Drafter::None),
    (64, Scheme::Trtllm, Drafter::None),
    (64, Scheme::Kvb1, Drafter::None),
    (4, Scheme::Kvb1, Drafter::Eagle3),
];

fn scheduler(kind: (u32, Scheme, Drafter)) -> Bench {
    let (tokens_per_block, scheme, drafter) = kind;
    let engine = Engine {
        tokens_per_block,
        drafter,
        serving: Serving::Context,
        ..engine()
    };
    let name = scheme.name();
    let json = format!(r#"{{"model_key": "m", "kvbridge": {{"key_scheme": "{name}"}}}}"#);
    bench_on(&Config::from_json(json.as_bytes()).unwrap(), &engine, 1)
}

/// What one request brings to one pass.
#[derive(Debug, Clone)]
struct Part {
    id: u64,
    new: Vec<i32>,
    computed: u64,
    scheduled: u64,
}

/// Both schedulers, and how many tokens they know of each request.
struct Pair {
    narrow: Bench,
    wide: Bench,
    known: [u64; IDS as usize],
}

impl Pair {
    fn both(&mut self) -> [&mut Bench; 2] {
        [&mut self.narrow, &mut self.wide]
    }

    /// `count` times this token, or the prompt of a request that is new.
    fn part(&mut self, id: u64, count: usize, token: i32) -> Part {
        let known = self.known[id as usize];
        if known > 0 {
            return Part {
                id,
                new: vec![token; count],
                computed: known + count as u64 - u64::from(count > 0),
                scheduled: 1,
            };
        }
        let prompt = vec![id as i32; 20 + id as usize % 16];
        for bench in self.both() {
            bench.admit(id, &prompt, 0);
        }
        let scheduled = prompt.len() as u64;
        Part {
            id,
            new: prompt,
            computed: 0,
            scheduled,
        }
    }

    fn end(&mut self, id: u64) {
        self.known[id as usize] = 0;
        for bench in self.both() {
            bench.scheduler.finished(id, FinishReason::Ended);
        }
    }

    /// Builds a pass of both, with the first part once more if it is to be refused.
    fn build(&mut self, parts: &[Part], refused: bool, submitted: bool) {
        let indices: Vec<i32> = (0..PAGES as i32).collect();
        let lists = [pages(0, &indices)];
        let long: Vec<Vec<i64>> = parts
            .iter()
            .map(|part| part.new.iter().map(|&token| token.into()).collect())
            .collect();
        let steps = |wide: bool| {
            let mut steps: Vec<Step<'_>> = parts
                .iter()
                .zip(&long)
                .map(|(part, long)| Step {
                    request_id: part.id,
                    new_tokens: if wide {
                        Tokens::I64(long)
                    } else {
                        Tokens::I32(&part.new)
                    },
                    pages: if part.computed == 0 { &lists } else { &[] },
                    computed_position: part.computed,
                    scheduled_tokens: part.scheduled,
                })
                .collect();
            steps.extend(refused.then(|| steps[0]));
            steps
        };
        let built = [
            self.narrow.scheduler.build(&steps(false)),
            self.wide.scheduler.build(&steps(true)),
        ];
        let [Ok(narrow), Ok(wide)] = &built else {
            assert!(refused && built.iter().all(Result::is_err), "{built:?}");
            return;
        };
        assert!(!refused);
        assert_eq!(said(narrow), said(wide));
        for part in parts {
            self.known[part.id as usize] += part.new.len() as u64;
        }
        for (bench, pass) in self.both().into_iter().zip([narrow, wide]) {
            bench.started(pass);
            if submitted {
                bench.submitted(pass);
            }
        }
    }
}

/// What is to be saved; the generations are of all schedulers together.
fn said(metadata: &Metadata) -> Vec<String> {
    let views = metadata.views(metadata.saves());
    views
        .map(|view| {
            let (id, first) = (view.run.request_id, view.run.first_block);
            format!("{id} {first} {:?} {:?}", view.hashes, view.pages)
        })
        .collect()
}

fn records(bench: &Bench) -> Vec<String> {
    let mut all: Vec<_> = bench
        .scheduler
        .records
        .iter()
        .map(|(id, record)| {
            let Record {
                tokens,
                confirmed,
                chain,
                ..
            } = record;
            format!("{id} {tokens} {confirmed} {chain:?}")
        })
        .collect();
    all.sort();
    all
}

proptest! {
    #[test]
    fn tokens_of_any_width_make_the_same_passes(
        kind in prop::sample::select(&KINDS[..]),
        passes in prop::collection::vec(
            (
                prop::collection::vec(
                    (0..IDS, prop_oneof![9 => Just(1), 1 => 0..4usize], any::<i32>()),
                    0..4,
                ),
                0..100u8,
            ),
            1..150,
        ),
    ) {
        let [narrow, wide] = [scheduler(kind), scheduler(kind)];
        let mut pair = Pair { narrow, wide, known: [0; IDS as usize] };
        for (others, event) in passes {
            if event % 7 == 1 {
                pair.end(u64::from(event) % IDS);
            }
            let mut parts: Vec<Part> = (0..ALWAYS).map(|id| pair.part(id, 1, event.into())).collect();
            for (id, count, token) in others {
                let part = pair.part(id, count, token);
                match parts.iter_mut().find(|part| part.id == id) {
                    Some(known) => *known = part,
                    None => parts.push(part),
                }
            }
            // What was taken of a refused pass is taken back.
            pair.build(&parts, event == 0, event % 3 != 0);
            if event % 8 == 0 {
                prop_assert_eq!(records(&pair.narrow), records(&pair.wide));
            }
        }
        prop_assert_eq!(records(&pair.narrow), records(&pair.wide));
    }
}
