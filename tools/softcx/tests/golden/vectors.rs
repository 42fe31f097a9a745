//! Golden vectors of the library.

use std::collections::BTreeMap;

/// A file's vectors: a name starts a line, its bytes follow indented, `xx*n` is `n` bytes, and a `#` starts a comment. All bytes have one.
pub fn vectors(file: &str) -> BTreeMap<String, Vec<u8>> {
    let path = format!("{}/../../tests/golden/mlx5/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut all = BTreeMap::new();
    let mut bytes: &mut Vec<u8> = &mut vec![];
    for whole in text.lines() {
        let (line, comment) = whole.split_once('#').unwrap_or((whole, ""));
        let line = line.trim_end();
        if line.is_empty() {
            continue;
        }
        if !line.starts_with(' ') {
            bytes = all.entry(line.to_owned()).or_insert_with(Vec::new);
            continue;
        }
        assert!(!comment.trim().is_empty(), "{file}: bytes without a comment: {line}");
        for word in line.split_whitespace() {
            let (digits, n) = word.split_once('*').unwrap_or((word, "1"));
            let some: Vec<u8> =
                (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect();
            (0..n.parse().unwrap()).for_each(|_| bytes.extend(&some));
        }
    }
    all
}
