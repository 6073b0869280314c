//! A native client of Mooncake's pool: the pool's own protocol over TCP, with nothing of Mooncake in the
//! process. `docs/design/wire.md` is the page for maintainers, `docs/mooncake-tcp.md` the one for operators.
//!
//! | file | story |
//! | --- | --- |
//! | `family.rs` | versions of Mooncake whose messages differ |
//! | `pack/` | struct_pack, the master's serialisation |
//! | `messages.rs` | the master's calls: the one table of layouts |
//! | `socket.rs` | TCP sockets that never block unless told to |
//! | `rpc.rs` | calls over a connection to the master |
//! | `probe.rs` | which layouts a master has |
//! | `master.rs` | the master: its calls in batches, connections that come and go |
//! | `transfer/` | the bytes of objects: to and from the memory of their owners |
//! | `spots.rs`, `get.rs`, `put.rs` | what a get and a put are made of |
//! | `disk/` | objects on the disks of other clients |
//! | `alive.rs` | memory that is lent to the pool |
//! | `client.rs`, `handle.rs`, `open.rs` | a client, the stores on it, and the way to one |
//! | `codes.rs` | what a call without an answer means |

mod alive;
mod client;
mod codes;
mod disk;
pub mod family;
mod get;
mod handle;
pub mod master;
pub mod messages;
mod open;
pub mod pack;
mod probe;
mod put;
pub mod rpc;
pub mod segment;
mod socket;
mod spots;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
pub mod transfer;

pub use open::{Connection, PATIENCE, capabilities};
