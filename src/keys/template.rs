//! A key without its block hash: made once per layer group and shard, filled in per block.

use super::identity::page_id;
use super::{Geometry, Naming, Scheme, Shard, percent_escape};
use crate::error::{Result, bail};
use std::fmt::Write as _;

/// The longest key there is, in bytes, without the NUL behind it.
pub const MAX_KEY_BYTES: usize = 512;

/// Everything of a key up to its block hash, which stands at the end in lower-case hex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    prefix: String,
    id: Option<[u8; 16]>,
    hash_len: usize,
}

impl Template {
    /// The template of a page's key.
    ///
    /// Fails with `ConfigInvalid` when the key would be longer than [`MAX_KEY_BYTES`] or the naming
    /// contradicts itself, and with `InvalidArgument` for a rank outside its world, a number format
    /// that `kvb1` does not know, or region sizes whose sum is no 64-bit number.
    pub fn page(naming: &Naming, geometry: &Geometry<'_>, shard: Shard) -> Result<Self> {
        naming.check()?;
        match naming.scheme {
            Scheme::Trtllm => {
                let bytes = geometry
                    .region_sizes
                    .iter()
                    .try_fold(0, |sum: u64, size| sum.checked_add(*size));
                let Some(bytes) = bytes else {
                    bail!(
                        InvalidArgument,
                        "the region sizes of layer group {} overflow",
                        geometry.layer_group
                    );
                };
                let prefix = format!(
                    "{}/{}/{}/lg{}/t{}b{bytes}/",
                    naming.namespace,
                    naming.model_key,
                    shard.spell()?,
                    geometry.layer_group,
                    naming.tokens_per_block
                );
                Self::new(naming, prefix, None)
            }
            Scheme::Kvb1 => {
                let id = page_id(naming, geometry, shard)?;
                let mut prefix = readable(naming);
                for byte in id {
                    // Writing to a String cannot fail.
                    let _ = write!(prefix, "{byte:02x}");
                }
                prefix.push('/');
                Self::new(naming, prefix, Some(id))
            }
        }
    }

    /// The template of a block's eviction group, which all its layer groups and shards share.
    ///
    /// Fails like [`page`](Self::page); `world` is the attention world size, at least 1.
    pub fn group(naming: &Naming, world: u32) -> Result<Self> {
        naming.check()?;
        if world == 0 {
            bail!(InvalidArgument, "a world of 0 ranks has no eviction groups");
        }
        Self::new(naming, format!("{}w{world}/", readable(naming)), None)
    }

    fn new(naming: &Naming, prefix: String, id: Option<[u8; 16]>) -> Result<Self> {
        let template = Self {
            prefix,
            id,
            hash_len: naming.scheme.hash_len(),
        };
        if template.key_len() > MAX_KEY_BYTES {
            bail!(
                ConfigInvalid,
                "a key would have {} bytes, more than {MAX_KEY_BYTES}: namespace has {} bytes, model_key {}{}",
                template.key_len(),
                naming.namespace.len(),
                naming.model_key.len(),
                match naming.scheme {
                    Scheme::Trtllm => String::new(),
                    Scheme::Kvb1 => format!(
                        " (escaped {} and {})",
                        percent_escape(&naming.namespace).len(),
                        percent_escape(&naming.model_key).len()
                    ),
                }
            );
        }
        Ok(template)
    }

    /// The bytes in front of the hash.
    pub fn prefix(&self) -> &[u8] {
        self.prefix.as_bytes()
    }

    /// The length of a block hash that fits, in bytes; its hex is twice as long.
    pub fn hash_len(&self) -> usize {
        self.hash_len
    }

    /// The length of a key, in bytes, without the NUL behind it.
    pub fn key_len(&self) -> usize {
        self.prefix.len() + 2 * self.hash_len
    }

    /// The identity of the pages' bytes: `kvb1` pages only.
    pub fn id(&self) -> Option<&[u8; 16]> {
        self.id.as_ref()
    }
}

/// The front of page keys and groups that operators read and select by.
fn readable(naming: &Naming) -> String {
    match naming.scheme {
        Scheme::Trtllm => format!("{}/{}/", naming.namespace, naming.model_key),
        Scheme::Kvb1 => format!(
            "kvb1/{}/{}/",
            percent_escape(&naming.namespace),
            percent_escape(&naming.model_key)
        ),
    }
}
