//! What the targets share: bytes that end where memory ends, metadata that is changed and still
//! whole, and a small server for the calls of the C interface.

pub mod edge;
pub mod mutate;
pub mod server;
