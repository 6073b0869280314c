//! What calls need: one of each handle in a state in which every function can succeed, and memory
//! for arguments that shows when somebody wrote where nothing was to be written.

use crate::header::{Function, Header};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Tokens per block.
pub const BLOCK: u64 = 4;
const CONFIG: &str = r#"{"model_key": "m", "global_segment_size": "1MiB",
    "staging_buffer_bytes": "64KiB", "kvbridge": {"pool": "boundary"}}"#;

/// The library: its header, and its functions by name.
pub struct Library {
    pub header: Header,
    functions: BTreeMap<String, usize>,
}

impl Library {
    pub fn get() -> &'static Self {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        LIBRARY.get_or_init(|| {
            let header = Header::read();
            let entry = kvbridge::ffi::plugin::kvb_plugin_entry;
            let table = entry(kvbridge::ffi::global::KVB_ABI_VERSION);
            let first = 2 * size_of::<u32>();
            let slots = size_of_val_at(table) - first;
            assert_eq!(slots / size_of::<usize>(), header.table.len());
            let mut functions = BTreeMap::new();
            for (index, name) in header.table.iter().enumerate() {
                // SAFETY: the table has that many slots.
                let address = unsafe { *table.byte_add(first).cast::<usize>().add(index) };
                functions.insert(name.clone(), address);
            }
            functions.insert("kvb_plugin_entry".to_owned(), entry as *const () as usize);
            Self { header, functions }
        })
    }

    pub fn function(&self, name: &str) -> &Function {
        let mut known = self.header.functions.iter();
        known.find(|function| function.name == name).unwrap()
    }

    /// Calls a function. Every parameter of the header fits into one machine word.
    pub fn call(&self, name: &str, arguments: &[u64]) -> i32 {
        let address = self.functions[name];
        macro_rules! as_words {
            ($($count:literal: $($index:literal)*;)*) => {
                match arguments.len() {
                    $($count => {
                        type Words = unsafe extern "C" fn($(as_words!(@ $index)),*) -> u64;
                        // SAFETY: words are passed as any integer or pointer is; the result's upper half is ignored.
                        unsafe {
                            let function: Words = std::mem::transmute(address);
                            function($(arguments[$index]),*)
                        }
                    })*
                    more => panic!("{name} has {more} parameters"),
                }
            };
            (@ $index:literal) => { u64 };
        }
        let answer = as_words! {
            0: ; 1: 0; 2: 0 1; 3: 0 1 2; 4: 0 1 2 3; 5: 0 1 2 3 4; 6: 0 1 2 3 4 5;
            7: 0 1 2 3 4 5 6; 8: 0 1 2 3 4 5 6 7; 9: 0 1 2 3 4 5 6 7 8; 10: 0 1 2 3 4 5 6 7 8 9;
        };
        answer as i32
    }

    /// As [`Library::call`], where anything but success is a defect of the test.
    pub fn must(&self, name: &str, arguments: &[u64]) {
        let status = self.call(name, arguments);
        assert_eq!(status, 0, "{}", last_error());
    }
}

fn size_of_val_at(table: *const kvbridge::ffi::plugin::kvb_api) -> usize {
    // SAFETY: the library's own table.
    unsafe { (*table).struct_size as usize }
}

/// The text of this thread's latest failure.
pub fn last_error() -> String {
    let mut text = vec![0_u8; 4096];
    let arguments = [text.as_mut_ptr() as u64, text.len() as u64, 0];
    Library::get().call("kvb_last_error", &arguments);
    let end = text.iter().position(|byte| *byte == 0).unwrap();
    String::from_utf8(text[..end].to_vec()).unwrap()
}

/// Makes a text of our own the latest failure, so that a call that leaves none is noticed.
pub fn forget_error(function: &str) {
    match function {
        "kvb_layout_new" => Library::get().call("kvb_metadata_decode", &[0, 0, 0]),
        _ => Library::get().call("kvb_layout_new", &[0, 0]),
    };
}

/// Memory for the arguments of one call. What is not handed out is filled, too.
pub struct Arena {
    memory: Box<[u64]>,
    used: usize,
}

const FILL: u64 = 0xa5a5_a5a5_a5a5_a5a5;
/// Room behind each piece: structs of later versions are that much longer.
pub const SPARE: usize = 64;

impl Arena {
    pub fn new() -> Self {
        Self {
            memory: vec![FILL; 4096].into_boxed_slice(),
            used: 4,
        }
    }

    fn take(&mut self, bytes: usize) -> u64 {
        let start = self.used;
        self.used += (bytes + SPARE).div_ceil(8).next_multiple_of(2) + 4;
        assert!(self.used <= self.memory.len());
        self.memory[start..].as_mut_ptr() as u64
    }

    /// Room for a result.
    pub fn room(&mut self, bytes: usize) -> u64 {
        self.take(bytes)
    }

    /// Zeroes, with more of them behind.
    pub fn zeroed(&mut self, bytes: usize) -> u64 {
        let address = self.take(bytes);
        for at in 0..(bytes + SPARE) as u64 {
            put(address + at, 0, 1);
        }
        address
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> u64 {
        let address = self.take(bytes.len());
        for (at, byte) in bytes.iter().enumerate() {
            put(address + at as u64, u64::from(*byte), 1);
        }
        address
    }

    pub fn snapshot(&self) -> Vec<u64> {
        self.memory.to_vec()
    }

    /// The addresses of the bytes that differ from an earlier snapshot.
    pub fn changed(&self, before: &[u64]) -> Vec<u64> {
        let pairs = self.memory.iter().zip(before);
        pairs
            .filter(|(now, before)| now != before)
            .flat_map(|(now, before)| {
                let bytes = now.to_ne_bytes().into_iter().zip(before.to_ne_bytes());
                let start = std::ptr::from_ref(now) as u64;
                let changed = (start..)
                    .zip(bytes)
                    .filter(|(_, (now, before))| now != before);
                changed.map(|(address, _)| address)
            })
            .collect()
    }
}

/// Writes the lower `size` bytes of `value` to memory of an [`Arena`].
pub fn put(address: u64, value: u64, size: usize) {
    // SAFETY: the test's own addresses.
    unsafe {
        let value = value.to_ne_bytes();
        std::ptr::copy_nonoverlapping(value.as_ptr(), address as *mut u8, size);
    }
}

pub fn word(address: u64) -> u64 {
    // SAFETY: the test's own addresses.
    unsafe { (address as *const u64).read_unaligned() }
}

/// One of each handle. The worker has its layout and has started the loads of an empty pass.
pub struct World {
    pub handles: BTreeMap<&'static str, u64>,
    pub memory: Vec<u64>,
    pub encoded: Vec<u8>,
    /// A file with the configuration.
    pub path: String,
    /// The configuration is of a pool behind functions of the host.
    pub of_host: bool,
}

impl World {
    /// For calls of `function`: some need a state of their own.
    pub fn new(function: &str) -> Self {
        let path = format!("{}/boundary.json", env!("CARGO_TARGET_TMPDIR"));
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| std::fs::write(&path, CONFIG).unwrap());
        let mut world = Self {
            handles: BTreeMap::new(),
            memory: vec![0; 1024],
            encoded: Vec::new(),
            path,
            of_host: false,
        };
        let library = Library::get();
        let mut arena = Arena::new();
        let json = arena.bytes(CONFIG.as_bytes());
        world.make(
            "kvb_config",
            "kvb_config_from_json",
            &[json, CONFIG.len() as u64],
        );
        world.make("kvb_layout", "kvb_layout_new", &[0]);
        let fill = |world: &World, function: &str| {
            let mut arena = Arena::new();
            let function = library.function(function);
            let arguments = world.arguments(function, &mut arena);
            library.must(&function.name, &arguments);
            let made = function.parameters.iter().zip(&arguments);
            let mut made = made.filter(|(parameter, _)| parameter.c_type.ends_with("**"));
            made.next().map_or(0, |(_, out)| word(*out))
        };
        fill(&world, "kvb_layout_add_group");
        fill(&world, "kvb_layout_add_region");
        for (noun, function) in [
            ("kvb_store", "kvb_store_open"),
            ("kvb_worker", "kvb_worker_new"),
        ] {
            let made = fill(&world, function);
            world.handles.insert(noun, made);
        }
        fill(&world, "kvb_worker_register_layout");
        let made = fill(&world, "kvb_scheduler_new");
        world.handles.insert("kvb_scheduler", made);
        let made = fill(&world, "kvb_scheduler_build");
        world.handles.insert("kvb_metadata", made);
        let (room, needed) = (arena.room(1024), arena.room(8));
        library.must("kvb_metadata_encode", &[made, room, 1024, needed]);
        let size = word(needed);
        // SAFETY: within the arena's piece.
        world.encoded =
            unsafe { std::slice::from_raw_parts(room as *const u8, size as usize) }.to_vec();
        fill(&world, "kvb_worker_bind");
        fill(&world, "kvb_worker_start_load");
        match function {
            "kvb_worker_register_layout" => {
                fill(&world, "kvb_worker_unregister_layout");
            }
            "kvb_scheduler_new" => {
                let scheduler = world.handles["kvb_scheduler"];
                library.call("kvb_scheduler_free", &[scheduler]);
                world.handles.remove("kvb_scheduler");
            }
            // The one that takes a table; another test opens pools without.
            "kvb_store_open" => {
                library.call("kvb_config_free", &[world.handles["kvb_config"]]);
                let text = br#"{"model_key": "m", "kvbridge": {"store": "host"}}"#;
                let json = arena.bytes(text);
                let inputs = [json, text.len() as u64];
                world.make("kvb_config", "kvb_config_from_json", &inputs);
                world.of_host = true;
            }
            // The layout has its group already.
            "kvb_layout_add_group" => {
                library.call("kvb_layout_free", &[world.handles["kvb_layout"]]);
                world.make("kvb_layout", "kvb_layout_new", &[0]);
            }
            _ => {}
        }
        world
    }

    fn make(&mut self, noun: &'static str, function: &str, inputs: &[u64]) {
        let mut arena = Arena::new();
        let out = arena.room(8);
        Library::get().must(function, &[inputs, &[out]].concat());
        self.handles.insert(noun, word(out));
    }

    /// Every handle still does what it is for.
    pub fn probe(&self) {
        let library = Library::get();
        let mut arena = Arena::new();
        let (room, out) = (arena.room(1024), arena.zeroed(256));
        for (&noun, &handle) in &self.handles {
            put(out, 256, 4);
            match noun {
                "kvb_config" => library.must("kvb_config_render", &[handle, room, 1024, out]),
                "kvb_layout" => {
                    // A group that is not there: the layout is looked at and stays as it is.
                    let region = arena.zeroed(40);
                    let add = ["kvb_layout_add_region", "kvb_layout_add_replicated_region"];
                    for add in add {
                        assert_eq!(library.call(add, &[handle, 77, region]), 1);
                        let text = last_error();
                        assert!(text.contains("77"), "{text}");
                    }
                }
                "kvb_store" => library.must("kvb_store_stats", &[handle, out]),
                "kvb_worker" => {
                    library.must("kvb_worker_stats", &[handle, out]);
                    library.must("kvb_worker_take_failed_async_loads", &[handle, room]);
                }
                "kvb_scheduler" => library.must("kvb_scheduler_reset", &[handle, 1 << 40]),
                "kvb_metadata" => library.must("kvb_metadata_summary", &[handle, out]),
                other => panic!("no probe for {other}"),
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for (noun, handle) in &self.handles {
            Library::get().call(&format!("{noun}_free"), &[*handle]);
        }
    }
}

static RUNNING: AtomicPtr<i8> = AtomicPtr::new(std::ptr::null_mut());

/// Names the call that is about to be made, for the case that it ends the process.
pub fn announce(label: &str) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler makes only calls that a handler may make.
        unsafe {
            for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT] {
                libc::signal(signal, crashed as *const () as usize);
            }
        }
    });
    let label = CString::new(format!("crashed in: {label}\n")).unwrap();
    let before = RUNNING.swap(label.into_raw().cast(), Ordering::AcqRel);
    if !before.is_null() {
        // SAFETY: made above by `into_raw`; calls that may crash are made under one lock.
        drop(unsafe { CString::from_raw(before.cast()) });
    }
}

extern "C" fn crashed(_: i32) {
    let label = RUNNING.load(Ordering::Acquire);
    // SAFETY: a terminated text, and calls that a signal handler may make.
    unsafe {
        libc::write(2, label.cast(), libc::strlen(label.cast()));
        libc::_exit(101);
    }
}
