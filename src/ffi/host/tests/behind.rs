//! A host's store: an embedded pool behind a table, which tells what it was asked.

use super::*;

/// What stands behind the functions of a test: a pool of ours, and what was seen.
pub(super) struct Behind {
    pub(super) pool: Arc<Pool>,
    pub(super) calls: AtomicUsize,
    pub(super) releases: AtomicUsize,
    pub(super) ranges: Mutex<Vec<(u64, u64, bool)>>,
    pub(super) seen: Mutex<Vec<Seen>>,
}

/// What a put was given.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) keys: Vec<String>,
    pub(super) groups: Vec<String>,
    pub(super) pieces: usize,
    pub(super) ends: Vec<usize>,
    pub(super) soft_pin_ttl_ms: u64,
    pub(super) tenant: String,
}

impl Behind {
    pub(super) fn new() -> Box<Self> {
        let clock = Arc::new(SystemClock::new());
        let pool = Pool::new(8 << 20, 0.05, Duration::from_secs(10), clock).unwrap();
        Box::new(Self {
            pool,
            calls: AtomicUsize::new(0),
            releases: AtomicUsize::new(0),
            ranges: Mutex::default(),
            seen: Mutex::default(),
        })
    }

    pub(super) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    pub(super) fn releases(&self) -> usize {
        self.releases.load(Ordering::Relaxed)
    }
}

/// A batch as the functions of a host see it.
pub(super) struct Seeing<'a> {
    pub(super) behind: &'a Behind,
    pub(super) call: &'a kvb_store_call,
    pub(super) keys: Keys,
}

/// # Safety
/// Called with a `Behind` and a batch.
pub(super) unsafe fn seeing<'a>(context: *mut c_void, call: *const kvb_store_call) -> Seeing<'a> {
    // SAFETY: the library keeps what its header says.
    unsafe {
        let (behind, call) = (&*context.cast::<Behind>(), &*call);
        behind.calls.fetch_add(1, Ordering::Relaxed);
        assert_eq!(call.struct_size as usize, size_of::<kvb_store_call>());
        let mut keys = Keys::new();
        for key in std::slice::from_raw_parts(call.keys, call.count) {
            let text = CStr::from_ptr(key.data.cast());
            assert_eq!(text.to_bytes().len(), key.size);
            keys.push(text.to_bytes());
        }
        let outcomes = std::slice::from_raw_parts(call.outcomes, call.count);
        assert!(outcomes.iter().all(|&code| code == KVB_STORE_NO_ANSWER));
        Seeing { behind, call, keys }
    }
}

impl Seeing<'_> {
    pub(super) fn ends(&self) -> &[usize] {
        // SAFETY: as above, for puts and gets.
        unsafe { std::slice::from_raw_parts(self.call.piece_ends, self.call.count) }
    }

    pub(super) fn pieces(&self) -> &[kvb_piece] {
        let count = self.ends().last().copied().unwrap_or(0);
        if count == 0 {
            return &[];
        }
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.call.pieces, count) }
    }

    pub(super) fn groups(&self) -> Vec<String> {
        if self.call.groups.is_null() {
            return Vec::new();
        }
        // SAFETY: as above.
        let groups = unsafe { std::slice::from_raw_parts(self.call.groups, self.call.count) };
        // SAFETY: as above.
        let text = |group: &kvb_bytes| unsafe { CStr::from_ptr(group.data.cast()) };
        groups
            .iter()
            .map(|group| text(group).to_str().unwrap().to_owned())
            .collect()
    }

    pub(super) fn answer(&self, outcomes: impl Iterator<Item = i32>) {
        for (index, outcome) in outcomes.enumerate() {
            // SAFETY: as many as keys.
            unsafe { self.call.outcomes.add(index).write(outcome) };
        }
    }
}

pub(super) unsafe extern "C-unwind" fn exist(
    context: *mut c_void,
    call: *const kvb_store_call,
) -> i32 {
    // SAFETY: called by the library.
    let seeing = unsafe { seeing(context, call) };
    let mut out = Vec::new();
    seeing.behind.pool.exist(&seeing.keys, &mut out);
    seeing.answer(out.iter().map(|presence| match presence {
        Presence::Present => KVB_PRESENT,
        Presence::Absent => KVB_ABSENT,
        Presence::Unknown(_) => KVB_UNKNOWN,
    }));
    0
}

pub(super) unsafe extern "C-unwind" fn put(
    context: *mut c_void,
    call: *const kvb_store_call,
) -> i32 {
    // SAFETY: called by the library.
    let seeing = unsafe { seeing(context, call) };
    // SAFETY: as above; a terminated text.
    let tenant = unsafe { CStr::from_ptr(seeing.call.tenant.data.cast()) };
    seeing.behind.seen.lock().push(Seen {
        keys: seeing
            .keys
            .iter()
            .map(|key| String::from_utf8_lossy(key).into_owned())
            .collect(),
        groups: seeing.groups(),
        pieces: seeing.pieces().len(),
        ends: seeing.ends().to_vec(),
        soft_pin_ttl_ms: seeing.call.soft_pin_ttl_ms,
        tenant: tenant.to_str().unwrap().to_owned(),
    });
    let mut sources: Vec<_> = seeing
        .pieces()
        .iter()
        // SAFETY: the pieces are readable during the call.
        .map(|piece| unsafe { Source::from_raw(piece.address, piece.size) })
        .collect();
    let mut out = Vec::new();
    let pieces = Pieces::grouped(&mut sources, seeing.ends());
    let options = PutOptions::default();
    let pool = &seeing.behind.pool;
    pool.put(&seeing.keys, pieces, &options, &mut out);
    seeing.answer(out.iter().map(|outcome| match outcome {
        PutOutcome::Stored => KVB_PUT_STORED,
        PutOutcome::AlreadyThere => KVB_PUT_ALREADY_THERE,
        PutOutcome::NoSpace => KVB_PUT_NO_SPACE,
        PutOutcome::Failed(_) => KVB_PUT_FAILED,
    }));
    0
}

pub(super) unsafe extern "C-unwind" fn get(
    context: *mut c_void,
    call: *const kvb_store_call,
) -> i32 {
    // SAFETY: called by the library.
    let seeing = unsafe { seeing(context, call) };
    let mut targets: Vec<_> = seeing
        .pieces()
        .iter()
        // SAFETY: the pieces are writable during the call, and nobody else's.
        .map(|piece| unsafe { Target::from_raw(piece.address, piece.size) })
        .collect();
    let mut out = Vec::new();
    let pieces = Pieces::grouped(&mut targets, seeing.ends());
    seeing.behind.pool.get(&seeing.keys, pieces, &mut out);
    for (index, outcome) in out.iter().enumerate() {
        if let GetOutcome::Landed(size) | GetOutcome::WrongSize(size) = outcome {
            // SAFETY: as many as keys.
            unsafe { seeing.call.sizes.add(index).write(*size) };
        }
    }
    seeing.answer(out.iter().map(|outcome| match outcome {
        GetOutcome::Landed(_) => KVB_GET_LANDED,
        GetOutcome::Missing => KVB_GET_MISSING,
        GetOutcome::WrongSize(_) => KVB_GET_WRONG_SIZE,
        GetOutcome::Failed(_) => KVB_GET_FAILED,
    }));
    0
}

pub(super) unsafe extern "C-unwind" fn remove(
    context: *mut c_void,
    call: *const kvb_store_call,
) -> i32 {
    // SAFETY: called by the library.
    let seeing = unsafe { seeing(context, call) };
    let mut out = Vec::new();
    let force = seeing.call.force == 1;
    seeing.behind.pool.remove(&seeing.keys, force, &mut out);
    seeing.answer(out.iter().map(|outcome| match outcome {
        RemoveOutcome::Removed => KVB_REMOVE_REMOVED,
        RemoveOutcome::Missing => KVB_REMOVE_MISSING,
        RemoveOutcome::Leased => KVB_REMOVE_LEASED,
        RemoveOutcome::Failed(_) => KVB_REMOVE_FAILED,
    }));
    0
}

pub(super) unsafe extern "C-unwind" fn register(
    context: *mut c_void,
    address: u64,
    size: u64,
) -> i32 {
    // SAFETY: called by the library.
    let behind = unsafe { &*context.cast::<Behind>() };
    behind.ranges.lock().push((address, size, true));
    0
}

pub(super) unsafe extern "C-unwind" fn unregister(
    context: *mut c_void,
    address: u64,
    size: u64,
) -> i32 {
    // SAFETY: called by the library.
    let behind = unsafe { &*context.cast::<Behind>() };
    behind.ranges.lock().push((address, size, false));
    if size == 1 { -7 } else { 0 }
}

pub(super) unsafe extern "C-unwind" fn up(_: *mut c_void) -> i32 {
    0
}

pub(super) unsafe extern "C-unwind" fn down(_: *mut c_void) -> i32 {
    -55
}

pub(super) unsafe extern "C-unwind" fn release(context: *mut c_void) {
    // SAFETY: called by the library.
    let behind = unsafe { &*context.cast::<Behind>() };
    behind.releases.fetch_add(1, Ordering::Relaxed);
}

pub(super) fn whole(behind: &Behind) -> kvb_store_table {
    kvb_store_table {
        struct_size: size_of::<kvb_store_table>() as u32,
        context: ptr::from_ref(behind).cast_mut().cast(),
        exist: Some(exist),
        put: Some(put),
        get: Some(get),
        remove: Some(remove),
        register_memory: Some(register),
        unregister_memory: Some(unregister),
        health: Some(up),
        release: Some(release),
        pieces_per_key: 16,
        keys_per_call: 0,
        soft_pin_ttl: 1,
        groups: 1,
        tenant: 1,
        device_memory: 0,
        serial: 0,
    }
}
