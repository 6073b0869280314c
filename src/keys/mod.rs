//! Stand-in for the keys module until it is merged.

pub mod arena;

pub use arena::Keys;
