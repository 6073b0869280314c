//! `kvb_keys_*`: so that tools and other languages can name pages.

use super::args::{self, choice};
use super::config::kvb_config;
use super::guard::guard;
use super::handle;
use super::layout::kvb_layout;
use super::plain::{self, kvb_engine, kvb_request};
use super::status::kvb_status;
use crate::error::{Error, Kind, bail};
use crate::keys::{self, Geometry, Keys, Naming, Scheme, Scope, Shard, Template};
use crate::layout::Part;
use std::ffi::c_char;

/// kvb_keys_hash_blocks: the library's own scheme, 32-byte hashes.
pub const KVB_SCHEME_KVB1: i32 = 0;
/// kvb_keys_hash_blocks: the scheme of TensorRT-LLM's Python connector, 16-byte hashes.
pub const KVB_SCHEME_TRTLLM: i32 = 1;
/// kvb_keys_page_key: the replicated page instead of a rank's.
pub const KVB_SHARD_REPLICATED: i32 = -1;

/// Writes the hashes of all whole blocks of the request's prompt, side by side. `scheme` is one of
/// KVB_SCHEME_*; `lookahead` is 0 without a drafter, else kvb_declarations.prompt_lookahead. Of
/// the request only prompt, salt, adapter and media count.
///
/// Threads: any. Errors: KVB_TOO_SMALL; KVB_INVALID_ARGUMENT, a token that the scheme cannot hash,
/// an adapter that it cannot name, tokens_per_block 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_keys_hash_blocks(
    scheme: i32,
    request: *const kvb_request,
    tokens_per_block: u32,
    lookahead: u32,
    buffer: *mut u8,
    capacity: usize,
    out_needed: *mut usize,
) -> kvb_status {
    guard("kvb_keys_hash_blocks", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (request, buffer) = unsafe {
            (
                plain::request(request)?,
                args::buffer(buffer, capacity, out_needed)?,
            )
        };
        let known = [
            (KVB_SCHEME_KVB1, Scheme::Kvb1),
            (KVB_SCHEME_TRTLLM, Scheme::Trtllm),
        ];
        let scheme = choice(scheme, &known, "scheme")?;
        let scope = Scope {
            lookahead,
            ..request.scope
        };
        buffer.bytes(&keys::hash_blocks(
            scheme,
            &scope,
            request.prompt,
            tokens_per_block,
        )?)
    })
}

/// Writes the pool's key of one page. The names come from `config`, the shape from a group of
/// `layout`, block size and number of ranks from `engine`. `rank` names the shard,
/// KVB_SHARD_REPLICATED the group's replicated page; under attention DP every owner's pages are
/// rank 0's. `hash` is one block hash of the configured scheme.
///
/// Threads: any; the layout must not change meanwhile.
/// Errors: KVB_TOO_SMALL; KVB_OUT_OF_RANGE, no such group or rank; KVB_INVALID_ARGUMENT, the group
/// has no such page or the hash has another length; KVB_CONFIG_INVALID, the names make the key too
/// long; KVB_ENGINE_REFUSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_keys_page_key(
    config: *const kvb_config,
    engine: *const kvb_engine,
    layout: *const kvb_layout,
    group_id: u32,
    rank: i32,
    hash: *const u8,
    hash_size: usize,
    buffer: *mut c_char,
    capacity: usize,
    out_needed: *mut usize,
) -> kvb_status {
    guard("kvb_keys_page_key", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (config, engine, layout, hash, buffer) = unsafe {
            (
                handle::input(config, "config")?,
                plain::engine(engine)?,
                handle::input_alone(layout, "layout", "kvb_keys_page_key")?,
                args::list(hash, hash_size, "hash")?,
                args::buffer(buffer.cast(), capacity, out_needed)?,
            )
        };
        let terms = engine.terms(config)?;
        let mut groups = layout.groups().iter();
        let Some(group) = groups.find(|group| group.group().id == group_id) else {
            bail!(
                OutOfRange,
                "group_id is {group_id}, which the layout does not have"
            );
        };
        let (part, shard) = match u32::try_from(rank) {
            Ok(rank) if rank < terms.world => {
                let world = terms.world;
                (Part::Sharded, Shard::Rank { world, rank })
            }
            Err(_) if rank == KVB_SHARD_REPLICATED => (Part::Replicated, Shard::Replicated),
            _ => bail!(
                OutOfRange,
                "rank is {rank}; it is below {} or KVB_SHARD_REPLICATED",
                terms.world
            ),
        };
        let sizes: Vec<u64> = group
            .regions(part)
            .iter()
            .map(|region| region.size)
            .collect();
        if sizes.is_empty() {
            bail!(
                InvalidArgument,
                "layer group {group_id} has no region in this part"
            );
        }
        let naming = Naming {
            scheme: terms.scheme,
            namespace: config.namespace().to_owned(),
            model_key: config.model_key().to_owned(),
            weights_digest: config.weights_digest().to_owned(),
            page_format: terms.page_format,
            tokens_per_block: terms.tokens_per_block,
        };
        let geometry = Geometry {
            number_format: &group.group().number_format,
            layout_tag: &group.group().layout_tag,
            layer_group: group_id,
            window: group.group().window,
            layer_ids: &group.group().layer_ids,
            region_sizes: &sizes,
        };
        let mut key = Keys::new();
        key.push_key(&Template::page(&naming, &geometry, shard)?, hash)?;
        let key = std::str::from_utf8(key.get(0));
        buffer.text(key.map_err(|_| Error::new(Kind::ConfigInvalid, "the key is no text"))?)
    })
}
