//! KVCacheManager block pools as regions.

use super::{MAX_REGIONS, Region};
use crate::error::{Result, bail};

/// A block pool of the native cache manager: one tensor of `block_elements` rows per block, layer
/// and KV factor, in one of two orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// Address of the tensor.
    pub base: u64,
    /// Blocks in the pool: its page index space.
    pub blocks: u64,
    /// Layers that the pool holds.
    pub layers: u32,
    /// 2 for keys and values, 1 where there is one row only.
    pub kv_factor: u32,
    /// Elements of one row.
    pub block_elements: u64,
    /// Bits of one element; below 8 for packed formats. A row must be whole bytes.
    pub element_bits: u32,
    /// `[layers, blocks, kv_factor, row]` instead of `[blocks, layers, kv_factor, row]`.
    pub layer_first: bool,
    /// Whether the content is identical on every rank.
    pub replicated: bool,
    /// As in [`Region`].
    pub reservation_base: u64,
}

impl Pool {
    /// Block-first: a block is contiguous, so one region. Layer-first: one region per layer.
    pub(super) fn regions(&self) -> Result<Vec<Region>> {
        if self.layers == 0 {
            bail!(InvalidArgument, "layers is 0");
        }
        if !matches!(self.kv_factor, 1 | 2) {
            bail!(
                InvalidArgument,
                "kv_factor {} is neither 1 nor 2",
                self.kv_factor
            );
        }
        let Some(row_bits) = self
            .block_elements
            .checked_mul(u64::from(self.element_bits))
        else {
            bail!(
                InvalidArgument,
                "block_elements {} of {} bits: a row exceeds 2^64 bits",
                self.block_elements,
                self.element_bits
            );
        };
        if row_bits == 0 || row_bits % 8 != 0 {
            bail!(
                InvalidArgument,
                "block_elements {} of {} bits: a row is not a positive number of whole bytes",
                self.block_elements,
                self.element_bits
            );
        }
        let region = |base, size| Region {
            base,
            size,
            stride: size,
            slots: self.blocks,
            reservation_base: self.reservation_base,
        };
        // At most 2^61 * 2, so this product cannot overflow; the ones below are checked.
        let layer_bytes = row_bits / 8 * u64::from(self.kv_factor);
        let layers = u64::from(self.layers);
        if !self.layer_first {
            return match layer_bytes.checked_mul(layers) {
                Some(block_bytes) => Ok(vec![region(self.base, block_bytes)]),
                None => bail!(
                    InvalidArgument,
                    "{layers} layers: a block exceeds 2^64 bytes"
                ),
            };
        }
        if self.layers as usize > MAX_REGIONS {
            bail!(
                InvalidArgument,
                "layers {layers}: more than {MAX_REGIONS} regions"
            );
        }
        let base_of = |layer: u64| {
            let before = layer.checked_mul(self.blocks)?.checked_mul(layer_bytes)?;
            self.base.checked_add(before)
        };
        let mut regions = Vec::with_capacity(self.layers as usize);
        for layer in 0..layers {
            match base_of(layer) {
                Some(base) => regions.push(region(base, layer_bytes)),
                None => bail!(
                    InvalidArgument,
                    "layer {layer} of {layers}, {} blocks of {layer_bytes} bytes: the address lies \
                     beyond 64 bits",
                    self.blocks
                ),
            }
        }
        Ok(regions)
    }
}
