//! Finds bytes in text: hexadecimal dumps as kernel logs, libraries and tools print them.
//!
//! ```text
//! [ 1234.567890] infiniband mlx5_0: dump_cqe:272:(pid 1): dump error cqe     the kernel, with offsets or without
//! [ 1234.567893] 00000000: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
//! 00000000 00008813 08006214 0000f6d2                                        libmlx5
//! 00000030: 0000 0000 0000 8813 0800 6214 0000 f6d2  ..........b.....        xxd
//! 00000030  00 00 00 00 00 00 88 13  08 00 62 14 00 00 f6 d2  |..........b.....|
//! 0x00, 0x00, 0x88, 0x13                                                     source code
//! 0.001 mlx5_0 send qp=0x65 kind=Rc index=0 blocks=64 from=ring hex=000a… # …                 cargo vm --device-record
//! 00*13 0a123456  # xx*n stands for n bytes                                  the tests of this project
//! ```

use super::{Kind, Layout};

/// Bytes of one dump at most; more than any work queue entry or ring that anybody prints.
const MOST_BYTES: usize = 1 << 20;

/// Bytes that all dumps of a text may have together. As many as the longest text can hold as digits: only what is repeated
/// is more.
pub const MOST_TOGETHER: usize = 8 << 20;

/// The dumps of a text have more bytes together.
#[derive(Debug, PartialEq, Eq)]
pub struct TooMuch;

/// Problems of a dump that are told at most.
const MOST_PROBLEMS: usize = 64;

/// Repetitions of a byte at most.
const MOST_REPEATS: usize = 4096;

/// Characters of a label at most.
const LABEL_CHARS: usize = 160;

/// Digits that a line with other words in front needs: fewer may be a number in a sentence.
const DIGITS_BEHIND_WORDS: usize = 16;

/// Bytes of an entry at least. Where a text has words, fewer are a number among them.
const FEWEST_BYTES: usize = 16;

/// Bytes that stood together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    /// The line they begin on, from 1.
    pub line: usize,
    /// The text line before them.
    pub label: Option<String>,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// What they are, where the text says so.
    pub kind: Option<Kind>,
    /// And their layout.
    pub layout: Option<Layout>,
    /// What is wrong with the text.
    pub problems: Vec<String>,
}

/// Finds the dumps in a text, one after the other: a short text can stand for many bytes. Until `each` fails.
pub fn dumps<E: From<TooMuch>>(text: &str, mut each: impl FnMut(Dump) -> Result<(), E>) -> Result<(), E> {
    let has_words = digits(text, &mut |_| Ok::<(), TooMuch>(()))?;
    digits(text, &mut |dump| if has_words && dump.bytes.len() < FEWEST_BYTES { Ok(()) } else { each(dump) })?;
    Ok(())
}

/// Finds all hexadecimal digits in a text, and whether it has words.
fn digits<E: From<TooMuch>>(text: &str, each: &mut dyn FnMut(Dump) -> Result<(), E>) -> Result<bool, E> {
    let mut finder = Finder { each, current: None, label: None, last_label: None, has_words: false, total: 0 };
    for (number, line) in text.lines().enumerate() {
        finder.line(number + 1, line)?;
    }
    finder.end()?;
    Ok(finder.has_words)
}

struct Finder<'a, E> {
    each: &'a mut dyn FnMut(Dump) -> Result<(), E>,
    current: Option<Current>,
    label: Option<String>,
    /// Of the dump that was found last.
    last_label: Option<String>,
    has_words: bool,
    /// Bytes of the dumps that were found.
    total: usize,
}

struct Current {
    dump: Dump,
    /// Offset of the first byte, where lines have offsets.
    base: Option<usize>,
    /// Other text has come since.
    interrupted: bool,
    /// A line of one star: the last line is repeated up to the next offset.
    star: bool,
    last: Vec<u8>,
}

/// What a line holds.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Blank,
    Star,
    Text,
    Hex(Digits),
}

/// A line of digits.
#[derive(Debug, Default, PartialEq, Eq)]
struct Digits {
    offset: Option<Offset>,
    /// The number, if it stands alone: it may be the length that some tools print in the end.
    lone: Option<Offset>,
    bytes: Vec<u8>,
    problem: Option<String>,
}

/// An offset in front of a line, which some tools print in octal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offset {
    hex: usize,
    octal: Option<usize>,
}

impl Offset {
    fn parse(digits: &str) -> Option<Self> {
        let hex = usize::from_str_radix(digits, 16).ok()?;
        Some(Self { hex, octal: usize::from_str_radix(digits, 8).ok() })
    }

    fn is(self, at: usize) -> bool {
        self.hex == at || self.octal == Some(at)
    }
}

impl<E: From<TooMuch>> Finder<'_, E> {
    fn line(&mut self, number: usize, line: &str) -> Result<(), E> {
        if let Some(dump) = recorded(number, line) {
            self.end()?;
            self.current = Some(Current { dump, base: None, interrupted: true, star: false, last: Vec::new() });
            return self.end();
        }
        match classify(line) {
            Line::Blank => self.interrupt(),
            Line::Text if self.is_damaged_row(line) => self.interrupt(),
            Line::Text => {
                self.interrupt();
                self.has_words = true;
                self.label = Some(line.trim().chars().take(LABEL_CHARS).map(shown).collect());
            }
            Line::Star => match &mut self.current {
                Some(current) if current.base.is_some() => current.star = true,
                _ => self.interrupt(),
            },
            Line::Hex(digits) => self.hex(number, digits)?,
        }
        Ok(())
    }

    /// Whether a line of the dump was damaged, so that it is no digits: it says nothing of what follows.
    fn is_damaged_row(&self, line: &str) -> bool {
        let has_offsets = self.current.as_ref().is_some_and(|current| current.base.is_some());
        has_offsets
            && without_log_prefix(line.trim()).split_whitespace().next().is_some_and(|w| offset_word(w).is_some())
    }

    fn interrupt(&mut self) {
        if let Some(current) = &mut self.current {
            current.interrupted = true;
        }
    }

    fn hex(&mut self, number: usize, digits: Digits) -> Result<(), E> {
        let goes_on = self.goes_on(&digits);
        let Digits { offset, bytes, problem, .. } = digits;
        if !goes_on {
            self.end()?;
            let base = offset.map(|o| o.hex);
            // The rest of one from which something is missing.
            let before = self.last_label.as_ref().filter(|_| base.is_some_and(|base| base > 0));
            let label = self.label.take().or_else(|| before.cloned());
            let dump = Dump { line: number, label, ..Dump::default() };
            self.current = Some(Current { dump, base, interrupted: false, star: false, last: Vec::new() });
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        if offset.is_none() && current.base.is_some() {
            // The closing line of some tools: the length, and nothing else.
            return Ok(());
        }
        match (problem, current.dump.problems.len()) {
            (Some(problem), 0..MOST_PROBLEMS) => current.dump.problems.push(format!("line {number}: {problem}")),
            (Some(_), MOST_PROBLEMS) => current.dump.problems.push(format!("line {number}: and so on")),
            _ => {}
        }
        if current.dump.bytes.len() + bytes.len() > MOST_BYTES {
            let problem = format!("line {number}: more than {MOST_BYTES} bytes stand together; the rest is left out");
            if current.dump.problems.last() != Some(&problem)
                && !current.dump.problems.iter().any(|p| p.contains("left out"))
            {
                current.dump.problems.push(problem);
            }
            return Ok(());
        }
        current.dump.bytes.extend(&bytes);
        current.interrupted = false;
        current.last = bytes;
        Ok(())
    }

    /// Whether a line belongs to the dump that was begun; fills in what a star stands for.
    fn goes_on(&mut self, digits: &Digits) -> bool {
        let Some(current) = &mut self.current else { return false };
        let len = current.dump.bytes.len();
        match (current.base, digits.offset) {
            (Some(base), Some(offset)) => {
                let star = std::mem::take(&mut current.star);
                let Some(end) = base.checked_add(len) else { return false };
                if star && offset.hex > end && offset.hex - end <= MOST_BYTES && !current.last.is_empty() {
                    let gap = (offset.hex - end).min(MOST_BYTES - len.min(MOST_BYTES));
                    let repeated: Vec<u8> = current.last.iter().copied().cycle().take(gap).collect();
                    current.dump.bytes.extend(repeated);
                    return true;
                }
                len > 0 && offset.is(end)
            }
            (None, None) => !current.interrupted,
            (Some(base), None) => {
                !current.interrupted
                    && digits.lone.is_some_and(|o| len == 0 || base.checked_add(len).is_some_and(|end| o.is(end)))
            }
            (None, Some(_)) => false,
        }
    }

    fn end(&mut self) -> Result<(), E> {
        match self.current.take() {
            Some(Current { dump, .. }) if !dump.bytes.is_empty() || !dump.problems.is_empty() => {
                self.total += dump.bytes.len();
                if self.total > MOST_TOGETHER {
                    return Err(TooMuch.into());
                }
                self.last_label.clone_from(&dump.label);
                (self.each)(dump)
            }
            _ => Ok(()),
        }
    }
}

/// A line of a device's record, which says what it holds.
fn recorded(number: usize, line: &str) -> Option<Dump> {
    let (label, rest) = line.split_once(" hex=")?;
    // Behind time and device, whose name may have spaces.
    let is = |word: &str| label.split_whitespace().skip(2).any(|other| other == word);
    let (kind, layout) = match () {
        () if is("send") => {
            let layout = match () {
                () if is("kind=Ud") => Layout::Datagram,
                () if is("kind=XrcIni") => Layout::Xrc,
                () => Layout::Connected,
            };
            (Kind::SendWqe, Some(layout))
        }
        () if is("receive") && label.contains(" srq=") => (Kind::SrqWqe, None),
        () if is("receive") => (Kind::RecvWqe, None),
        () if is("completion") => (Kind::Cqe, None),
        () if is("packed") && is("of=sends") => (Kind::PackedSends, None),
        () if is("packed") => (Kind::PackedReceives, None),
        () => return None,
    };
    let (bytes, problem) = bytes_of(&[rest.split_whitespace().next()?])?;
    let problems = problem.map(|problem| format!("line {number}: {problem}")).into_iter().collect();
    let label = Some(label.trim().chars().take(LABEL_CHARS).map(shown).collect());
    Some(Dump { line: number, label, bytes, kind: Some(kind), layout, problems })
}

fn classify(line: &str) -> Line {
    let line = line.split('#').next().unwrap_or_default();
    let line = without_log_prefix(line.trim());
    // What some tools print beside the digits, and what other programs printed behind them.
    let line = line.split('|').next().unwrap_or_default();
    let line = match (line.find('['), line.rfind(']')) {
        (Some(at), _) if at > 0 && line[..at].split_whitespace().all(is_hex) => &line[..at],
        (Some(_), Some(end)) => &line[end + 1..],
        _ => line,
    };
    let line = line.trim();
    match line {
        "" => return Line::Blank,
        "*" => return Line::Star,
        _ => {}
    }
    let mut words: Vec<&str> = line.split_whitespace().collect();
    words.retain(|word| !word.trim_matches(PUNCTUATION).is_empty());
    // From the last word that is none of hexadecimal digits on; the offset may come behind it.
    let colon_at = words.iter().rposition(|word| offset_word(word).is_some());
    if let Some(at) = colon_at {
        // The word is a part of the line, and may stand in it before, as the end of another.
        let behind = &line[words[at].as_ptr().addr() - line.as_ptr().addr() + words[at].len()..];
        // Two spaces end the digits: what follows are the same bytes as characters.
        let digits = behind.trim_start().split("  ").next().unwrap_or_default();
        let digits: Vec<&str> = digits.split_whitespace().collect();
        if let Some((bytes, problem)) = bytes_of(&digits) {
            return Line::Hex(Digits { offset: offset_word(words[at]), bytes, problem, ..Digits::default() });
        }
    }
    let first = words.iter().rposition(|word| !is_hex(word)).map_or(0, |at| at + 1);
    let mut digits = &words[first..];
    if digits.is_empty() {
        return Line::Text;
    }
    if first > 0 {
        // Machine code, as kernels print it where a program crashed.
        let is_code = words[..first].contains(&"Code:");
        let ends_a_prefix = words[first - 1].ends_with([':', ']', '>', ')']);
        if is_code || !ends_a_prefix || digits.iter().map(|w| w.len()).sum::<usize>() < DIGITS_BEHIND_WORDS {
            return Line::Text;
        }
    }
    let mut offset = None;
    if let [head, rest @ ..] = digits
        && !rest.is_empty()
        && (head.len() >= 7 || head.len() == 6 && rest.len() >= 4)
        && rest.iter().all(|word| word.len() == 2)
    {
        offset = Offset::parse(head);
        digits = rest;
    } else if let [head, rest @ ..] = digits
        && head.len() == 7
        && !rest.is_empty()
        && rest.iter().all(|word| word.len() == 4)
    {
        let problem = "16-bit words in the order of the host that printed them: print bytes, with hexdump -C or xxd";
        let (offset, problem) = (Offset::parse(head), Some(problem.to_owned()));
        return Line::Hex(Digits { offset, problem, ..Digits::default() });
    }
    let lone = match digits {
        [one] if (6..=8).contains(&one.len()) => Offset::parse(one),
        _ => None,
    };
    match bytes_of(digits) {
        Some((bytes, problem)) => Line::Hex(Digits { offset, lone, bytes, problem }),
        None => Line::Text,
    }
}

/// The line without the time, level and host that logs put in front.
fn without_log_prefix(line: &str) -> &str {
    let mut line = line;
    if let Some(at) = line.find("kernel: ") {
        line = &line[at + "kernel: ".len()..];
    }
    loop {
        let trimmed = line.trim_start();
        let close = match trimmed.as_bytes().first() {
            Some(b'[') => ']',
            Some(b'<') => '>',
            _ => return trimmed,
        };
        match trimmed.find(close) {
            Some(at) if at < 48 => line = &trimmed[at + 1..],
            _ => return trimmed,
        }
    }
}

/// What is told of a character: one that a terminal would obey is only marked.
fn shown(c: char) -> char {
    if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }
}

fn offset_word(word: &str) -> Option<Offset> {
    let digits = word.strip_suffix(':')?;
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    (digits.len() >= 2 && digits.bytes().all(|b| b.is_ascii_hexdigit())).then(|| Offset::parse(digits)).flatten()
}

/// Whether a word is made of hexadecimal digits, as source code or this project's tests may write them.
fn is_hex(word: &str) -> bool {
    let word = plain(word);
    let word =
        word.split_once('*').map_or(word, |(byte, n)| if n.bytes().all(|b| b.is_ascii_digit()) { byte } else { "x" });
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_hexdigit())
}

/// What source code has between numbers.
const PUNCTUATION: [char; 6] = ['{', '}', ',', ';', '(', ')'];

fn plain(word: &str) -> &str {
    let word = word.trim_matches(PUNCTUATION);
    word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")).unwrap_or(word)
}

/// The bytes that the words stand for. None if one of them stands for none.
fn bytes_of(words: &[&str]) -> Option<(Vec<u8>, Option<String>)> {
    let mut bytes = Vec::new();
    let mut problem = None;
    // Who writes 08 does not write 8: such a digit has lost the other.
    let is_padded = words.iter().any(|word| matches!(word.as_bytes(), [b'0', second] if second.is_ascii_hexdigit()));
    for word in words {
        let is_literal = word.contains("0x") || word.contains("0X");
        let word = plain(word);
        if word.is_empty() {
            continue;
        }
        if let Some((byte, times)) = word.split_once('*') {
            let (byte, times) = (u8::from_str_radix(byte, 16).ok()?, times.parse::<usize>().ok()?);
            if times > MOST_REPEATS {
                problem = Some(format!("{} repeats more than {MOST_REPEATS} times", start_of(word)));
                continue;
            }
            // Whoever takes the bytes refuses as many.
            bytes.resize((bytes.len() + times).min(MOST_BYTES + 1), byte);
            continue;
        }
        if !word.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut digits = word.as_bytes();
        if digits.len() % 2 == 1 {
            if is_literal || (words.len() > 1 && digits.len() == 1) {
                if is_padded && !is_literal {
                    problem = Some(format!("{word} has one digit, and other bytes have two"));
                }
                bytes.push(digit(digits[0]));
                digits = &digits[1..];
            } else {
                problem = Some(format!("{} has an odd number of digits", start_of(word)));
                digits = &digits[..digits.len() - 1];
            }
        }
        bytes.extend(digits.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])));
    }
    Some((bytes, problem))
}

/// A word, or as much of it as tells which.
fn start_of(word: &str) -> String {
    const CHARS: usize = 40;
    let start: String = word.chars().take(CHARS).collect();
    if start.len() < word.len() { start + "…" } else { start }
}

fn digit(ascii: u8) -> u8 {
    match ascii {
        b'0'..=b'9' => ascii - b'0',
        _ => (ascii | 0x20).wrapping_sub(b'a').wrapping_add(10) & 0xf,
    }
}

#[cfg(test)]
mod tests;
