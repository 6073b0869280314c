//! Compiles the one file of C++, and sets what only the linker can set.

use std::error::Error;

const CATCH: &str = "src/catch.cc";
const SOURCE: &str = "src/ffi/global.rs";
const CONSTANT: &str = "pub const KVB_ABI_VERSION: u32 = ";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={CATCH}");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .flag("-fvisibility=hidden")
        .warnings_into_errors(true)
        .file(CATCH)
        .try_compile("kvbridge_catch")?;
    println!("cargo:rerun-if-changed={SOURCE}");
    let source = std::fs::read_to_string(SOURCE)?;
    let version: u32 = source
        .lines()
        .find_map(|line| line.strip_prefix(CONSTANT)?.strip_suffix(';'))
        .ok_or_else(|| format!("{SOURCE} lacks the line {CONSTANT}…;"))?
        .parse()?;
    // Without a SONAME a consumer would record the path that the library was built at.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libkvbridge.so.{version}");
    // Threads and thread-local destructors may outlive dlclose, so the code must stay mapped.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    Ok(())
}
