//! What the suite saw of each verb: it works, or it is refused, and by whom. The table `tests/conformance/VERBS.md` is made
//! from this.
//!
//! With `IRONVERBS_SEEN` set to a file's path, a run writes there one line for each verb: `verb TAB result`.

use ironverbs::{Error, Lacking};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::{env, fs, io};

static SEEN: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// The test saw `verb` do what it should.
pub fn works(verb: &str) {
    SEEN.lock().unwrap().insert(verb.to_owned(), "works".to_owned());
}

/// The device, its driver or the kernel refused `verb` with `error`, as it should.
#[allow(dead_code, reason = "a verb that is refused here may work with another kernel")]
pub fn refused(verb: &str, error: &Error) {
    let by = match error {
        Error::Unsupported { by, .. } => by.to_string(),
        other => other.errno().map_or_else(|| other.to_string(), |errno| format!("kernel, {errno}")),
    };
    SEEN.lock().unwrap().insert(verb.to_owned(), format!("refused by {by}"));
}

/// The device or its driver has no `verb`, as the library said before it asked.
pub fn refused_by(verb: &str, who: Lacking) {
    SEEN.lock().unwrap().insert(verb.to_owned(), format!("refused by {who}"));
}

/// Writes the file, if one was asked for.
pub fn write() -> io::Result<()> {
    let Some(path) = env::var_os("IRONVERBS_SEEN") else { return Ok(()) };
    let mut text = String::new();
    for (verb, result) in &*SEEN.lock().unwrap() {
        writeln!(text, "{verb}\t{result}").expect("a string takes everything");
    }
    fs::write(path, text)
}
