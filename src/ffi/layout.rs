//! `kvb_layout`.

use super::args::{self, Plain, flag};
use super::guard::{guard, guard_or};
use super::handle::{self, Exclusive, Noun};
use super::plain::kvb_bytes;
use super::status::kvb_status;
use crate::error::{Result, bail};
use crate::layout::{Group, Layout, Pool, Region};

/// A cache layout: which bytes a page consists of, per layer group. It is built step by step, then
/// registered with a worker, which keeps a copy.
///
/// Threads: exclusive. Made by kvb_layout_new, freed by kvb_layout_free at any time after its use.
pub struct kvb_layout {
    _opaque: (),
}

impl Noun for kvb_layout {
    const TAG: u64 = u64::from_be_bytes(*b"kvblayou");
    const NAME: &'static str = "kvb_layout";
    const LIVES_IN_ONE_PROCESS: bool = false;
    type Access = Exclusive;
    type Common = ();
    type Alone = Layout;
}

/// A layer group: layers that share one page index space, such as one attention window. It names
/// pages, so it must be the same on every rank and every server.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_group {
    /// The engine's id for the group; unique in the layout.
    pub id: u32,
    /// Attention window in tokens; 0 for full attention.
    pub window: u32,
    /// How numbers are encoded: float32, float16, bfloat16, fp8_e4m3, fp8_e5m2, int8, nvfp4,
    /// mxfp8, mxfp4, int4, or "custom:" and a text.
    pub number_format: kvb_bytes,
    /// The engine's word for the order of bytes inside a region, such as "HND"; may be empty.
    pub layout_tag: kvb_bytes,
    /// The layers of the group, each once.
    pub layer_ids: *const u32,
    /// How many there are.
    pub layer_count: usize,
}
// SAFETY: integers and pointers, and structs of these.
unsafe impl Plain for kvb_group {}

/// One strided byte range: page i's part of it starts at base + i * stride and has `size` bytes. A
/// page is the concatenation of its group's regions in the order they were added.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_region {
    /// Address of slot 0.
    pub base: u64,
    /// Bytes per slot.
    pub size: u64,
    /// Bytes from one slot to the next; at least `size`.
    pub stride: u64,
    /// Number of slots.
    pub slot_count: u64,
    /// Start of the virtual reservation that the region lies in; 0 without one.
    pub reservation_base: u64,
}
// SAFETY: integers.
unsafe impl Plain for kvb_region {}

/// A block pool as a native KVCacheManager lays it out.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_pool {
    /// Address of the pool.
    pub base: u64,
    /// Number of blocks.
    pub num_blocks: u64,
    /// Number of layers.
    pub num_layers: u32,
    /// 2 for key and value, 1 where there is no value (MLA).
    pub kv_factor: u32,
    /// Elements per block, layer and factor.
    pub block_size: u64,
    /// Bits per element.
    pub element_bits: u32,
    /// Flag. 0: [blocks, layers, factor, block_size]; 1: [layers, blocks, factor, block_size].
    pub layer_first: u8,
    /// Flag: the bytes are the same on every rank of the tensor-parallel group.
    pub replicated: u8,
    /// Start of the virtual reservation that the pool lies in; 0 without one.
    pub reservation_base: u64,
}
// SAFETY: integers.
unsafe impl Plain for kvb_pool {}

/// Begins an empty layout. `mapping_bytes` is the size of the physical mappings that the cache's
/// memory is made of, beyond which one registration must not reach; 0 if it does not matter.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_layout_new(
    mapping_bytes: u64,
    out: *mut *mut kvb_layout,
) -> kvb_status {
    guard("kvb_layout_new", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let out = unsafe { args::out(out, "out") }?;
        out.write(handle::create((), Layout::new(mapping_bytes)));
        Ok(())
    })
}

/// Adds a layer group without regions.
///
/// Errors: KVB_INVALID_ARGUMENT, the id is taken, a layer comes twice, a text is not UTF-8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_layout_add_group(
    layout: *mut kvb_layout,
    group: *const kvb_group,
) -> kvb_status {
    guard("kvb_layout_add_group", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (mut layout, group) = unsafe {
            let layout = handle::exclusive(layout, "layout", "kvb_layout_add_group")?;
            let given = args::fixed(group, "group")?;
            let layers = args::list(given.layer_ids, given.layer_count, "group->layer_ids")?;
            let format = given.number_format.text("group->number_format.data")?;
            let tag = given.layout_tag.text("group->layout_tag.data")?;
            let group = Group {
                id: given.id,
                window: given.window,
                number_format: format.to_owned(),
                layout_tag: tag.to_owned(),
                layer_ids: layers.to_vec(),
            };
            (layout, group)
        };
        layout.add_group(group)
    })
}

/// Appends a region to a group's sharded page: bytes that belong to this rank.
///
/// Errors: KVB_INVALID_ARGUMENT, the group is not there, or the region is empty, overlaps with
/// itself or does not fit into 64-bit addresses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_layout_add_region(
    layout: *mut kvb_layout,
    group_id: u32,
    region: *const kvb_region,
) -> kvb_status {
    guard("kvb_layout_add_region", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (mut layout, region) = unsafe {
            (
                handle::exclusive(layout, "layout", "kvb_layout_add_region")?,
                args::fixed(region, "region")?,
            )
        };
        layout.add_region(group_id, translated(region)?)
    })
}

/// Appends a region to a group's replicated page: bytes that are the same on every rank of the
/// tensor-parallel group. They are stored once, written by rank 0 and read by all.
///
/// Errors: as kvb_layout_add_region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_layout_add_replicated_region(
    layout: *mut kvb_layout,
    group_id: u32,
    region: *const kvb_region,
) -> kvb_status {
    guard("kvb_layout_add_replicated_region", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (mut layout, region) = unsafe {
            (
                handle::exclusive(layout, "layout", "kvb_layout_add_replicated_region")?,
                args::fixed(region, "region")?,
            )
        };
        layout.add_replicated_region(group_id, translated(region)?)
    })
}

/// Appends the regions of one KVCacheManager block pool: one, or one per layer when the layers
/// come first.
///
/// Errors: as kvb_layout_add_region; also when a page's bytes are not whole.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_layout_add_pool(
    layout: *mut kvb_layout,
    group_id: u32,
    pool: *const kvb_pool,
) -> kvb_status {
    guard("kvb_layout_add_pool", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (mut layout, given) = unsafe {
            (
                handle::exclusive(layout, "layout", "kvb_layout_add_pool")?,
                args::fixed(pool, "pool")?,
            )
        };
        located(given.base, "pool->base")?;
        let pool = Pool {
            base: given.base,
            blocks: given.num_blocks,
            layers: given.num_layers,
            kv_factor: given.kv_factor,
            block_elements: given.block_size,
            element_bits: given.element_bits,
            layer_first: flag(given.layer_first, "pool->layer_first")?,
            replicated: flag(given.replicated, "pool->replicated")?,
            reservation_base: given.reservation_base,
        };
        layout.add_pool(group_id, pool)
    })
}

/// Frees a layout; workers that registered it have their copy. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_layout_free(layout: *mut kvb_layout) {
    // SAFETY: the caller's promise, see the header's conventions.
    guard_or("kvb_layout_free", (), || unsafe {
        handle::free(layout, "layout")
    });
}

/// Refuses a NULL with something added, or a number: no host and no device maps its first page.
fn located(base: u64, argument: &str) -> Result<()> {
    // What 0 means, the layout says.
    if base > 0 && base < args::LOWEST as u64 {
        bail!(
            InvalidArgument,
            "{argument} is {base:#x}, which is no address of memory"
        );
    }
    Ok(())
}

fn translated(given: kvb_region) -> Result<Region> {
    located(given.base, "region->base")?;
    Ok(Region {
        base: given.base,
        size: given.size,
        stride: given.stride,
        slots: given.slot_count,
        reservation_base: given.reservation_base,
    })
}
