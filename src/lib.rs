//! kvbridge: a shared pool of KV-cache pages for C++ LLM inference engines.
//!
//! The library is used through its C ABI (`include/kvbridge/kvbridge.h`, made from [`ffi`]).
//! This file is the map of the house; there is no logic in it.
//!
//! The way of the data: tokens → [`keys`] → lookup in the [`store`] → offer of the [`scheduler`] →
//! [`metadata`] → [`worker`] → address pieces of the [`layout`] → slot of [`staging`] → [`store`],
//! and back.
//!
//! Dependencies point one way; `tests/layering.rs` enforces it:
//!
//! | layer | modules | may use |
//! | --- | --- | --- |
//! | leaves | `catch`, `error`, `fork`, `plant`, `recycle`, `sync` | nothing of ours |
//! | pure | `config`, `engine`, `keys`, `layout`, `link`, `metadata`, `page`, `stats` | leaves, pure |
//! | effects | `device`, `lane`, `node`, `staging`, `store` | leaves, pure, effects |
//! | halves | `scheduler`, `worker` | all above, but not each other: they meet in [`link`] and [`metadata`] |
//! | boundary | `ffi` | everything; nothing uses it |
//!
//! `unsafe` stands only where memory or foreign code is met: `ffi`, `device`, the embedded pool's arena,
//! the memory lent to a Mooncake pool, Mooncake's library, `catch`, the way out into the host's functions, and `fork`.

mod catch;
pub mod config;
pub mod device;
pub mod engine;
pub mod error;
pub mod ffi;
mod fork;
pub mod keys;
pub mod lane;
pub mod layout;
pub mod link;
pub mod metadata;
pub mod node;
pub mod page;
#[cfg(not(kvb_plant))]
mod plant;
#[cfg(kvb_plant)]
pub mod plant;
mod recycle;
pub mod scheduler;
pub mod staging;
pub mod stats;
pub mod store;
pub mod sync;
pub mod worker;
