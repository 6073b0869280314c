//! The C ABI: the boundary between the host's world and ours. The header
//! `include/kvbridge/kvbridge.h` is generated from this folder; the comments here are its manual.
//!
//! The pieces: `guard` is the one way in, `catch` the one way out, `handle` makes and checks handles, `args` reads and
//! writes through the host's pointers, [`status`] pins the numbers, `message` keeps the texts,
//! `steps` reads the steps of a pass, [`log`] speaks to the host's callback. On these stands one file per noun. There is no logic
//! here beyond translation and checking.

#![allow(unsafe_code, reason = "this is where the host's pointers are followed")]
#![allow(non_camel_case_types, reason = "types carry their C names")]
#![allow(
    clippy::missing_safety_doc,
    reason = "what all callers promise is said once, in the header's conventions"
)]

pub mod config;
pub mod explain;
pub mod fence;
pub mod global;
pub mod host;
pub mod keys;
pub mod layout;
pub mod log;
pub mod metadata;
pub mod plain;
pub mod plugin;
pub mod scheduler;
pub mod stats;
pub mod status;
pub mod store;
pub mod worker;

mod args;
mod guard;
mod handle;
mod message;
mod steps;
