//! The table of posts and polls on the software ConnectX, and what must hold of it.

use crate::args::Args;
use crate::counter;
use crate::programs;
use crate::table::{CALIBRATION, Counts, MORE, OPERATIONS, OPTIONAL, Operation};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::Path;

/// Operations that are counted with one queue pair and with many, and what they are called in the program.
const GROWING: &[(&str, Operation)] = &[
    ("many_write_inline_8_list", Operation("", "post 32 RDMA WRITEs, 8 bytes inline each, on one of", 32)),
    ("many_poll_status_32", Operation("", "poll 32 completions, number and status, of 32 of", 32)),
];

const CROWDS: [&str; 3] = ["1", "100", "10000"];

/// What a post may take, in bare stores of the same bytes.
const MOST_OF_FLOOR: f64 = 1.5;
/// What it may take to poll one of 32 completions, whether the compiler knows the provider or not.
const MOST_OF_POLL: f64 = 30.0;
/// How much more than in the stored table an operation may take.
const MORE_THAN_STORED: f64 = 1.02;
/// How much more with many queue pairs than with one.
const MORE_WITH_MANY: f64 = 1.1;

#[derive(Serialize, Deserialize)]
struct Table {
    rustc: String,
    operations: Vec<Row>,
}

/// Instructions per request.
#[derive(Serialize, Deserialize)]
struct Row {
    id: String,
    title: String,
    requests: u32,
    mlx5: f64,
    any: f64,
    floor: Option<f64>,
}

/// Counts, shows, and checks.
pub fn run(args: &Args) -> Result<()> {
    let program = programs::ironverbs()?;
    let program = program.to_str().context("the program's path is not text")?;
    let count = |more: &[&str]| {
        let words: Vec<String> = [program, "sim"].iter().chain(more).map(|word| (*word).to_owned()).collect();
        counter::count(&words, &[])
    };
    let mut table = Table::new(&count(&["mlx5"])?, &count(&["any"])?)?;
    for crowd in CROWDS {
        table.grow(crowd, &count(&["mlx5", crowd])?, &count(&["any", crowd])?)?;
    }
    if let Some(file) = &args.write {
        std::fs::write(file, table.markdown()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&table)?);
    } else {
        print!("{}", table.markdown());
    }
    match &args.check {
        Some(file) => table.check(file),
        None => Ok(()),
    }
}

/// The median, per request.
fn median(counts: &Counts, name: &str, requests: u32) -> Result<f64> {
    let mut samples = counts.get(name).with_context(|| format!("{name} was not counted"))?.clone();
    samples.sort_unstable();
    let median = samples.get(samples.len() / 2).with_context(|| format!("{name} was not counted"))?;
    Ok(*median as f64 / f64::from(requests))
}

impl Table {
    fn new(mlx5: &Counts, any: &Counts) -> Result<Self> {
        for counts in [mlx5, any] {
            let calibration = median(counts, CALIBRATION, 1)?;
            ensure!(calibration == 10.0, "the counter is wrong: ten instructions were counted as {calibration}");
        }
        let mut operations = vec![];
        let all = OPERATIONS.iter().filter(|operation| !OPTIONAL.contains(&operation.0)).chain(MORE);
        for Operation(id, title, requests) in all {
            let floor = match *id {
                "write_inline_8" | "write_inline_word" => Some("floor"),
                "write_inline_8_list" => Some("floor_list"),
                _ => None,
            };
            operations.push(Row {
                id: (*id).into(),
                title: (*title).into(),
                requests: *requests,
                mlx5: median(mlx5, id, *requests)?,
                any: median(any, id, *requests)?,
                floor: floor.map(|name| median(mlx5, name, *requests)).transpose()?,
            });
        }
        Ok(Self { rustc: programs::version("rustc", &["--version"]), operations })
    }

    /// Adds what was counted with so many queue pairs.
    fn grow(&mut self, crowd: &str, mlx5: &Counts, any: &Counts) -> Result<()> {
        for (name, Operation(_, title, requests)) in GROWING {
            self.operations.push(Row {
                id: format!("{name}_of_{crowd}"),
                title: format!("{title} {crowd} queue pairs: per request"),
                requests: *requests,
                mlx5: median(mlx5, name, *requests)?,
                any: median(any, name, *requests)?,
                floor: None,
            });
        }
        Ok(())
    }

    fn row(&self, id: &str) -> Result<&Row> {
        self.operations.iter().find(|row| row.id == id).with_context(|| format!("{id} was not counted"))
    }

    fn check(&self, stored: &Path) -> Result<()> {
        let text = std::fs::read_to_string(stored).with_context(|| format!("cannot read {}", stored.display()))?;
        let budget: Self = serde_json::from_str(&text).with_context(|| format!("{} is no table", stored.display()))?;
        let mut faults = String::new();
        let mut at_most = |id: &str, what: &str, is: f64, most: f64| {
            if is > most {
                let _ = write!(faults, "\n{id}, {what}: {is:.1} instructions, at most {most:.1}");
            }
        };
        if budget.rustc == self.rustc {
            for row in &self.operations {
                let stored = budget.row(&row.id).context("the stored table is older: make it anew")?;
                at_most(&row.id, "Qp<Mlx5>", row.mlx5, stored.mlx5 * MORE_THAN_STORED);
                at_most(&row.id, "Qp", row.any, stored.any * MORE_THAN_STORED);
            }
        } else {
            println!("skipped: the stored table is of {}, and this is {}", budget.rustc, self.rustc);
        }
        let batch = self.row("write_inline_8_list")?;
        let floor = batch.floor.context("the bare stores were not counted")?;
        at_most("write_inline_8_list", "against the bare stores, Qp<Mlx5>", batch.mlx5, floor * MOST_OF_FLOOR);
        let poll = self.row("poll_in_place_32")?;
        at_most("poll_in_place_32", "each, Qp<Mlx5>", poll.mlx5, MOST_OF_POLL);
        at_most("poll_in_place_32", "each, Qp", poll.any, MOST_OF_POLL);
        for (name, _) in GROWING {
            let one = self.row(&format!("{name}_of_{}", CROWDS[0]))?;
            for crowd in &CROWDS[1..] {
                let many = self.row(&format!("{name}_of_{crowd}"))?;
                at_most(&many.id, "against one queue pair, Qp<Mlx5>", many.mlx5, one.mlx5 * MORE_WITH_MANY);
                at_most(&many.id, "against one queue pair, Qp", many.any, one.any * MORE_WITH_MANY);
            }
        }
        ensure!(faults.is_empty(), "more instructions than there may be:{faults}");
        Ok(())
    }

    fn markdown(&self) -> String {
        let Self { rustc, operations } = self;
        let mut text = format!(
            "\
# Instructions of post and poll on mlx5

User-space instructions of one operation on the software ConnectX, whose engine does not run meanwhile. Made by

    cargo rings --mlx5 --write tools/rings/MLX5.md
    cargo rings --mlx5 --json > tools/rings/mlx5.json

with {rustc}. The second file is the budget that `cargo rings --mlx5 --check tools/rings/mlx5.json` compares with.

| operation | `Qp<Mlx5>` | `Qp` | bare stores |
| --- | ---: | ---: | ---: |
"
        );
        for Row { title, mlx5, any, floor, .. } in operations {
            let floor = floor.map_or_else(|| "–".into(), |floor| format!("{floor:.1}"));
            let _ = writeln!(text, "| {title} | {mlx5:.1} | {any:.1} | {floor} |");
        }
        text += "
How it is counted: as in the table beside this one, on the machine itself. Every operation is a call of a function that is not
inlined, with arguments that the compiler does not know. \"Bare stores\" is the least code for the same work: a loop that stores
the same bytes, one barrier, the doorbell record and the register, with no look at whether there is room, and no note of what
was posted.
";
        text
    }
}
