//! Plain data that several nouns share: bytes, tokens, the engine, requests, pages.

use super::args::{self, Growable, Plain, choice, flag};
use crate::engine::{DeviceChoice, Drafter, Engine, Serving};
use crate::error::{Error, Result, bail};
use crate::keys::{Scope, Tokens};
use crate::scheduler::{GroupPages, Request};
use std::ffi::c_void;

/// Borrowed bytes; size 0 ignores the pointer. Texts are UTF-8 and need no terminator.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_bytes {
    /// Where they start.
    pub data: *const u8,
    /// How many there are.
    pub size: usize,
}
// SAFETY: a pointer and an integer.
unsafe impl Plain for kvb_bytes {}

impl kvb_bytes {
    /// # Safety
    /// As for [`args::list`].
    pub(super) unsafe fn read<'a>(self, argument: &str) -> Result<&'a [u8]> {
        // SAFETY: passed on.
        unsafe { args::list(self.data, self.size, argument) }
    }

    /// # Safety
    /// As for [`args::list`].
    pub(super) unsafe fn text<'a>(self, argument: &str) -> Result<&'a str> {
        // SAFETY: passed on.
        unsafe { args::text(self.data, self.size, argument) }
    }
}

/// A piece of host memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_piece {
    /// Its address; ignored when the size is 0.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
}
// SAFETY: integers.
unsafe impl Plain for kvb_piece {}

/// kvb_tokens.element_type: `const int32_t *`
pub const KVB_TOKENS_INT32: i32 = 0;
/// kvb_tokens.element_type: `const int64_t *`
pub const KVB_TOKENS_INT64: i32 = 1;

/// Borrowed token ids in the width that the engine has them. Equal values mean the same tokens in
/// both.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_tokens {
    /// The first token; aligned for its type.
    pub data: *const c_void,
    /// How many there are; 0 ignores the pointer and the type.
    pub count: usize,
    /// KVB_TOKENS_*.
    pub element_type: i32,
}
// SAFETY: a pointer and integers.
unsafe impl Plain for kvb_tokens {}

impl kvb_tokens {
    /// # Safety
    /// As for [`args::list`].
    pub(super) unsafe fn read<'a>(self, argument: &str) -> Result<Tokens<'a>> {
        if self.count == 0 {
            return Ok(Tokens::I32(&[]));
        }
        // SAFETY: passed on.
        unsafe {
            match self.element_type {
                KVB_TOKENS_INT32 => {
                    args::list(self.data.cast(), self.count, argument).map(Tokens::I32)
                }
                KVB_TOKENS_INT64 => {
                    args::list(self.data.cast(), self.count, argument).map(Tokens::I64)
                }
                other => bail!(
                    InvalidArgument,
                    "{}.element_type is {other}, which is none of its constants",
                    argument.trim_end_matches(".data")
                ),
            }
        }
    }

    /// The token, if it is one alone and of 32 bits; `None` also for what [`read`](Self::read) refuses.
    ///
    /// # Safety
    /// As for [`args::list`].
    #[inline(always)] // once per request of every pass
    pub(super) unsafe fn only(&self) -> Option<i32> {
        let token: *const i32 = self.data.cast();
        if self.count != 1
            || self.element_type != KVB_TOKENS_INT32
            || token.is_null()
            || !token.is_aligned()
        {
            return None;
        }
        // SAFETY: one token is there by the caller's promise, and its address is one of tokens.
        Some(unsafe { token.read() })
    }
}

/// kvb_engine.serving: prefills and decodes.
pub const KVB_SERVING_AGGREGATED: i32 = 0;
/// kvb_engine.serving: disaggregated, prefills only.
pub const KVB_SERVING_CONTEXT: i32 = 1;
/// kvb_engine.serving: disaggregated, decodes only.
pub const KVB_SERVING_GENERATION: i32 = 2;

/// kvb_engine.drafter: no speculative decoding.
pub const KVB_DRAFTER_NONE: i32 = 0;
/// kvb_engine.drafter: one-model multi-token prediction, one layer per draft token.
pub const KVB_DRAFTER_MTP_VANILLA: i32 = 1;
/// kvb_engine.drafter: one-model multi-token prediction, one layer used repeatedly.
pub const KVB_DRAFTER_MTP_EAGLE: i32 = 2;
/// kvb_engine.drafter: EAGLE3 with its layers inside the target model.
pub const KVB_DRAFTER_EAGLE3: i32 = 3;
/// kvb_engine.drafter: anything else; refused.
pub const KVB_DRAFTER_OTHER: i32 = 4;

/// kvb_engine.device_kind: the cache is memory that the CPU reads and writes.
pub const KVB_DEVICE_HOST: i32 = 0;
/// kvb_engine.device_kind: the cache is memory of a CUDA device. It needs the driver, 12.0 or newer.
pub const KVB_DEVICE_CUDA: i32 = 1;

/// The engine's description of itself; the same for every handle of one rank.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_engine {
    /// sizeof(kvb_engine)
    pub struct_size: u32,
    /// Tokens per block; at least 1.
    pub tokens_per_block: u32,
    /// This rank among the tensor-parallel ranks; under attention DP the owner's index.
    pub tp_rank: u32,
    /// Number of tensor-parallel ranks; under attention DP of owners.
    pub tp_size: u32,
    /// Pipeline-parallel stages: 1 (0 counts as 1); more are refused.
    pub pp_size: u32,
    /// Context-parallel ranks: 1 (0 counts as 1); more are refused.
    pub cp_size: u32,
    /// Ranks that share this node's memory (0 counts as 1).
    pub ranks_on_node: u32,
    /// KVB_SERVING_*.
    pub serving: i32,
    /// KVB_DRAFTER_*.
    pub drafter: i32,
    /// Draft tokens per step; -1 while it is not resolved.
    pub max_draft_len: i32,
    /// KVB_DEVICE_*.
    pub device_kind: i32,
    /// Number of the device that the context is of which is current when the layout is registered; -1 for
    /// any. Ignored for host memory.
    pub device_ordinal: i32,
    /// Flag: every rank holds whole attention heads and owns its requests.
    pub attention_dp: u8,
    /// Flag: the drafter's layers are layers of the same KV cache.
    pub draft_shares_cache: u8,
    /// Flag: each kvb_worker_bind brings an allocation fence.
    pub supplies_fences: u8,
}
// SAFETY: integers.
unsafe impl Plain for kvb_engine {}
// SAFETY: begins with its size.
unsafe impl Growable for kvb_engine {}

/// # Safety
/// As for [`args::growable`].
pub(super) unsafe fn engine(pointer: *const kvb_engine) -> Result<Engine> {
    // SAFETY: passed on.
    let given = unsafe { args::growable(pointer, "engine") }?;
    let ordinal = match given.device_ordinal {
        -1 => None,
        ordinal => match u32::try_from(ordinal) {
            Ok(ordinal) => Some(ordinal),
            Err(_) => bail!(
                InvalidArgument,
                "engine->device_ordinal is {ordinal}; it is -1 or a device's number"
            ),
        },
    };
    let max_draft_len = match given.max_draft_len {
        -1 => None,
        length => match u32::try_from(length) {
            Ok(length) => Some(length),
            Err(_) => bail!(
                InvalidArgument,
                "engine->max_draft_len is {length}; it is -1 or a number of tokens"
            ),
        },
    };
    let serving = [
        (KVB_SERVING_AGGREGATED, Serving::Aggregated),
        (KVB_SERVING_CONTEXT, Serving::Context),
        (KVB_SERVING_GENERATION, Serving::Generation),
    ];
    let drafter = [
        (KVB_DRAFTER_NONE, Drafter::None),
        (KVB_DRAFTER_MTP_VANILLA, Drafter::MtpVanilla),
        (KVB_DRAFTER_MTP_EAGLE, Drafter::MtpEagle),
        (KVB_DRAFTER_EAGLE3, Drafter::Eagle3),
        (KVB_DRAFTER_OTHER, Drafter::Other),
    ];
    let device = [
        (KVB_DEVICE_HOST, DeviceChoice::Host),
        (KVB_DEVICE_CUDA, DeviceChoice::Cuda(ordinal)),
    ];
    Ok(Engine {
        tokens_per_block: given.tokens_per_block,
        tp_rank: given.tp_rank,
        tp_size: given.tp_size,
        pp_size: given.pp_size.max(1),
        cp_size: given.cp_size.max(1),
        ranks_on_node: given.ranks_on_node.max(1),
        attention_dp: flag(given.attention_dp, "engine->attention_dp")?,
        serving: choice(given.serving, &serving, "engine->serving")?,
        drafter: choice(given.drafter, &drafter, "engine->drafter")?,
        max_draft_len,
        draft_shares_cache: flag(given.draft_shares_cache, "engine->draft_shares_cache")?,
        supplies_fences: flag(given.supplies_fences, "engine->supplies_fences")?,
        device: choice(given.device_kind, &device, "engine->device_kind")?,
    })
}

/// A request: its prompt and everything else that decides what its KV is. Requests share pages
/// only when salt, adapter and media are the same too.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_request {
    /// sizeof(kvb_request)
    pub struct_size: u32,
    /// The engine's id; unique among live requests. It may come again after kvb_scheduler_finished
    /// or kvb_scheduler_reset, also before its end was announced to kvb_worker_get_finished. What
    /// failed to load is remembered by id.
    pub request_id: u64,
    /// The whole prompt.
    pub prompt: kvb_tokens,
    /// Keeps tenants apart. Counts when has_cache_salt is 1, also when it is empty.
    pub cache_salt: kvb_bytes,
    /// The adapter, as bytes that the engine chooses (a content digest, a name). Counts when
    /// has_lora_identity is 1.
    pub lora_identity: kvb_bytes,
    /// The adapter's task id; the key scheme trtllm needs it. Counts when has_lora_task_id is 1.
    pub lora_task_id: i64,
    /// Digests of all media items, 32 bytes each, in prompt order, duplicates kept.
    pub media_digests: *const u8,
    /// How many media items have a digest.
    pub media_count: usize,
    /// Flag.
    pub has_cache_salt: u8,
    /// Flag.
    pub has_lora_identity: u8,
    /// Flag.
    pub has_lora_task_id: u8,
    /// Flag: the prompt stands for media. Without digests such a request takes no part.
    pub has_media: u8,
    /// Flag: only the prefill is done here. With a drafter all requests must be so.
    pub context_only: u8,
}
// SAFETY: integers and pointers, and structs of these.
unsafe impl Plain for kvb_request {}
// SAFETY: begins with its size.
unsafe impl Growable for kvb_request {}

/// # Safety
/// As for [`args::growable`], and as for [`args::list`] for each list in it.
pub(super) unsafe fn request<'a>(pointer: *const kvb_request) -> Result<Request<'a>> {
    // SAFETY: passed on.
    unsafe {
        let given = args::growable(pointer, "request")?;
        let when = |has: u8, argument: &str| flag(has, argument);
        let cache_salt = match when(given.has_cache_salt, "request->has_cache_salt")? {
            true => Some(given.cache_salt.read("request->cache_salt.data")?),
            false => None,
        };
        let lora_identity = match when(given.has_lora_identity, "request->has_lora_identity")? {
            true => Some(given.lora_identity.read("request->lora_identity.data")?),
            false => None,
        };
        let lora_task_id = when(given.has_lora_task_id, "request->has_lora_task_id")?
            .then_some(given.lora_task_id);
        let media_digests = args::list(
            given.media_digests.cast::<[u8; 32]>(),
            given.media_count,
            "request->media_digests",
        )?;
        Ok(Request {
            id: given.request_id,
            prompt: given.prompt.read("request->prompt.data")?,
            scope: Scope {
                cache_salt,
                lora_identity,
                lora_task_id,
                media_digests,
                lookahead: 0,
            },
            has_media: flag(given.has_media, "request->has_media")?,
            context_only: flag(given.context_only, "request->context_only")?,
        })
    }
}

/// Pages of one layer group, from one block ordinal on. What overlaps with pages reported before
/// must be identical, and a gap is an error.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_group_pages {
    /// Id of the layer group.
    pub group_id: u32,
    /// Ordinal of the block that the first index belongs to.
    pub first_block: u32,
    /// Memory-pool slots, one per block; -1 is no page and keeps its place.
    pub indices: *const i32,
    /// How many there are.
    pub count: usize,
    /// Flag: this is the group's whole list now.
    pub replace: u8,
}
// SAFETY: integers and a pointer.
unsafe impl Plain for kvb_group_pages {}

/// What a function's page lists and their fields are called in texts.
pub(super) struct PageNames {
    pub(super) list: &'static str,
    pub(super) indices: &'static str,
    pub(super) replace: &'static str,
}

/// Appends the host's page lists to `into`.
///
/// # Safety
/// As for [`args::list`], also for the list in each element.
pub(super) unsafe fn group_pages<'a>(
    pointer: *const kvb_group_pages,
    count: usize,
    names: &PageNames,
    into: &mut Vec<GroupPages<'a>>,
) -> Result<()> {
    // SAFETY: passed on.
    let lists = unsafe { args::list(pointer, count, names.list) }?;
    for (index, given) in lists.iter().enumerate() {
        let place = |error: Error| error.within(format_args!("pages[{index}]"));
        into.push(GroupPages {
            group: given.group_id,
            first_block: given.first_block,
            // SAFETY: passed on.
            indices: unsafe { args::list(given.indices, given.count, names.indices) }
                .map_err(place)?,
            replace: flag(given.replace, names.replace).map_err(place)?,
        });
    }
    Ok(())
}

/// Ids as a view into the handle that gave them: valid until the next call on it that has a
/// non-const receiver.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_ids {
    /// The first id.
    pub data: *const u64,
    /// How many there are.
    pub count: usize,
}

impl kvb_ids {
    pub(super) fn view(ids: &[u64]) -> Self {
        Self {
            data: ids.as_ptr(),
            count: ids.len(),
        }
    }
}
