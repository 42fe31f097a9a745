//! The README shows the examples as they are.

#[test]
fn the_readme_shows_the_hello_example() {
    let folder = env!("CARGO_MANIFEST_DIR");
    let read = |file: &str| std::fs::read_to_string(format!("{folder}/{file}")).unwrap();
    let (readme, example) = (read("README.md"), read("examples/hello.rs"));
    let function = &example[example.find("/// `trade`").unwrap()..];
    assert!(function.lines().count() > 20);
    assert!(readme.contains(function), "the README and examples/hello.rs differ");
}
