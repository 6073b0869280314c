//! Memory that pages live in and stores read or write.

pub mod memory;
