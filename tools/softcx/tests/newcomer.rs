//! A program outside of this workspace that depends on ironverbs and softcx: the example, as its `main.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A folder that is gone when the test ends.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
#[ignore = "builds a program; tools/test runs it: cargo test -p softcx --test newcomer -- --ignored"]
fn a_program_of_forty_lines_in_a_crate_of_its_own() {
    let softcx = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = softcx.ancestors().nth(2).unwrap();
    let example = fs::read_to_string(softcx.join("examples/two_queue_pairs.rs")).unwrap();
    assert!(example.lines().count() <= 50, "the example has {} lines", example.lines().count());
    let code = example.lines().filter(|line| !line.trim().is_empty() && !line.trim().starts_with("//"));
    assert!(code.count() <= 40, "the example has more than 40 lines of code");

    let folder = Folder(env::temp_dir().join(format!("softcx-newcomer-{}", std::process::id())));
    fs::create_dir_all(folder.0.join("src")).unwrap();
    fs::write(folder.0.join("src/main.rs"), example).unwrap();
    let manifest = format!(
        "[package]\nname = \"newcomer\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\n\
         ironverbs = {{ path = {workspace:?} }}\nsoftcx = {{ path = {softcx:?} }}\n"
    );
    fs::write(folder.0.join("Cargo.toml"), manifest).unwrap();
    // The versions that are here already: nothing is fetched.
    fs::copy(workspace.join("Cargo.lock"), folder.0.join("Cargo.lock")).unwrap();
    let output = Command::new(env!("CARGO"))
        .current_dir(&folder.0)
        // What it has in common with this workspace is built already.
        .args(["run", "--quiet", "--offline", "--target-dir"])
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap())
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .output()
        .unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}");
    for part in ["RECV", "byte_len: 5", "after 1 lost packet", "remote access error", "the key does not allow it"] {
        assert!(text.contains(part), "it should say {part:?}:\n{text}");
    }
}
