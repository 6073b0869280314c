//! A native client of Mooncake's pool: the pool's own protocol over TCP, with nothing of Mooncake in the
//! process. `docs/design/wire.md` is the page for maintainers, `docs/mooncake-tcp.md` the one for operators.
//!
//! | file | story |
//! | --- | --- |
//! | `family.rs` | versions of Mooncake whose messages differ |
//! | `pack/` | struct_pack, the master's serialisation |
//! | `messages.rs` | the master's calls: the one table of layouts |

pub mod family;
pub mod master;
pub mod messages;
pub mod pack;
pub mod rpc;
mod socket;
pub mod transfer;
