//! What must not compile, and the compiler's words for it.
//!
//! The words change between compilers, so they are compared only with the one they were written by. After a change that is
//! meant, `TRYBUILD=overwrite cargo test --package ui` writes them anew.

use libtest_mimic::{Arguments, Completion, Trial};
use std::process::{Command, ExitCode};

const COMPILER: &str = "rustc 1.95.";

fn main() -> ExitCode {
    let trial = Trial::ignorable_test("misuse_does_not_compile", || {
        let found = Command::new("rustc").arg("--version").output();
        let found = found.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string()).unwrap_or_default();
        if !found.starts_with(COMPILER) {
            return Ok(Completion::ignored_with(format!(
                "the expected words are those of {COMPILER}x, this is {found}"
            )));
        }
        let cases = trybuild::TestCases::new();
        cases.pass("pass/*.rs");
        cases.compile_fail("fail/*.rs");
        Ok(Completion::Completed)
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}
