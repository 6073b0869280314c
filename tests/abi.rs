//! Sizes and offsets of everything that crosses the boundary. `KVB_BLESS=1` rewrites the golden file;
//! what is released there may only grow at the end of structs that begin with struct_size.

use kvbridge::ffi::explain::kvb_explanation;
use kvbridge::ffi::fence::kvb_fence;
use kvbridge::ffi::host::{kvb_store_call, kvb_store_table};
use kvbridge::ffi::layout::{kvb_group, kvb_pool, kvb_region};
use kvbridge::ffi::metadata::kvb_summary;
use kvbridge::ffi::plain::{
    kvb_bytes, kvb_engine, kvb_group_pages, kvb_ids, kvb_piece, kvb_request, kvb_tokens,
};
use kvbridge::ffi::scheduler::{kvb_accepted, kvb_pass, kvb_step};
use kvbridge::ffi::stats::kvb_stats;
use kvbridge::ffi::store::{kvb_pool_stats, kvb_put_options};
use kvbridge::ffi::worker::kvb_declarations;
use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;

macro_rules! describe {
    ($($type:ident { $($field:ident)+ })+) => {{
        let mut text = String::new();
        $(
            // Taking it apart proves that no field was left out.
            let _ = |it: $type| { let $type { $($field: _,)+ } = it; };
            let (size, align) = (size_of::<$type>(), align_of::<$type>());
            writeln!(text, "{} size {size} align {align}", stringify!($type)).unwrap();
            $(writeln!(text, "  {:4} {}", offset_of!($type, $field), stringify!($field)).unwrap();)+
        )+
        text
    }};
}

#[test]
fn structs_are_laid_out_as_released() {
    let described = describe! {
        kvb_bytes { data size }
        kvb_tokens { data count element_type }
        kvb_engine {
            struct_size tokens_per_block tp_rank tp_size pp_size cp_size ranks_on_node serving drafter
            max_draft_len device_kind device_ordinal attention_dp draft_shares_cache supplies_fences
        }
        kvb_request {
            struct_size request_id prompt cache_salt lora_identity lora_task_id media_digests
            media_count has_cache_salt has_lora_identity has_lora_task_id has_media context_only
        }
        kvb_group_pages { group_id first_block indices count replace }
        kvb_ids { data count }
        kvb_group { id window number_format layout_tag layer_ids layer_count }
        kvb_region { base size stride slot_count reservation_base }
        kvb_pool {
            base num_blocks num_layers kv_factor block_size element_bits layer_first replicated
            reservation_base
        }
        kvb_piece { address size }
        kvb_pool_stats {
            struct_size capacity used_bytes objects evicted_objects refused_puts
        }
        kvb_store_table {
            struct_size context exist put get remove register_memory unregister_memory health release
            pieces_per_key keys_per_call soft_pin_ttl groups tenant device_memory serial
        }
        kvb_store_call {
            struct_size force count keys pieces piece_ends outcomes sizes soft_pin_ttl_ms groups
            tenant
        }
        kvb_put_options { struct_size soft_pin_ttl_ms groups group_count }
        kvb_declarations {
            struct_size supports_attention_dp reports_failed_loads requires_block_aligned_reuse
            drops_reuse_match_backoff supports_speculative_prefill supports_admission_query
            prompt_lookahead
        }
        kvb_fence { kind event wait context }
        kvb_stats {
            struct_size lookups lookup_blocks hit_blocks lookup_keys missing_keys
            failed_lookup_keys loaded_pages loaded_bytes
            failed_load_pages bad_seals failed_load_requests saved_pages saved_bytes
            already_stored_pages no_space_pages failed_save_pages dropped_save_pages store_calls
            saves_in_flight loads_in_flight loads_queued holes hole_blocks
            tokens_behind_holes load_calls load_queue_ns load_resolve_ns
            load_fence_ns load_describe_ns load_get_ns load_unstage_ns load_sync_ns
            load_resolve_cpu_ns load_fence_cpu_ns load_describe_cpu_ns load_get_cpu_ns
            load_unstage_cpu_ns load_sync_cpu_ns breaker_state pool_deadlines pool_failures
            breaker_openings breaker_refusals late_calls_returned late_calls quarantined_calls
        }
        kvb_explanation {
            struct_size reason offered_tokens blocks stored_blocks missing_block group_id rank code
            other_world
        }
        kvb_step {
            request_id new_tokens pages page_lists computed_position scheduled_tokens
        }
        kvb_pass { struct_size steps step_count accepted accepted_count }
        kvb_accepted { reservation_id request_id pages page_lists }
        kvb_summary {
            struct_size pass load_requests load_blocks save_requests save_blocks parked_requests
            parked_blocks
        }
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/structs.txt");
    if std::env::var_os("KVB_BLESS").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, described).unwrap();
        return;
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), described);
}
