//! The README shows the quick start of the documentation, which is compiled there.

#[test]
fn the_readme_shows_the_quick_start() {
    let folder = env!("CARGO_MANIFEST_DIR");
    let read = |file: &str| std::fs::read_to_string(format!("{folder}/{file}")).unwrap();
    let documentation = read("src/lib.rs");
    let code = documentation.split("//! ```").nth(1).unwrap();
    let lines = code.lines().skip(1).map(|line| line.trim_start_matches("//!").trim_start_matches(' '));
    let shown: Vec<&str> = lines.filter(|line| !line.starts_with("# ")).collect();
    assert!((10..=20).contains(&shown.len()), "{} lines", shown.len());
    let readme = read("README.md").replace("\n    ", "\n");
    assert!(readme.contains(&shown.join("\n")), "the README and the quick start differ");
}
