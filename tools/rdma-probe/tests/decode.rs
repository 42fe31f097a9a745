//! `rdma-probe decode`, on any machine.

use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/mlx5");

/// As kernels print it, with a line of somebody else in between.
const LOG: &str = "\
[ 1234.567890] infiniband mlx5_0: mlx5_handle_error_cqe:332:(pid 77): WC error: 12, Message: transport retry counter exceeded
[ 1234.567891] infiniband mlx5_0: dump_cqe:272:(pid 77): dump error cqe
[ 1234.567892] 00000000: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
[ 1234.567893] 00000010: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
[ 1234.567893] eth7: link is down
[ 1234.567894] 00000020: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
[ 1234.567895] 00000030: 00 00 00 00 00 00 81 15 0a 00 01 03 0a 9c 0c d3
";

fn decode(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_rdma-probe"))
        .arg("decode")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It need not read what it has not been told to.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

#[track_caller]
fn text(output: &Output, code: i32) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{errors}");
    assert!(!errors.contains("panicked"), "{errors}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_kernel_log_on_standard_input() {
    for args in [&[][..], &["-"], &["--cqe"]] {
        let text = text(&decode(args, LOG.as_bytes()), 0);
        assert!(text.contains("RETRY_EXC_ERR (12)") && text.contains("0x81, the one that usually"), "{text}");
        assert!(text.contains("QP 0x000103") && text.contains("SEND") && text.contains("dump error cqe"), "{text}");
        assert!(text.contains("usual causes:") && text.contains("4791"), "{text}");
    }
    let output = decode(&["--json"], LOG.as_bytes());
    let json: Value = serde_json::from_str(&text(&output, 0)).unwrap();
    let record = &json["result"]["records"][0];
    assert_eq!((&record["kind"], &record["line"], &record["source"]), (&"cqe".into(), &3.into(), &"-".into()));
    assert_eq!((&record["failure"]["syndrome"], &record["failure"]["vendor_syndrome"]), (&0x15.into(), &0x81.into()));
    assert_eq!(json["simulated"], false);
}

#[test]
fn digits_as_arguments_with_and_without_quotes() {
    let words = ["00000506", "00004101", "00000008", "00000000"];
    let unquoted = text(&decode(&words, b""), 6);
    assert!(unquoted.contains("unknown opcode 0x06") || unquoted.contains("damaged"), "{unquoted}");
    for args in [&["0000050a", "00004101", "00000008", "00000000"][..], &["0000050a 00004101 00000008 00000000"]] {
        let text = text(&decode(args, b""), 0);
        assert!(
            text.starts_with("send WQE, as it seems, argument line 1\n  SEND, index 5, QP 0x000041, 16 bytes\n"),
            "{text}"
        );
    }
    let whole = text(&decode(&[LOG], b""), 0);
    assert!(whole.contains("RETRY_EXC_ERR"), "{whole}");
}

#[test]
fn the_golden_vectors_as_files() {
    for (file, labels) in [("wqe.txt", 29), ("cqe.txt", 50), ("cqe_packed.txt", 4)] {
        let output = decode(&[&format!("{GOLDEN}/{file}"), "--json"], b"");
        let json: Value = serde_json::from_str(&String::from_utf8_lossy(&output.stdout)).unwrap();
        let records = json["result"]["records"].as_array().unwrap();
        assert!(records.len() >= labels, "{file}: {}", records.len());
        assert!(records.iter().all(|r| r["label"].is_string() && r["line"].as_u64() > Some(1)), "{file}");
    }
}

#[test]
fn what_cannot_be_decoded_is_told() {
    for (args, input, code) in [
        (&[][..], &b""[..], 2),
        (&[], b"no digits here\n", 2),
        (&["/no/such/file"], b"", 2),
        (&["--wqe", "--cqe"], b"", 2),
        (&["--cqe-size", "96"], b"", 2),
        (&["--qp", "dct"], b"", 2),
        (&["--cqe"], b"0a0b", 6),
        (&["--wqe"], b"00beef0a 1234563f 00000008 00000000", 6),
        (&[], b"0000000 0000 0000 0000 0000\n", 6),
    ] {
        let output = decode(args, input);
        text(&output, code);
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn any_input_has_an_answer() {
    let mut state = 0x1234_5678_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    for round in 0..24 {
        let alphabet: &[u8] = if round % 2 == 0 { b"0123456789abcdef :\n*|[]x#" } else { &[] };
        let input: Vec<u8> = (0..2000)
            .map(|_| match alphabet {
                [] => next(),
                letters => letters[usize::from(next()) % letters.len()],
            })
            .collect();
        let output = decode(&[], &input);
        assert!([0, 2, 6].contains(&output.status.code().unwrap()), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let long = vec![b'0'; (16 << 20) + 2];
    text(&decode(&[], &long), 2);
}

/// A short text that stands for gigabytes is refused, or told piece by piece, in little memory.
#[test]
fn a_hostile_text_costs_little_memory() {
    let repeated = "00*4096\n\n".repeat(1 << 17);
    let stars = "00000000: 01\n*\n00100000: 02\n\n".repeat(20_000);
    let receives = format!("{}\n", "00000040 00000001 00000000 00000000 ".repeat(4)).repeat(3_000);
    let odd = "abc\n".repeat(1 << 17);
    let small = "deadbeef deadbeef deadbeef deadbeef\n\n".repeat(8_000);
    let word = "a".repeat(1 << 20);
    for (name, text) in [
        ("repeated", repeated),
        ("stars", stars),
        ("receives", receives),
        ("odd", odd),
        ("small", small),
        ("word", word),
    ] {
        let path = std::env::temp_dir().join(format!("rdma-probe-hostile-{name}-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        for json in [false, true] {
            // In kilobytes, all addresses.
            let script = format!(
                "ulimit -v 300000; exec {} decode {} {} >/dev/null",
                env!("CARGO_BIN_EXE_rdma-probe"),
                path.display(),
                if json { "--json" } else { "" }
            );
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(
                matches!(output.status.code(), Some(0 | 2 | 6)),
                "{name}, JSON {json}: {:?} {error}",
                output.status
            );
        }
        std::fs::remove_file(path).unwrap();
    }
}
