//! A client of Mooncake's pool in Rust, by the pool's own protocol over TCP.
//!
//! [`transfer`] moves the bytes of objects between this process and those that lend memory; [`segment`] is the memory that
//! this process lends itself.

pub mod segment;
pub mod transfer;
