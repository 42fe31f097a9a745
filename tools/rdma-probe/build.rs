//! Links rdma-probe to a fixed address, unless it is linked statically.
//!
//! A program that can be loaded anywhere relocates itself first, thousands of words in a binary of this size, which is most of
//! the time that `rdma-probe list` takes. The address protects little here: all code but a few reviewed lines is safe Rust.
//! A static program has no such choice: the compiler links it as a static PIE, which the flag would break.

fn main() {
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if !features.split(',').any(|feature| feature == "crt-static") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
