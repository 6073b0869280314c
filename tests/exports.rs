//! What the shipped library exports, and that the plugin table is the same list.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code, reason = "loads the library as a host does")]

use kvbridge::ffi::global::KVB_ABI_VERSION;
use kvbridge::ffi::plugin::kvb_api;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every function in the order of the table. Append; a released line never moves or changes.
const TABLE: &[&str] = &[
    "kvb_version",
    "kvb_abi_version",
    "kvb_last_error",
    "kvb_set_log",
    "kvb_config_from_file",
    "kvb_config_from_json",
    "kvb_config_render",
    "kvb_config_free",
    "kvb_layout_new",
    "kvb_layout_add_group",
    "kvb_layout_add_region",
    "kvb_layout_add_replicated_region",
    "kvb_layout_add_pool",
    "kvb_layout_free",
    "kvb_store_open",
    "kvb_store_exist",
    "kvb_store_put",
    "kvb_store_get",
    "kvb_store_remove",
    "kvb_store_stats",
    "kvb_store_free",
    "kvb_worker_new",
    "kvb_worker_declarations",
    "kvb_worker_register_layout",
    "kvb_worker_unregister_layout",
    "kvb_worker_lookup",
    "kvb_worker_bind",
    "kvb_worker_start_load",
    "kvb_worker_wait_for_save",
    "kvb_worker_take_failed_loads",
    "kvb_worker_get_finished",
    "kvb_worker_take_failed_async_loads",
    "kvb_worker_stats",
    "kvb_worker_prometheus",
    "kvb_worker_shutdown",
    "kvb_worker_free",
    "kvb_scheduler_new",
    "kvb_scheduler_match",
    "kvb_scheduler_allocated",
    "kvb_scheduler_cancel_load",
    "kvb_scheduler_build",
    "kvb_scheduler_finished",
    "kvb_scheduler_reset",
    "kvb_scheduler_free",
    "kvb_metadata_encode",
    "kvb_metadata_decode",
    "kvb_metadata_summary",
    "kvb_metadata_free",
    "kvb_keys_hash_blocks",
    "kvb_keys_page_key",
    "kvb_scheduler_reserve",
    "kvb_scheduler_release_reservation",
    "kvb_worker_explain",
    "kvb_store_wrap_faulty",
    "kvb_store_put_with_options",
];
const ENTRY: &str = "kvb_plugin_entry";

/// Builds the library the way it is shipped, but for the profile.
fn library() -> PathBuf {
    // Beside the folder for temporary files: the target folder of this very test run.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let built = Command::new(env!("CARGO"))
        .args(["rustc", "--lib", "--crate-type", "cdylib", "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}");
    target.join("debug/libkvbridge.so")
}

fn output(program: &str, arguments: &[&str], file: &Path) -> String {
    let output = Command::new(program)
        .args(arguments)
        .arg(file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{program} failed");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_library_exports_its_functions_and_nothing_else() {
    let library = library();

    let symbols = output("nm", &["-D", "--defined-only", "--format=posix"], &library);
    let mut exported: Vec<_> = symbols
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let mut expected: Vec<_> = TABLE.iter().copied().chain([ENTRY]).collect();
    exported.sort_unstable();
    expected.sort_unstable();
    assert_eq!(exported, expected);

    let dynamic = output("readelf", &["-d", "-W"], &library);
    let soname = format!("soname: [libkvbridge.so.{KVB_ABI_VERSION}]");
    assert!(dynamic.contains(&soname), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    // What users must have. The C++ runtime is for containing what their functions throw.
    let mut needed: Vec<_> = dynamic
        .lines()
        .filter_map(|line| line.split_once("Shared library: [")?.1.strip_suffix(']'))
        .collect();
    needed.retain(|name| !name.starts_with("ld-linux"));
    needed.sort_unstable();
    let known = ["libc.so.6", "libgcc_s.so.1", "libm.so.6", "libstdc++.so.6"];
    assert!(needed.contains(&"libstdc++.so.6"), "{needed:?}");
    assert!(needed.iter().all(|name| known.contains(name)), "{needed:?}");

    // The table holds exactly these functions, in this order.
    let path = CString::new(library.into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: our own library, whose symbols have the types they are used with.
    unsafe {
        let opened = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!opened.is_null());
        let symbol = |name: &str| {
            let name = CString::new(name).unwrap();
            libc::dlsym(opened, name.as_ptr())
        };
        let entry: extern "C" fn(u32) -> *const kvb_api = std::mem::transmute(symbol(ENTRY));
        assert!(entry(KVB_ABI_VERSION + 1).is_null());
        let table = entry(KVB_ABI_VERSION);
        let header = 2 * size_of::<u32>();
        assert_eq!(
            size_of::<kvb_api>(),
            header + TABLE.len() * size_of::<usize>()
        );
        assert_eq!((*table).struct_size as usize, size_of::<kvb_api>());
        assert_eq!((*table).abi_version, KVB_ABI_VERSION);
        let slots = table.byte_add(header).cast::<*mut libc::c_void>();
        for (index, name) in TABLE.iter().enumerate() {
            assert_eq!(
                *slots.add(index),
                symbol(name),
                "slot {index} is not {name}"
            );
        }
    }
}
