//! The bytes of every command that this library sends, against `tests/golden/uverbs/*.txt`.
//!
//! In those files everything after a `#` is a comment; addresses are `->` (an input follows) and `<-` (room for an output),
//! file descriptors that vary are `fd`. Numbers are little-endian. With `IRONVERBS_BLESS=1` in the environment the files
//! are written anew instead, without comments on fields; read the difference before you keep it.

use super::fake::{FakeKernel, Knows};
use super::observe::Record;
use super::scenario;
use std::path::PathBuf;

#[test]
fn native_commands() {
    let record = Record::new();
    let ctx = scenario::walk(record.wrap(FakeKernel::new(Knows::ALL)));
    scenario::walk_native_only(&ctx);
    compare("native", &record);
}

#[test]
fn commands_inside_an_ioctl() {
    let record = Record::new();
    scenario::walk(record.wrap(FakeKernel::new(Knows::INVOKE_WRITE)));
    compare("invoke_write", &record);
}

#[test]
fn commands_given_to_write() {
    let record = Record::new();
    scenario::walk(record.wrap(FakeKernel::new(Knows::WRITE)));
    compare("write", &record);
}

#[test]
fn commands_about_memory() {
    for (name, knows) in
        [("memory_native", Knows::ALL), ("memory_invoke_write", Knows::INVOKE_WRITE), ("memory_write", Knows::WRITE)]
    {
        let record = Record::new();
        scenario::walk_memory(record.wrap(FakeKernel::new(knows)), knows.natives);
        compare(name, &record);
    }
}

#[test]
fn commands_of_adapters() {
    for (name, knows) in
        [("adapter_native", Knows::ALL), ("adapter_invoke_write", Knows::INVOKE_WRITE), ("adapter_write", Knows::WRITE)]
    {
        let record = Record::new();
        scenario::walk_adapter(record.wrap(FakeKernel::new(knows)), knows.natives);
        compare(name, &record);
    }
}

/// Compares all commands that were answered; refused ones are attempts at forms that other files hold.
fn compare(name: &str, record: &Record) {
    let accepted = record.take().into_iter().filter(|c| c.result.is_ok());
    let text: String = accepted.map(|c| format!("{c}\n")).collect();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/uverbs/{name}.txt"));
    if std::env::var_os("IRONVERBS_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    let (golden, text) = (commands(&golden), commands(&text));
    for (i, (golden, text)) in golden.iter().zip(&text).enumerate() {
        assert_eq!(golden, text, "command {i} of {}", path.display());
    }
    assert_eq!(golden.len(), text.len(), "number of commands in {}", path.display());
}

/// One string for each command, which starts at the beginning of a line: its name, then its bytes and marks, without
/// comments and without regard to how they are grouped.
fn commands(text: &str) -> Vec<String> {
    let mut commands: Vec<String> = vec![];
    for line in text.lines() {
        let bare = line.split('#').next().unwrap_or_default();
        match commands.last_mut() {
            Some(command) if bare.starts_with(' ') => command.extend(bare.split_whitespace()),
            _ if bare.is_empty() => {}
            _ => commands.push(format!("{}: ", bare.trim_end())),
        }
    }
    commands
}
