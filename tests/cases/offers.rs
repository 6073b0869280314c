//! What is offered, and what is asked for it: never a page of another prompt.

use std::sync::Arc;

use crate::OWN;
use crate::rig::{Lines, Rig, Setup, T, pool, prompt, request, rule};
use kvbridge::keys::Scope;
use kvbridge::scheduler::{FinishReason, Request};
use kvbridge::store::faulty::{Action, Call, Which};

#[test]
fn case_09_one_missing_shard_ends_the_prefix() {
    let mut rig = Rig::new(Setup {
        world: 8,
        ..Setup::default()
    });
    let tokens = prompt(1, 6 * T + 1);
    rig.publish(1, &tokens);
    assert_eq!(rig.stored(), 6 * 8);
    assert_eq!(rig.offer(2, &tokens, 0), 6 * T as u64);
    rig.remove(&tokens, 3, OWN, 5);
    assert_eq!(rig.offer(3, &tokens, 0), 3 * T as u64);
}

fn adapter<'a>(tokens: &'a [i32], id: u64, adapter: Option<&'a [u8]>) -> Request<'a> {
    Request {
        scope: Scope {
            cache_salt: Some(b"salt"),
            lora_identity: adapter,
            ..Scope::default()
        },
        ..request(id, tokens)
    }
}

#[test]
fn case_12_adapters_never_share_pages() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 4 * T);
    let adapters = [None, Some(&b"A"[..]), Some(b"B")];
    for (id, name) in (1..).zip(adapters) {
        let wanted = adapter(&tokens, id, name);
        assert_eq!(rig.scheduler.match_request(&wanted, 0).unwrap().tokens, 0);
        rig.allocate(id, &tokens, 0, 0);
        rig.pass(&[(id, 4 * T)]);
        rig.drain();
        assert_eq!(rig.stored(), 4 * id);
    }
    for (id, name) in (11..).zip(adapters) {
        let wanted = adapter(&tokens, id, name);
        assert_eq!(rig.scheduler.match_request(&wanted, 0).unwrap().tokens, 48);
    }
}

#[test]
fn case_17_media_without_digests_take_no_part() {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        let mut rig = Rig::new(Setup::default());
        let tokens = prompt(1, 4 * T);
        rig.publish(1, &tokens);
        let (asked, stored) = (rig.asked(Call::Any), rig.stored());
        for id in 2..5 {
            let media = Request {
                has_media: true,
                ..request(id, &tokens)
            };
            assert_eq!(rig.scheduler.match_request(&media, 0).unwrap().tokens, 0);
            rig.allocate(id, &tokens, 0, 0);
            let metadata = rig.pass(&[(id, 4 * T)]);
            assert_eq!(metadata.saves().runs().len(), 0);
            rig.drain();
            assert!(!rig.finish(id, FinishReason::Ended));
        }
        assert_eq!((rig.asked(Call::Any), rig.stored()), (asked, stored));
    });
    assert_eq!(lines.take_warnings().len(), 1);
}

#[test]
fn case_18_number_formats_never_share_pages() {
    let shared = pool(1 << 20);
    let tokens = prompt(1, 4 * T);
    let formats = ["fp8_e4m3", "fp8_e5m2", "int8"];
    for (number, format) in formats.iter().enumerate() {
        let mut rig = Rig::on(
            Setup {
                format,
                ..Setup::default()
            },
            Arc::clone(&shared),
        );
        assert_eq!(rig.offer(9, &tokens, 0), 0, "{format}");
        rig.publish(1, &tokens);
        assert_eq!(rig.stored(), 4 * (number as u64 + 1));
        assert_eq!(rig.offer(2, &tokens, 0), 48);
    }
}

#[test]
fn case_62_only_a_definite_yes_is_a_hit() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 7 * T);
    rig.publish(1, &tokens);
    let key = |block| Which::Containing(rig.key(&tokens, block, OWN, 0));
    let before = rig.stats();
    let scripts = [
        (vec![rule(Call::Exist, key(3), Action::Lose)], 3, 1, 0),
        (vec![rule(Call::Exist, key(2), Action::Fail(-900))], 2, 0, 1),
        (
            vec![
                rule(Call::Exist, key(4), Action::Lose),
                rule(Call::Exist, key(1), Action::Fail(-900)),
            ],
            1,
            1,
            1,
        ),
        (
            vec![rule(Call::Exist, Which::All, Action::WrongLength(-1))],
            0,
            0,
            6,
        ),
        (
            vec![rule(Call::Exist, Which::All, Action::WrongLength(1))],
            0,
            0,
            6,
        ),
    ];
    let (mut missing, mut failed) = (before.missing_keys, before.failed_lookup_keys);
    for (id, (script, blocks, misses, failures)) in (2..).zip(scripts) {
        rig.script(script);
        assert_eq!(rig.offer(id, &tokens, 0), blocks * T as u64);
        missing += misses;
        failed += failures;
        let stats = rig.stats();
        assert_eq!(
            (stats.missing_keys, stats.failed_lookup_keys),
            (missing, failed)
        );
    }
}

#[test]
fn case_64_the_last_token_is_never_offered() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 6 * T);
    rig.publish(1, &tokens);
    for (id, (length, offered)) in
        (2..).zip([(64, 48), (65, 64), (15, 0), (0, 0), (16, 0), (17, 16)])
    {
        assert_eq!(
            rig.offer(id, &tokens[..length], 0),
            offered,
            "{length} tokens"
        );
    }
}

#[test]
fn case_88_a_block_is_asked_for_once_per_purpose() {
    for chunk in [7, 512] {
        let mut rig = Rig::new(Setup {
            chunk,
            ..Setup::default()
        });
        let tokens = prompt(1, 64 * T);
        // Nothing is stored: the lookup ends with the first chunk of blocks.
        rig.admit(1, &tokens);
        assert_eq!(rig.asked(Call::Exist), u64::from(chunk.min(63)));
        let lookups = rig.asked(Call::Exist);
        for _ in 0..64 {
            rig.pass(&[(1, T)]);
            rig.drain();
        }
        assert_eq!(rig.asked(Call::Exist), lookups + 64);
        assert_eq!((rig.asked(Call::Put), rig.asked(Call::Get)), (64, 0));
        // Everything is stored: each block once, not once per chunk; repeats cost nothing.
        let before = rig.asked(Call::Exist);
        for _ in 0..3 {
            assert_eq!(rig.offer(2, &tokens, 0), 63 * T as u64);
        }
        assert_eq!(rig.offer(2, &tokens, 5 * T), 58 * T as u64);
        assert_eq!(rig.asked(Call::Exist), before + 63);
    }
}
