//! Mooncake's own library, loaded at run time: the way to a pool over RDMA, NVLink or TCP as that
//! library was built.
//!
//! [`Connection`] opens a client as a configuration asks for and gives out handles on it, each a
//! [`Store`](super::Store). [`Library`] and [`Client`] are what it is made of.
//!
//! `symbols` finds the functions; `signals`, `watcher` and `waits` keep the host's signals and its
//! environment its own, by `bindings` where the library leaves no other way; `address` finds the
//! master and our own name, `setup` connects; `lists` holds what a call passes, `calls` makes it, and `codes` knows
//! what its answers mean; `exit` keeps calls out of a process that ends. What the library does to a process, and what is done about it, stands in
//! `docs/design/mooncake.md`.

#![allow(
    unsafe_code,
    reason = "a foreign library is loaded and called, and signal masks are the system's"
)]

pub(in crate::store) mod address;
mod bindings;
mod calls;
mod client;
pub(in crate::store) mod codes;
mod exit;
mod library;
mod lists;
pub(in crate::store) mod setup;
pub(in crate::store) mod signals;
mod symbols;
mod waits;
mod watcher;

pub use calls::capabilities;
pub use client::Client;
pub use library::Library;
pub use setup::{Connection, Patience};
