//! What the adapter's recorder and the two sides wrote down.

use std::collections::BTreeMap;

/// An element, as the adapter fetched it.
#[derive(Debug, PartialEq, Eq)]
pub struct Element {
    /// Its place in the ring, as the adapter counts.
    pub index: u32,
    /// Blocks of a send queue's ring.
    pub ring: Option<u64>,
    /// It came with the doorbell (BlueFlame), and not from the ring.
    pub copied: bool,
    pub bytes: Vec<u8>,
}

/// What the adapter recorded, by the number of the queue.
#[derive(Default)]
pub struct Record {
    pub sends: BTreeMap<u64, Vec<Element>>,
    pub receives: BTreeMap<u64, Vec<Element>>,
    pub shared_receives: BTreeMap<u64, Vec<Element>>,
}

impl Record {
    /// From the recorder's file: `SECONDS DEVICE KIND NAME=VALUE… # words`, behind lines of words alone.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut record = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let line = line.split(" # ").next().unwrap_or_default();
            let mut words = line.split_whitespace().skip(2);
            let kind = words.next().unwrap_or_default();
            let fields: BTreeMap<_, _> = words.filter_map(|word| word.split_once('=')).collect();
            let field = |name: &str| fields.get(name).copied().ok_or_else(|| format!("no {name} in: {line}"));
            let queues = match kind {
                "send" => &mut record.sends,
                "receive" if fields.contains_key("srq") => &mut record.shared_receives,
                "receive" => &mut record.receives,
                "completion" | "packed" => continue,
                _ => return Err(format!("no line of the recorder: {line}")),
            };
            let queue = number(fields.get("srq").copied().map_or_else(|| field("qp"), Ok)?)?;
            let copied = fields.get("from") == Some(&"copy");
            let ring = fields.get("blocks").copied().map(number).transpose()?;
            let index = number(field("index")?)? as u32;
            let element = Element { index, ring, copied, bytes: bytes(field("hex")?)? };
            queues.entry(queue).or_default().push(element);
        }
        Ok(record)
    }
}

/// The numbers that a side told: `number NAME.WHAT VALUE`, and at its end `done`.
#[derive(Clone, Default)]
pub struct Numbers(BTreeMap<String, u64>);

impl Numbers {
    /// Those of each side, from the output of all, which `side NAME` parts.
    pub fn of_sides(text: &str) -> Result<BTreeMap<String, Self>, String> {
        let mut sides = BTreeMap::new();
        for part in text.split("side ").skip(1) {
            let (name, lines) = part.split_once('\n').unwrap_or((part, ""));
            let mut numbers = Self::default();
            let mut done = false;
            for line in lines.lines() {
                match *line.split_whitespace().collect::<Vec<_>>() {
                    ["number", what, value] => drop(numbers.0.insert(what.to_owned(), self::number(value)?)),
                    ["done"] => done = true,
                    _ => return Err(format!("{name} printed: {line}")),
                }
            }
            if !done {
                return Err(format!("{name} did not come to its end"));
            }
            sides.insert(name.to_owned(), numbers);
        }
        Ok(sides)
    }

    pub fn get(&self, name: &str, what: &str) -> Result<u64, String> {
        let name = format!("{name}.{what}");
        self.0.get(&name).copied().ok_or_else(|| format!("nobody told {name}"))
    }

    /// Names that end in `.WHAT`, and their numbers.
    pub fn all(&self, what: &str) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().filter_map(move |(name, number)| {
            let name = name.strip_suffix(what)?.strip_suffix('.')?;
            Some((name, *number))
        })
    }
}

fn number(word: &str) -> Result<u64, String> {
    let number = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => word.parse(),
    };
    number.map_err(|_| format!("{word} is no number"))
}

fn bytes(hex: &str) -> Result<Vec<u8>, String> {
    let pairs = hex.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(|pair| byte(pair).ok_or_else(|| format!("no bytes: {hex}"))).collect()
}
