//! Compares our structures and constants with the kernel headers installed on the machine that runs the tests.
//!
//! For each list a C program is written that prints size, alignment, offset and width of everything in it; the system's
//! C compiler builds it, and its answers are compared. Without a compiler or headers the test says that it skipped.
//! A list names every field of a structure, or it does not compile. A field newer than the oldest supported header is
//! marked with its first kernel, so that an older header is told from a mistake.
//!
//! Another module's structures are checked from its own tests: build a [`Checks`] there with [`structure!`] and
//! [`constants!`], and call [`Checks::compare`].

mod lists;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What to compare, and where it is declared.
pub struct Checks {
    /// As in `rdma/ib_user_verbs.h`.
    pub headers: &'static [&'static str],
    pub structures: Vec<Structure>,
    pub constants: Vec<Constant>,
}

pub struct Structure {
    pub c_type: &'static str,
    pub size: usize,
    pub align: usize,
    pub fields: Vec<Field>,
}

pub struct Field {
    pub c_name: &'static str,
    pub offset: usize,
    pub size: usize,
    /// First kernel whose header has it, if not all have.
    pub since: Option<&'static str>,
}

pub struct Constant {
    pub c_expression: &'static str,
    pub value: u64,
}

/// A [`Structure`] from all fields of a Rust structure. A field's C name follows it where it differs, and so does the
/// first kernel that has it: `structure!(write::CreateCq as "struct ib_uverbs_create_cq" { a, b: "u.b", c since "6.2" })`.
macro_rules! structure {
    ($rust:ty as $c_type:literal { $($field:ident $(: $c_name:literal)? $(since $since:literal)?),* $(,)? }) => {{
        type Checked = $rust;
        let value: Checked = zerocopy::FromZeros::new_zeroed();
        // Names every field: one that is missing here does not compile.
        let Checked { $($field),* } = &value;
        $crate::uverbs::abi::check::Structure {
            c_type: $c_type,
            size: size_of::<Checked>(),
            align: align_of::<Checked>(),
            fields: vec![$($crate::uverbs::abi::check::Field {
                c_name: *[$($c_name,)? stringify!($field)].first().unwrap(),
                offset: std::mem::offset_of!(Checked, $field),
                size: size_of_val($field),
                since: [$($since)?].first().copied(),
            }),*],
        }
    }};
}
pub(crate) use structure;

/// A list of [`Constant`]s: `constants!(access::LOCAL_WRITE = "IB_UVERBS_ACCESS_LOCAL_WRITE", ...)`.
macro_rules! constants {
    ($($value:expr => $c_expression:literal),* $(,)?) => {
        vec![$($crate::uverbs::abi::check::Constant { c_expression: $c_expression, value: $value as u64 }),*]
    };
}
pub(crate) use constants;

/// To where the test harness, which keeps the words of tests that pass to itself, does not catch it.
fn skipped(reason: &str) {
    let _ = writeln!(std::io::stderr(), "structures and constants: skipped: {reason}");
}

impl Checks {
    /// Fails with every difference there is. Prints what could not be compared, and why.
    pub fn compare(&self) {
        if let Some(reason) = self.cannot_compare() {
            skipped(&reason);
            return;
        }
        let printed = compile_and_run("all", &self.program(None)).expect("the headers are installed and the list is C");
        let mut differences = self.differences(&printed, None);
        for (structure, field, since) in self.newer_fields() {
            match compile_and_run(&field.c_name.replace('.', "_"), &self.program(Some((structure, field)))) {
                Ok(printed) => differences.extend(self.differences(&printed, Some((structure, field)))),
                Err(why) if why.contains("no member named") => {
                    let name = format!("{}.{}", structure.c_type, field.c_name);
                    skipped(&format!("{name}: the installed header is older than {since}"));
                }
                Err(why) => panic!("{why}"),
            }
        }
        assert!(differences.is_empty(), "differs from the installed headers:\n{}", differences.join("\n"));
    }

    fn cannot_compare(&self) -> Option<String> {
        for header in self.headers {
            let path = Path::new("/usr/include").join(header);
            if !path.exists() {
                return Some(format!("{} is not installed (Debian: linux-libc-dev)", path.display()));
            }
        }
        match Command::new("cc").arg("--version").output() {
            Ok(_) => None,
            Err(e) => Some(format!("no C compiler: cc: {e}")),
        }
    }

    fn newer_fields(&self) -> impl Iterator<Item = (&Structure, &Field, &'static str)> {
        self.structures.iter().flat_map(|s| s.fields.iter().filter_map(move |f| Some((s, f, f.since?))))
    }

    /// A C program that prints everything but newer fields, or just the one field.
    fn program(&self, only: Option<(&Structure, &Field)>) -> String {
        let mut c = String::from("#include <stddef.h>\n#include <stdio.h>\n");
        for header in self.headers {
            writeln!(c, "#include <{header}>").unwrap();
        }
        c.push_str("int main(void) {\n");
        let field = |c: &mut String, t: &str, f: &str| {
            writeln!(c, "printf(\"{t}.{f} %zu %zu\\n\", offsetof({t}, {f}), sizeof((({t} *)0)->{f}));").unwrap();
        };
        if let Some((s, f)) = only {
            field(&mut c, s.c_type, f.c_name);
        } else {
            for s in &self.structures {
                let t = s.c_type;
                writeln!(c, "printf(\"{t} %zu %zu\\n\", sizeof({t}), _Alignof({t}));").unwrap();
                for f in s.fields.iter().filter(|f| f.since.is_none()) {
                    field(&mut c, t, f.c_name);
                }
            }
            for constant in &self.constants {
                let e = constant.c_expression;
                writeln!(c, "printf(\"{e} %llu 0\\n\", (unsigned long long)({e}));").unwrap();
            }
        }
        c.push_str("return 0;\n}\n");
        c
    }

    fn differences(&self, printed: &str, only: Option<(&Structure, &Field)>) -> Vec<String> {
        let mut ours = String::new();
        if let Some((s, f)) = only {
            writeln!(ours, "{}.{} {} {}", s.c_type, f.c_name, f.offset, f.size).unwrap();
        } else {
            for s in &self.structures {
                writeln!(ours, "{} {} {}", s.c_type, s.size, s.align).unwrap();
                for f in s.fields.iter().filter(|f| f.since.is_none()) {
                    writeln!(ours, "{}.{} {} {}", s.c_type, f.c_name, f.offset, f.size).unwrap();
                }
            }
            for constant in &self.constants {
                writeln!(ours, "{} {} 0", constant.c_expression, constant.value).unwrap();
            }
        }
        assert_eq!(ours.lines().count(), printed.lines().count(), "the program printed everything");
        std::iter::zip(ours.lines(), printed.lines())
            .filter(|(ours, theirs)| ours != theirs)
            .map(|(ours, theirs)| format!("ours {ours}; the header's {theirs}"))
            .collect()
    }
}

/// The program's output, or why there is none.
fn compile_and_run(name: &str, program: &str) -> Result<String, String> {
    let directory = Scratch::new(name);
    let source = directory.0.join("check.c");
    let binary = directory.0.join("check");
    std::fs::write(&source, program).map_err(|e| e.to_string())?;
    let cc = Command::new("cc").arg("-w").arg("-o").arg(&binary).arg(&source).output().map_err(|e| e.to_string())?;
    if !cc.status.success() {
        return Err(String::from_utf8_lossy(&cc.stderr).into_owned());
    }
    let run = Command::new(&binary).output().map_err(|e| e.to_string())?;
    String::from_utf8(run.stdout).map_err(|e| e.to_string())
}

/// A directory that is removed again.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let thread = format!("{:?}", std::thread::current().id()).replace(['(', ')'], "");
        let path = std::env::temp_dir().join(format!("ironverbs-abi-{}-{thread}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary directory can be written");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

mod tests {
    use super::*;
    use crate::uverbs::abi::write::{self, command};

    /// The comparison itself: a wrong offset, size and constant must each be found.
    #[test]
    fn a_difference_is_found() {
        let mut checks = Checks {
            headers: &["rdma/ib_user_verbs.h"],
            structures: vec![structure!(write::CmdHdr as "struct ib_uverbs_cmd_hdr" { command, in_words, out_words })],
            constants: constants!(command::REG_MR => "IB_USER_VERBS_CMD_DEREG_MR"),
        };
        checks.structures[0].fields[1].offset = 5;
        checks.structures[0].size = 12;
        if let Some(reason) = checks.cannot_compare() {
            skipped(&reason);
            return;
        }
        let printed = compile_and_run("difference", &checks.program(None)).unwrap();
        let differences = checks.differences(&printed, None);
        assert_eq!(differences.len(), 3, "{differences:?}");
        assert!(differences[0].contains("struct ib_uverbs_cmd_hdr 12 4; the header's struct ib_uverbs_cmd_hdr 8 4"));
    }
}
