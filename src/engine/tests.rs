//! Who may take part, and on which terms.

use super::*;
use crate::error::Kind;

fn engine() -> Engine {
    Engine {
        ranks_on_node: 4,
        ..Engine::example(1, 4)
    }
}

fn config(role: &str, more: &str) -> Config {
    let text = format!(r#"{{"model_key": "m", "role": "{role}"{more}}}"#);
    Config::from_json(text.as_bytes()).unwrap()
}

fn refusal(engine: Engine, role: &str) -> Kind {
    engine.terms(&config(role, "")).unwrap_err().kind()
}

#[test]
fn d0_parallelism_names_shards_or_is_refused() {
    let terms = engine().terms(&config("both", "")).unwrap();
    assert_eq!((terms.world, terms.rank, terms.global_rank), (4, 1, 1));
    assert!(!terms.restarts_requests());
    let owner = Engine {
        attention_dp: true,
        serving: Serving::Context,
        ..engine()
    };
    let terms = owner.terms(&config("both", "")).unwrap();
    assert_eq!((terms.world, terms.rank, terms.global_rank), (1, 0, 1));
    assert!(terms.restarts_requests());
    for (wrong, kind) in [
        (
            Engine {
                pp_size: 2,
                ..engine()
            },
            Kind::EngineRefused,
        ),
        (
            Engine {
                cp_size: 2,
                ..engine()
            },
            Kind::EngineRefused,
        ),
        (
            Engine {
                tp_rank: 4,
                ..engine()
            },
            Kind::InvalidArgument,
        ),
        (
            Engine {
                tp_size: 0,
                ..engine()
            },
            Kind::InvalidArgument,
        ),
        (
            Engine {
                tokens_per_block: 0,
                ..engine()
            },
            Kind::InvalidArgument,
        ),
    ] {
        assert_eq!(refusal(wrong, "both"), kind, "{wrong:?}");
    }
}

#[test]
fn d1_an_aggregated_owner_may_not_publish() {
    let owner = |serving| Engine {
        attention_dp: true,
        serving,
        ..engine()
    };
    for role in ["producer", "both"] {
        let refused = owner(Serving::Aggregated)
            .terms(&config(role, ""))
            .unwrap_err();
        assert_eq!(refused.kind(), Kind::EngineRefused);
        assert!(refused.message().contains(role) && refused.message().contains("gate"));
        assert!(owner(Serving::Context).terms(&config(role, "")).is_ok());
    }
    for role in ["consumer", "capacity"] {
        assert!(owner(Serving::Aggregated).terms(&config(role, "")).is_ok());
    }
}

#[test]
fn d2_declarations_follow_role_and_settings() {
    for (role, more, aligned, drops) in [
        ("both", "", true, true),
        ("consumer", "", true, true),
        ("both", r#", "local_reuse_backoff": "align""#, true, false),
        ("producer", "", false, false),
        ("capacity", "", false, false),
        (
            "producer",
            r#", "local_reuse_backoff": "off""#,
            false,
            false,
        ),
    ] {
        let declared = engine().terms(&config(role, more)).unwrap().declarations;
        assert_eq!(
            (
                declared.requires_block_aligned_reuse,
                declared.drops_reuse_match_backoff
            ),
            (aligned, drops),
            "{role} {more}"
        );
        assert!(declared.supports_attention_dp && declared.supports_admission_query);
        assert!(declared.supports_speculative_prefill);
        assert!(!declared.reports_failed_loads);
    }
    let single = Engine {
        tp_size: 1,
        tp_rank: 0,
        ..engine()
    };
    let owner = Engine {
        attention_dp: true,
        serving: Serving::Context,
        ..engine()
    };
    for engine in [single, owner] {
        assert!(
            engine
                .terms(&config("both", ""))
                .unwrap()
                .declarations
                .reports_failed_loads
        );
    }
}

#[test]
fn d3_drafters_are_allowed_by_list() {
    let context = |drafter, max_draft_len| Engine {
        drafter,
        max_draft_len,
        serving: Serving::Context,
        ..engine()
    };
    for (drafter, length, lookahead) in [
        (Drafter::None, None, 0),
        (Drafter::MtpEagle, None, 1),
        (Drafter::MtpEagle, Some(4), 1),
        (Drafter::Eagle3, Some(4), 1),
        (Drafter::MtpVanilla, Some(4), 4),
    ] {
        let terms = context(drafter, length).terms(&config("both", "")).unwrap();
        assert_eq!(terms.lookahead, lookahead, "{drafter:?}");
        assert_eq!(terms.declarations.prompt_lookahead, lookahead);
        assert_eq!(terms.context_only, drafter != Drafter::None);
    }
    let eagle = context(Drafter::Eagle3, Some(1));
    for wrong in [
        context(Drafter::MtpVanilla, None),
        context(Drafter::MtpVanilla, Some(0)),
        context(Drafter::Other, Some(1)),
        Engine {
            draft_shares_cache: false,
            ..eagle
        },
        Engine {
            serving: Serving::Aggregated,
            ..eagle
        },
        Engine {
            serving: Serving::Generation,
            ..eagle
        },
    ] {
        assert_eq!(refusal(wrong, "both"), Kind::EngineRefused, "{wrong:?}");
        let terms = wrong.terms(&config("capacity", "")).unwrap();
        assert!(!terms.context_only && terms.lookahead == 0);
    }
}

#[test]
fn pools_may_use_the_cache_itself() {
    let direct = r#", "stage_through_host": false, "kvbridge": {"page_format": "raw"}"#;
    let terms = |more: &str| engine().terms(&config("both", more)).unwrap();
    assert!(terms(direct).direct);
    assert!(!terms("").direct);
}

#[test]
fn ranks_agree_on_the_fingerprint_and_others_do_not() {
    let of = |engine: Engine, role: &str, more: &str| {
        engine.terms(&config(role, more)).unwrap().fingerprint
    };
    let own = of(engine(), "both", "");
    assert_eq!(
        of(
            Engine {
                tp_rank: 3,
                ..engine()
            },
            "both",
            ""
        ),
        own
    );
    for other in [
        of(
            Engine {
                tp_size: 8,
                ..engine()
            },
            "both",
            "",
        ),
        of(
            Engine {
                tokens_per_block: 32,
                ..engine()
            },
            "both",
            "",
        ),
        of(engine(), "producer", ""),
        of(engine(), "both", r#", "namespace": "other""#),
        of(engine(), "both", r#", "kvbridge": {"page_format": "raw"}"#),
        of(
            engine(),
            "both",
            r#", "kvbridge": {"key_scheme": "trtllm"}"#,
        ),
        of(engine(), "both", r#", "kvbridge": {"weights_digest": "d"}"#),
    ] {
        assert_ne!(other, own);
    }
}
