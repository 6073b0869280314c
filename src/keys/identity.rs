//! What a page is besides its tokens: model, numbers, geometry, shard. The parts of its name.

use super::{Scheme, frame};
use crate::error::{Result, bail};

/// What all pages of a server have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Naming {
    /// How keys are spelled.
    pub scheme: Scheme,
    /// The pool's users that share pages.
    pub namespace: String,
    /// The checkpoint, as operators call it.
    pub model_key: String,
    /// The configured digest of the weights; may be empty. Only `kvb1` names it.
    pub weights_digest: String,
    /// What stands behind a page's payload.
    pub page_format: PageFormat,
    /// Tokens per block, at least 1.
    pub tokens_per_block: u32,
}

/// Whether a stored page carries a seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PageFormat {
    /// The payload alone.
    Raw,
    /// The payload and a footer that proves it whole.
    Sealed,
}

impl PageFormat {
    /// The names of both formats.
    pub const NAMES: &'static [&'static str] = &["raw", "sealed"];

    /// The format of that [`name`](Self::name), exactly as spelled there.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Raw, Self::Sealed]
            .into_iter()
            .find(|format| format.name() == name)
    }

    /// The name in configurations and identities.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Sealed => "sealed",
        }
    }
}

/// Which part of the attention heads a page holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shard {
    /// One rank's slice. Under attention data parallelism every owner is rank 0 of a world of 1.
    Rank {
        /// The attention world size, at least 1.
        world: u32,
        /// The rank, below `world`.
        rank: u32,
    },
    /// Bytes that are the same on every rank, stored once.
    Replicated,
}

/// The shape of one page.
#[derive(Debug, Clone, Copy)]
pub struct Geometry<'a> {
    /// The element type, see [`is_number_format`].
    pub number_format: &'a str,
    /// The engine's word for the order inside a region; may be empty.
    pub layout_tag: &'a str,
    /// The layer group's id.
    pub layer_group: u32,
    /// The attention window in tokens, 0 for full attention.
    pub window: u32,
    /// The group's layers, in order.
    pub layer_ids: &'a [u32],
    /// The bytes of each region in page order, without the seal.
    pub region_sizes: &'a [u64],
}

impl Naming {
    /// Checks what does not depend on a page.
    pub(super) fn check(&self) -> Result<()> {
        if self.tokens_per_block == 0 {
            bail!(
                InvalidArgument,
                "tokens_per_block is 0; a block has at least one token"
            );
        }
        if self.scheme != Scheme::Trtllm {
            return Ok(());
        }
        if self.page_format == PageFormat::Sealed {
            bail!(
                ConfigInvalid,
                "page_format \"sealed\" needs key_scheme \"kvb1\": its peers store and expect raw pages under trtllm keys"
            );
        }
        for (field, name) in [
            ("namespace", &self.namespace),
            ("model_key", &self.model_key),
        ] {
            // trtllm does not escape, and a pool that takes C strings would cut the key here.
            if name.contains('\0') {
                bail!(ConfigInvalid, "{field} {name:?} contains a NUL character");
            }
        }
        Ok(())
    }
}

impl Shard {
    /// Checks the numbers and spells the shard as keys and identities do.
    pub(super) fn spell(self) -> Result<String> {
        match self {
            Self::Rank { world, rank } if rank < world => Ok(format!("w{world}r{rank}")),
            Self::Rank { world, rank } => bail!(
                InvalidArgument,
                "rank {rank} is not within a world of {world} ranks"
            ),
            Self::Replicated => Ok("replicated".to_owned()),
        }
    }
}

/// The identity of a page's bytes under `kvb1`: 16 bytes over everything that must agree before one
/// server may use another's page. Every part is framed by its length, so parts cannot run together.
pub(super) fn page_id(naming: &Naming, geometry: &Geometry<'_>, shard: Shard) -> Result<[u8; 16]> {
    if !is_number_format(geometry.number_format) {
        bail!(
            InvalidArgument,
            "number_format {:?} is unknown; it is one of {}, or custom:<text>",
            geometry.number_format,
            NUMBER_FORMATS.join(", ")
        );
    }
    let mut hasher = blake3::Hasher::new_derive_key("kvbridge 1 pages");
    let mut part = |bytes: &[u8]| {
        frame(bytes, |bytes| {
            hasher.update(bytes);
        })
    };
    part(naming.namespace.as_bytes())?;
    part(naming.model_key.as_bytes())?;
    part(naming.weights_digest.as_bytes())?;
    part(geometry.number_format.as_bytes())?;
    part(geometry.layout_tag.as_bytes())?;
    part(naming.page_format.name().as_bytes())?;
    part(shard.spell()?.as_bytes())?;
    part(&geometry.layer_group.to_le_bytes())?;
    part(&geometry.window.to_le_bytes())?;
    part(&count(geometry.layer_ids.len())?)?;
    for layer in geometry.layer_ids {
        part(&layer.to_le_bytes())?;
    }
    part(&naming.tokens_per_block.to_le_bytes())?;
    part(&count(geometry.region_sizes.len())?)?;
    for size in geometry.region_sizes {
        part(&size.to_le_bytes())?;
    }
    let mut id = [0; 16];
    hasher.finalize_xof().fill(&mut id);
    Ok(id)
}

fn count(length: usize) -> Result<[u8; 4]> {
    match u32::try_from(length) {
        Ok(length) => Ok(length.to_le_bytes()),
        Err(_) => bail!(InvalidArgument, "{length} layers or regions are too many"),
    }
}

const NUMBER_FORMATS: [&str; 10] = [
    "float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2", "int8", "nvfp4", "mxfp8", "mxfp4",
    "int4",
];

/// Whether `format` names an element type that `kvb1` knows: a fixed list, and `custom:<text>` with
/// any text that is not empty.
pub fn is_number_format(format: &str) -> bool {
    NUMBER_FORMATS.contains(&format)
        || format
            .strip_prefix("custom:")
            .is_some_and(|text| !text.is_empty())
}

/// `text` with every UTF-8 byte outside `[A-Za-z0-9._-]` as `%XX`, upper case.
pub fn percent_escape(text: &str) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-') {
            escaped.push(char::from(byte));
        } else {
            escaped.push('%');
            escaped.push(char::from(DIGITS[usize::from(byte >> 4)]));
            escaped.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
    escaped
}
