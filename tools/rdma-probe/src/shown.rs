//! Text from outside as it may be shown. Names come from the kernel, which lets administrators put nearly anything into them, and
//! other text from peers and files: what would do something to a terminal, or pass for another line, is written out instead.

use std::borrow::Cow;
use std::io;

/// One line of text, with what is harmful in it written out: `\u{1b}`, `\n`.
pub fn line(text: &str) -> Cow<'_, str> {
    written_out(text, is_harmful)
}

/// As [`line()`], of text that has lines of its own.
pub fn lines(text: &str) -> Cow<'_, str> {
    written_out(text, |c| is_harmful(c) && c != '\n')
}

fn written_out(text: &str, harmful: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&harmful) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match harmful(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown.into()
}

/// Controls of both sets, and what changes the direction of text.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// JSON on one line, in which strings have no harmful character either. JSON itself wants only some of them written out.
pub struct OneLine;

impl serde_json::ser::Formatter for OneLine {
    fn write_string_fragment<W: io::Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        string_fragment(writer, fragment)
    }
}

/// The same, in lines that people can read.
#[derive(Default)]
pub struct Pretty(serde_json::ser::PrettyFormatter<'static>);

/// What is not about strings is as in the other formatter.
macro_rules! as_pretty {
    ($($name:ident($($arg:ident: $of:ty),*);)*) => {
        $(fn $name<W: io::Write + ?Sized>(&mut self, writer: &mut W $(, $arg: $of)*) -> io::Result<()> {
            self.0.$name(writer $(, $arg)*)
        })*
    };
}

impl serde_json::ser::Formatter for Pretty {
    as_pretty! {
        begin_array();
        end_array();
        begin_array_value(first: bool);
        end_array_value();
        begin_object();
        end_object();
        begin_object_key(first: bool);
        begin_object_value();
        end_object_value();
    }

    fn write_string_fragment<W: io::Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        string_fragment(writer, fragment)
    }
}

fn string_fragment<W: io::Write + ?Sized>(writer: &mut W, mut fragment: &str) -> io::Result<()> {
    while let Some((at, c)) = fragment.char_indices().find(|(_, c)| is_harmful(*c)) {
        writer.write_all(&fragment.as_bytes()[..at])?;
        // All of them are in the first plane.
        write!(writer, "\\u{:04x}", u32::from(c))?;
        fragment = &fragment[at + c.len_utf8()..];
    }
    writer.write_all(fragment.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Serialize;

    const NASTY: &str = "net\u{1b}[2J0\r\n\u{9b}31m\u{202e}\u{61c}\x7f\0é";

    #[test]
    fn what_acts_on_a_terminal_is_written_out() {
        assert_eq!(line(NASTY), r"net\u{1b}[2J0\r\n\u{9b}31m\u{202e}\u{61c}\u{7f}\u{0}é");
        assert_eq!(lines("a\tb\nc\u{1b}"), "a\\tb\nc\\u{1b}");
        assert!(matches!(line("rxe_0 – ü"), Cow::Borrowed("rxe_0 – ü")));
    }

    #[test]
    fn json_has_none_of_it_and_is_the_same_when_it_is_read() {
        let value = serde_json::json!({ "name": NASTY, NASTY: [1, { "a": [] }] });
        let mut one = Vec::new();
        value.serialize(&mut serde_json::Serializer::with_formatter(&mut one, OneLine)).unwrap();
        let mut pretty = Vec::new();
        value.serialize(&mut serde_json::Serializer::with_formatter(&mut pretty, Pretty::default())).unwrap();
        for made in [one, pretty] {
            let text = String::from_utf8(made).unwrap();
            assert!(!text.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\u{61c}', '\x7f']), "{text:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        }
        let plain = serde_json::json!({ "a": [1, { "b": "c" }, []], "d": {} });
        let mut pretty = Vec::new();
        plain.serialize(&mut serde_json::Serializer::with_formatter(&mut pretty, Pretty::default())).unwrap();
        assert_eq!(pretty, serde_json::to_vec_pretty(&plain).unwrap());
    }
}
