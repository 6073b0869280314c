//! The calls of Mooncake's master and of owners of disks, and what passes over them: the one table of their layouts.
//!
//! `docs/design/wire.md` says what was learned about each, and how.

use super::pack::{Answer, Text, Uuid, record, request, variant};

/// A replica's state from which it can be read.
pub const COMPLETE: i32 = 3;
/// All kinds of replicas, where a call ends or revokes a put.
pub const ALL_REPLICAS: i32 = 4;
/// A client that the master does not know, or whose segments it has given up.
pub const NEEDS_REMOUNT: i32 = 2;
/// [`ReplicateConfig::soft_pin_action`]: pin.
pub const PIN: u8 = 1;
/// [`TaskDone::status`]: it was not carried out.
pub const TASK_FAILED: i32 = 2;

record! {
    /// Memory of a segment.
    pub struct Buffer<'a> {
        /// Bytes.
        size: u64,
        /// The address in its owner's numbers.
        address: u64,
        /// The transport that reaches it.
        protocol: Text<'a>,
        /// Where the owner is asked for the rest.
        endpoint: Text<'a>,
    }
}

record! {
    /// A replica in memory.
    pub struct InMemory<'a> {
        /// Where.
        buffer: Buffer<'a>,
    }
}

record! {
    /// A replica in a file that all clients see.
    pub struct InFile<'a> {
        /// Its path.
        path: Text<'a>,
        /// Bytes.
        size: u64,
    }
}

record! {
    /// A replica on a client's own disk.
    pub struct OnDisk<'a> {
        /// Whose.
        client: Uuid,
        /// Bytes.
        size: u64,
        /// Where that client is asked for it.
        endpoint: Text<'a>,
    }
}

record! {
    /// A replica in a distributed file system.
    pub struct InShard<'a> {
        /// The file.
        path: Text<'a>,
        /// Where in the file.
        offset: u64,
        /// Bytes.
        size: u64,
        /// Bytes that it takes.
        aligned: u64,
        /// Which part.
        shard: i32,
    }
}

variant! {
    /// Where a replica is.
    pub enum Place<'a> {
        /// In memory.
        Memory(InMemory<'a>),
        /// In memory that is reached over fabrics.
        Fabric(InMemory<'a>),
        /// In a file.
        File(InFile<'a>),
        /// On a client's disk.
        Disk(OnDisk<'a>),
        /// In a distributed file system.
        Shard(InShard<'a>) = since V0_3_13,
    }
}

impl Default for Place<'_> {
    fn default() -> Self {
        Self::Memory(InMemory::default())
    }
}

record! {
    /// One copy of an object.
    pub struct Replica<'a> {
        /// Its number.
        id: u64,
        /// Where it is.
        place: Place<'a>,
        /// [`COMPLETE`] or something else.
        status: i32,
    }
}

record! {
    /// All copies of an object.
    pub struct Replicas<'a> {
        /// At least one where the object is complete.
        replicas: Vec<Replica<'a>>,
        /// Milliseconds from the lookup for which nothing of it is given to another object.
        lease_ms: u64,
        /// Of the object's bytes, where its writer gave one.
        checksum: Option<u64> = since V0_3_13,
    }
}

record! {
    /// What a put asks for.
    pub struct ReplicateConfig<'a> {
        /// Copies in memory, at least 1.
        replicas: u64,
        /// Copies over fabrics.
        fabric_replicas: u64,
        /// Copies in a distributed file system.
        shard_replicas: u64 = since V0_3_13,
        /// Evicted after others; how long is the master's choice.
        soft_pin: bool = until V0_3_13,
        /// 0: as the object has it; [`PIN`]; 2: no pin.
        soft_pin_action: u8 = since V0_3_13,
        /// Milliseconds; only with [`PIN`].
        soft_pin_ttl_ms: Option<u64> = since V0_3_13,
        /// Never evicted.
        hard_pin: bool,
        /// Where the copies go first.
        preferred_segments: Vec<Text<'a>>,
        /// Where one copy goes first.
        preferred_segment: Text<'a>,
        /// Where copies over fabrics go first.
        preferred_fabric: Vec<Text<'a>>,
        /// On the writer's machine first.
        prefer_own_machine: bool,
        /// What the bytes are; 0 does not say.
        data_type: u8,
        /// The writer's machine.
        host_id: Text<'a>,
        /// One eviction group per key.
        groups: Option<Vec<Text<'a>>>,
    }
}

record! {
    /// A put that is complete.
    pub struct Written<'a> {
        /// The key.
        key: Text<'a>,
        /// Of the bytes.
        checksum: Option<u64>,
    }
}

record! {
    /// Memory that a client lends.
    pub struct Segment<'a> {
        /// Its name in calls.
        id: Uuid,
        /// Its name for people and preferences.
        name: Text<'a>,
        /// Its first address, in its owner's numbers.
        base: u64,
        /// Bytes.
        size: u64,
        /// Where others ask how to reach it.
        endpoint: Text<'a>,
        /// The transport.
        protocol: Text<'a>,
        /// The owner's machine.
        host_id: Text<'a>,
    }
}

record! {
    /// What a master says to a client that is alive.
    pub struct Pong {
        /// Grows when another master takes over.
        view: i64,
        /// 1: known; [`NEEDS_REMOUNT`].
        status: i32,
    }
}

record! {
    /// Work that the master has for the owner of a segment.
    pub struct Task<'a> {
        /// Its name.
        id: Uuid,
        /// Copying or moving an object.
        kind: i32,
        /// What to do, as JSON.
        payload: Text<'a>,
        /// Milliseconds since 1970.
        created_ms: i64,
        /// How often it may be tried.
        attempts: u32,
    }
}

record! {
    /// What became of a task.
    pub struct TaskDone<'a> {
        /// Which.
        id: Uuid,
        /// [`TASK_FAILED`], or another that we never say.
        status: i32,
        /// Why.
        message: Text<'a>,
    }
}

request! {
    /// Which keys are complete. Renews their leases.
    pub struct Exist<'a> = "BatchExistKey" -> Vec<Answer<bool>> {
        /// At most [`super::master::KEYS_PER_REQUEST`], as in all calls.
        keys: &'a [Text<'a>],
        /// Whose keys; "default" without tenants.
        tenant: Text<'a>,
    }
}

request! {
    /// Where objects are. Renews their leases.
    pub struct Locate<'a> = "BatchGetReplicaList" -> Vec<Answer<Replicas<'m>>> {
        /// Which.
        keys: &'a [Text<'a>],
        /// Whose.
        tenant: Text<'a>,
    }
}

request! {
    /// Takes memory for objects that are about to be written.
    pub struct PutStart<'a> = "BatchPutStart" -> Vec<Answer<Vec<Replica<'m>>>> {
        /// Who writes.
        client: Uuid,
        /// Which.
        keys: &'a [Text<'a>],
        /// Bytes of each.
        sizes: &'a [u64],
        /// What is asked for.
        config: ReplicateConfig<'a>,
        /// Whose.
        tenant: Text<'a>,
    }
}

request! {
    /// Makes objects visible whose bytes were written.
    pub struct PutEnd<'a> = "BatchPutEnd" -> Vec<Answer<()>> {
        /// Who wrote.
        client: Uuid,
        /// Which.
        keys: &'a [Text<'a>] = until V0_3_13,
        /// Which.
        written: &'a [Written<'a>] = since V0_3_13,
        /// [`ALL_REPLICAS`].
        replicas: i32,
        /// Whose.
        tenant: Text<'a>,
    }
}

request! {
    /// Gives back what [`PutStart`] took.
    pub struct PutRevoke<'a> = "BatchPutRevoke" -> Vec<Answer<()>> {
        /// Who wrote.
        client: Uuid,
        /// Which.
        keys: &'a [Text<'a>],
        /// [`ALL_REPLICAS`].
        replicas: i32,
        /// Whose.
        tenant: Text<'a>,
    }
}

request! {
    /// Removes objects.
    pub struct Remove<'a> = "BatchRemove" -> Vec<Answer<()>> {
        /// Which.
        keys: &'a [Text<'a>],
        /// Leased ones, too.
        force: bool,
        /// Whose.
        tenant: Text<'a>,
    }
}

request! {
    /// Lends a segment.
    pub struct Mount<'a> = "MountSegment" -> Answer<()> {
        /// What.
        segment: Segment<'a>,
        /// Whose.
        client: Uuid,
    }
}

request! {
    /// Lends segments again to a master that lost sight of their owner.
    pub struct Remount<'a> = "ReMountSegment" -> Answer<()> {
        /// All of them.
        segments: Vec<Segment<'a>>,
        /// Whose.
        client: Uuid,
    }
}

request! {
    /// Takes a segment back, with all that is stored in it.
    pub struct Unmount = "UnmountSegment" -> Answer<()> {
        /// Which.
        segment: Uuid,
        /// Whose.
        client: Uuid,
    }
}

request! {
    /// This client is alive.
    pub struct Ping = "Ping" -> Answer<Pong> {
        /// Who.
        client: Uuid,
    }
}

request! {
    /// Takes work that the master has for this client.
    pub struct FetchTasks = "FetchTasks" -> Answer<Vec<Task<'m>>> {
        /// Who.
        client: Uuid,
        /// How many at most.
        most: u64,
    }
}

request! {
    /// Says what became of a task.
    pub struct TaskEnded<'a> = "MarkTaskToComplete" -> Answer<()> {
        /// Who.
        client: Uuid,
        /// What.
        done: TaskDone<'a>,
    }
}

request! {
    /// The master's version as it says; always "2.0.0".
    pub struct ServiceReady = "ServiceReady" -> Answer<Text<'m>> {}
}

record! {
    /// Objects that an owner has read from its disk into memory of its own.
    pub struct Staged<'a> {
        /// Its name for all of them together, in [`Unstage`].
        batch: u64,
        /// Where each one lies, in the owner's numbers.
        addresses: Vec<u64>,
        /// Where the owner is asked for the rest, as in [`Buffer`].
        endpoint: Text<'a>,
        /// Milliseconds from the request, after which the memory may be another object's.
        ttl_ms: u64,
    }
}

request! {
    /// Asks the owner of a disk to read objects into its memory. It does so with all of them or none.
    pub struct Stage<'a> = "batch_get_offload_object" of "RealClient" -> Answer<Staged<'m>> {
        /// Which, each behind its tenant and a NUL.
        keys: &'a [Text<'a>],
        /// Bytes of each: exactly.
        sizes: &'a [i64],
    }
}

request! {
    /// Gives back the memory of a batch before its time. Answers whether the owner still knew it.
    pub struct Unstage = "release_offload_buffer" of "RealClient" -> bool {
        /// [`Staged::batch`].
        batch: u64,
    }
}
