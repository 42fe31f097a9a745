//! What must hold of posts and polls beside those of libmlx5, under the kernel's own driver.

use crate::table::{CALIBRATION, Columns, Counts, theirs};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::fmt::Write;

/// Of what `ibv_post_send` takes, a single post may take so much;
const MOST_OF_SINGLE_POST: f64 = 0.3;
/// one of 32 with one doorbell, so much;
const MOST_OF_POST_IN_BATCH: f64 = 0.2;
/// and one of 32 completions so much of what `ibv_start_poll` and `ibv_next_poll` take to tell the same of it, and, where it is used in
/// place, of what `ibv_poll_cq` takes to tell all of it. Whether the provider is known to the compiler or not.
const MOST_OF_POLL: f64 = 0.3;

/// The functions of libibverbs.
#[derive(Clone, Copy)]
enum C {
    Older,
    Newer,
}

/// An operation and its limit. It is counted for so many requests.
struct Limit {
    id: &'static str,
    title: &'static str,
    requests: u32,
    of: C,
    most: f64,
}

const LIMITS: &[Limit] = &[
    Limit {
        id: "write_inline_8",
        title: "post one RDMA WRITE, 8 bytes inline",
        requests: 1,
        of: C::Older,
        most: MOST_OF_SINGLE_POST,
    },
    Limit {
        id: "write_inline_word",
        title: "post one RDMA WRITE, 8 bytes inline, known to be 8",
        requests: 1,
        of: C::Older,
        most: MOST_OF_SINGLE_POST,
    },
    Limit {
        id: "write_inline_8_list",
        title: "post 32 RDMA WRITEs, 8 bytes inline each: per request",
        requests: 32,
        of: C::Older,
        most: MOST_OF_POST_IN_BATCH,
    },
    Limit {
        id: "poll_in_place_32",
        title: "poll 32 completions, number and status, where they are: per completion, of `ibv_poll_cq`",
        requests: 32,
        of: C::Older,
        most: MOST_OF_POLL,
    },
    Limit {
        id: "poll_in_place_32",
        title: "poll 32 completions, number and status, where they are: per completion",
        requests: 32,
        of: C::Newer,
        most: MOST_OF_POLL,
    },
    Limit {
        id: "poll_status_32",
        title: "poll 32 completions, number and status: per completion",
        requests: 32,
        of: C::Newer,
        most: MOST_OF_POLL,
    },
];

/// What the clock is read around: requests of each sample, and what they are called.
const CLOCKED: &[(&str, &str)] = &[
    ("write_inline_8", "post one RDMA WRITE, 8 bytes inline, their number not known to the compiler"),
    ("write_inline_8_list", "post 32 RDMA WRITEs, 8 bytes inline each: per request"),
    ("poll_32", "poll 32 completions, all fields: per completion"),
];

/// Requests of every sample of the clock.
const LIST: u32 = 32;

/// The names of all that has to be counted for [`LIMITS`].
pub fn counted() -> Vec<String> {
    let ours = LIMITS.iter().map(|limit| limit.id.to_owned());
    ours.chain(LIMITS.iter().map(|limit| theirs(limit.id))).chain([CALIBRATION.to_owned()]).collect()
}

/// What each of [`LIMITS`] came to, and what the clock says.
#[derive(Serialize)]
pub struct Held {
    operations: Vec<Row>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    clock: Vec<Clocked>,
}

#[derive(Serialize)]
struct Row {
    id: &'static str,
    title: &'static str,
    limit: f64,
    tracer: Sides,
}

#[derive(Serialize)]
struct Clocked {
    id: &'static str,
    title: &'static str,
    clock: Sides,
}

/// Instructions per request.
#[derive(Serialize)]
struct Sides {
    own: f64,
    any: f64,
    libmlx5: f64,
}

impl Held {
    pub fn new(steps: &Columns, ticks: Option<&Columns>) -> Result<Self> {
        let row = |&Limit { id, title, requests, of, most }: &Limit| {
            Ok(Row { id, title, limit: most, tracer: Sides::new(steps, id, requests, of)? })
        };
        let clocked = |ticks| {
            let clocked = move |&(id, title): &(&'static str, &'static str)| {
                Ok(Clocked { id, title, clock: Sides::new(ticks, id, LIST, C::Older)? })
            };
            CLOCKED.iter().map(clocked).collect::<Result<_>>()
        };
        Ok(Self {
            operations: LIMITS.iter().map(row).collect::<Result<_>>()?,
            clock: ticks.map(clocked).transpose()?.unwrap_or_default(),
        })
    }

    /// Fails if one is above its limit.
    pub fn check(&self) -> Result<()> {
        let mut faults = String::new();
        for Row { id, limit, tracer, .. } in &self.operations {
            for (whose, ours) in [("Qp<Mlx5>", tracer.own), ("Qp", tracer.any)] {
                let most = limit * tracer.libmlx5;
                if ours > most {
                    let _ = write!(faults, "\n{id}, {whose}: {ours:.1}, at most {most:.1}");
                }
            }
        }
        ensure!(faults.is_empty(), "more instructions than there may be beside libmlx5's:{faults}");
        Ok(())
    }

    pub fn markdown(&self) -> String {
        let mut text = "\
| what must hold | at most | `Qp<Mlx5>` ÷ C | `Qp` ÷ C |
| --- | ---: | ---: | ---: |
"
        .to_owned();
        for Row { title, limit, tracer: Sides { own, any, libmlx5 }, .. } in &self.operations {
            let _ = writeln!(text, "| {title} | {limit} | {:.3} | {:.3} |", own / libmlx5, any / libmlx5);
        }
        if self.clock.is_empty() {
            return text;
        }
        text += "
| by the clock | `Qp<Mlx5>` | `Qp` | C |
| --- | ---: | ---: | ---: |
";
        for Clocked { title, clock: Sides { own, any, libmlx5 }, .. } in &self.clock {
            let _ = writeln!(text, "| {title} | {own:.1} | {any:.1} | {libmlx5:.1} |");
        }
        text
    }
}

impl Sides {
    fn new(columns: &Columns, id: &str, requests: u32, of: C) -> Result<Self> {
        let count = |counts: &Counts, id: &str| -> Result<f64> {
            let mut samples = counts.get(id).with_context(|| format!("{id} was not counted"))?.clone();
            samples.sort_unstable();
            let median = samples.get(samples.len() / 2).with_context(|| format!("{id} was not counted"))?;
            Ok(*median as f64 / f64::from(requests))
        };
        let Columns { own, any, post, wr } = columns;
        let libmlx5 = match of {
            C::Older => count(post, &theirs(id))?,
            C::Newer => count(wr, id)?,
        };
        Ok(Self { own: count(own, id)?, any: count(any, id)?, libmlx5 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 300 instructions of libmlx5 for each request, and of ours what `ours` makes of the limit.
    fn columns(ours: impl Fn(f64) -> f64) -> Columns {
        let column = |each: &dyn Fn(f64) -> f64| -> Counts {
            let whole = |limit: &Limit| (each(limit.most) * f64::from(limit.requests)).round() as u64;
            LIMITS
                .iter()
                .map(|limit| (theirs(limit.id), limit))
                .chain(LIMITS.iter().map(|limit| (limit.id.into(), limit)))
                .map(|(id, limit)| (id, vec![whole(limit)]))
                .collect()
        };
        let ticks = CLOCKED.iter().map(|(id, _)| ((*id).to_owned(), vec![0]));
        let ours = || column(&ours).into_iter().chain(ticks.clone()).collect();
        Columns { own: ours(), any: ours(), post: column(&|_| 300.0), wr: column(&|_| 300.0) }
    }

    fn check(ours: impl Fn(f64) -> f64) -> Result<()> {
        let steps = columns(ours);
        let mut ticks = columns(|_| 1.0);
        ticks.post.extend(CLOCKED.iter().map(|(id, _)| ((*id).to_owned(), vec![1])));
        Held::new(&steps, Some(&ticks))?.check()
    }

    #[test]
    fn what_is_at_the_limit_holds_and_what_is_above_does_not() {
        check(|limit| limit * 300.0).unwrap();
        check(|limit| limit * 300.0 + 1.0).unwrap_err();
    }
}
