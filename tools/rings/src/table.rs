//! The table: which operations there are, and how their counts are shown.

use crate::guest::Device;
use crate::limits::Held;
use anyhow::{Result, ensure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The counts of each operation by its name, in the order in which they were made.
pub type Counts = BTreeMap<String, Vec<u64>>;

/// An operation: its name at the mark, its title, and how many requests or completions one count covers.
pub struct Operation(pub &'static str, pub &'static str, pub u32);

/// Operations that only some devices, or versions of libibverbs, have.
pub const OPTIONAL: &[&str] = &["atomic_write", "flush"];

pub const OPERATIONS: &[Operation] = &[
    Operation("send", "post one SEND, 1 entry", 1),
    Operation("send_list", "post 32 SENDs, 1 entry each, one doorbell: per request", 32),
    Operation("send_4_sges", "post one SEND, 4 entries", 1),
    Operation("send_inline_8", "post one SEND, 8 bytes inline", 1),
    Operation("send_inline_64", "post one SEND, 64 bytes inline", 1),
    Operation("write", "post one RDMA WRITE, 1 entry", 1),
    Operation("read", "post one RDMA READ, 1 entry", 1),
    Operation("compare_swap", "post one compare and swap", 1),
    Operation("fetch_add", "post one fetch and add", 1),
    Operation("atomic_write", "post one atomic write", 1),
    Operation("flush", "post one FLUSH", 1),
    Operation("bind_mw", "post one bind of a memory window", 1),
    Operation("local_inv", "post one local invalidate", 1),
    Operation("uc_send", "UC: post one SEND, 1 entry", 1),
    Operation("ud_send", "UD: post one SEND, 1 entry", 1),
    Operation("ud_send_inline_8", "UD: post one SEND, 8 bytes inline", 1),
    Operation("ud_recv", "UD: post one receive, 1 entry", 1),
    Operation("recv", "post one receive, 1 entry", 1),
    Operation("recv_list", "post 32 receives, 1 entry each: per request", 32),
    Operation("srq_recv", "shared queue: post one receive, 1 entry", 1),
    Operation("srq_recv_list", "shared queue: post 32 receives, 1 entry each: per request", 32),
    Operation("poll", "poll one completion, all fields", 1),
    Operation("poll_16", "poll 16 completions, all fields (`poll_into`): per completion", 16),
    Operation("poll_status", "poll one completion, number and status", 1),
    Operation("poll_status_16", "poll 16 completions, number and status: per completion", 16),
    Operation("poll_empty", "poll an empty queue", 1),
];

/// Operations of mlx5 devices beside those.
pub const MORE: &[Operation] = &[
    Operation("send_30_sges", "post one SEND, 30 entries", 1),
    Operation("write_inline_8", "post one RDMA WRITE, 8 bytes inline", 1),
    Operation("write_inline_word", "post one RDMA WRITE, 8 bytes inline, known to be 8", 1),
    Operation("write_inline_8_list", "post 32 RDMA WRITEs, 8 bytes inline each, one doorbell: per request", 32),
    Operation("poll_32", "poll 32 completions, all fields (`poll_into`): per completion", 32),
    Operation("poll_in_place_32", "poll 32 completions, number and status, where they are: per completion", 32),
    Operation("poll_status_32", "poll 32 completions, number and status: per completion", 32),
];

/// The operation of the C program that corresponds to one of ours: there, `ibv_poll_cq` gives all fields, whichever are read, and
/// no length is known to the compiler.
pub fn theirs(id: &str) -> String {
    match id {
        "write_inline_word" => "write_inline_8".into(),
        _ => id.replace("_status", "").replace("_in_place", ""),
    }
}

/// The name at the mark around ten instructions, one of them a system call.
pub const CALIBRATION: &str = "calibration";

#[derive(Serialize)]
pub struct Table {
    #[serde(skip)]
    device: Device,
    pub kernel: String,
    pub libibverbs: String,
    pub rustc: String,
    operations: Vec<Row>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
}

#[derive(Serialize)]
struct Row {
    id: &'static str,
    title: &'static str,
    requests: u32,
    ironverbs: Ironverbs,
    libibverbs: Libibverbs,
    ratio: Option<f64>,
}

#[derive(Serialize)]
struct Ironverbs {
    own: Option<Count>,
    any: Option<Count>,
}

#[derive(Serialize)]
struct Libibverbs {
    post: Option<Count>,
    wr: Option<Count>,
}

/// Instructions per request.
#[derive(Clone, Copy, Serialize)]
struct Count {
    median: f64,
    min: f64,
    max: f64,
}

/// What was counted in the guest, by program: ours with its provider in the types, and with any; the C program with the older
/// functions, and with the newer.
pub struct Columns {
    pub own: Counts,
    pub any: Counts,
    pub post: Counts,
    pub wr: Counts,
}

impl Columns {
    /// Fails if ten instructions were not counted as ten.
    pub fn check_calibration(&self) -> Result<()> {
        for counts in [&self.own, &self.any, &self.post, &self.wr] {
            let calibration = counts.get(CALIBRATION).map(Vec::as_slice);
            ensure!(
                calibration == Some(&[10]),
                "the counter is wrong: ten instructions were counted as {calibration:?}"
            );
        }
        Ok(())
    }
}

impl Table {
    pub fn new(
        device: Device,
        kernel: String,
        libibverbs: String,
        rustc: String,
        columns: &Columns,
        held: Option<Held>,
    ) -> Self {
        let more = if device == Device::Mlx5 { MORE } else { &[] };
        let operations = OPERATIONS.iter().chain(more).map(|operation| Row::new(operation, columns)).collect();
        Self { device, kernel, libibverbs, rustc, operations, held }
    }

    /// The operations that one of the programs should have run and did not.
    pub fn missing(&self) -> Vec<&'static str> {
        let whole = |row: &Row| row.ironverbs.own.is_some() && row.ironverbs.any.is_some() && row.ratio.is_some();
        let must = self.operations.iter().filter(|row| !OPTIONAL.contains(&row.id));
        must.filter(|row| !whole(row)).map(|row| row.id).collect()
    }

    pub fn markdown(&self) -> String {
        let Self { kernel, libibverbs, rustc, operations, .. } = self;
        let Words { title, provider, option, file, own, dash, device } = Words::of(self.device);
        let mut text = format!(
            "\
# {title}

User-space instructions of one operation, through this library and through libibverbs with its {provider} provider. Made by

    cargo rings{option} --write tools/rings/{file}

with kernel {kernel}, libibverbs {libibverbs}, {rustc}.

| operation | `Qp<{own}>` | `Qp` | `ibv_post_*`, `ibv_poll_cq` | `ibv_wr_*`, `ibv_start_poll` | `Qp` ÷ lower of C |
| --- | ---: | ---: | ---: | ---: | ---: |
"
        );
        for row in operations.iter().filter(|row| self.device == Device::Rxe || !row.is_empty()) {
            let cells = [row.ironverbs.own, row.ironverbs.any, row.libibverbs.post, row.libibverbs.wr].map(show);
            let ratio = row.ratio.map_or_else(|| "–".into(), |ratio| format!("{ratio:.2}"));
            let _ = writeln!(text, "| {} | {} | {ratio} |", row.title, cells.join(" | "));
        }
        if let Some(held) = &self.held {
            let _ = write!(
                text,
                "
`cargo rings --mlx5-driver --limits` fails unless this holds, where C is `ibv_post_send` for posts, and for polls `ibv_start_poll` with
`ibv_next_poll`, which tell the same of a completion, or `ibv_poll_cq`, which copies every field and is quicker all the same. How many
bytes are inline the compiler does not know where it does not say so.

{}
\"By the clock\": the same calls in a loop of 32, between two readings of the guest's time-stamp counter, which counts instructions there;
those of the loop, and of whatever else the guest had to do, are in it. C is `ibv_post_send` and `ibv_poll_cq`.
",
                held.markdown()
            );
        }
        let _ = write!(
            text,
            "
A dash: {dash}

How it is counted: both programs run in one guest whose clock counts instructions (`cargo vm --icount`), on queue pairs connected to
each other or to themselves on {device}. Those are reliable connections where the table does not say UC or UD. A
tracer runs the operation instruction by instruction (`PTRACE_SINGLESTEP`) between two breakpoints, so that the counts are
exact and repeatable; shown is the median of five. "
        );
        text += match self.device {
            Device::Rxe => {
                "The `syscall` instruction of a post's doorbell counts as one; what the kernel
does in it is not counted. "
            }
            Device::Mlx5 => "Neither library has BlueFlame here: a doorbell is one store of 8 bytes. ",
        };
        text += "Every send is signaled, and the queues have room.

- This library: a call of a function that is not inlined, with arguments that the compiler does not know, which opens the
  batch, writes it, submits it and returns. ";
        let _ = write!(
            text,
            "`Qp<{own}>` names the provider at compile time, `Qp` works with every provider.
- C: what a program can prepare ahead (`struct ibv_send_wr`, `struct ibv_sge`) is not counted. \"All fields\" of a completion are
  number, status, operation, length, queue pair, and immediate data. `ibv_poll_cq` always copies all of them; the newer
  functions are called for those that are named, on a completion queue that needs no lock.
"
        );
        text
    }
}

/// What the text says of a device.
struct Words {
    title: &'static str,
    provider: &'static str,
    option: &'static str,
    file: &'static str,
    own: &'static str,
    dash: &'static str,
    device: &'static str,
}

impl Words {
    fn of(device: Device) -> Self {
        match device {
            Device::Rxe => Self {
                title: "Instructions of post and poll",
                provider: "rxe",
                option: "",
                file: "RINGS.md",
                own: "Rxe",
                dash: "libibverbs has no function for it (it knows no FLUSH, its newer functions post no receive, and the older one does not
post an atomic write as the driver needs it), or the kernel's driver has no such operation (atomic write and FLUSH before 6.2).",
                device: "a Soft-RoCE device",
            },
            Device::Mlx5 => Self {
                title: "Instructions of post and poll under the kernel's mlx5 driver",
                provider: "mlx5",
                option: " --mlx5-driver",
                file: "MLX5-DRIVER.md",
                own: "Mlx5",
                dash: "the newer functions of libibverbs post no receive.",
                device: "a software ConnectX that the kernel's own driver drives",
            },
        }
    }
}

impl Row {
    fn new(&Operation(id, title, requests): &Operation, columns: &Columns) -> Self {
        let count = |counts: &Counts, id: &str| counts.get(id).and_then(|samples| Count::new(samples, requests));
        let ironverbs = Ironverbs { own: count(&columns.own, id), any: count(&columns.any, id) };
        let post = count(&columns.post, &theirs(id));
        let wr = count(&columns.wr, id).or_else(|| count(&columns.wr, &theirs(id)));
        let lower = [post, wr].iter().flatten().map(|count| count.median).reduce(f64::min);
        let ratio = ironverbs.any.zip(lower).map(|(ours, theirs)| ours.median / theirs);
        Self { id, title, requests, ironverbs, libibverbs: Libibverbs { post, wr }, ratio }
    }

    /// Whether nobody has it.
    fn is_empty(&self) -> bool {
        let Self { ironverbs: Ironverbs { own, any }, libibverbs: Libibverbs { post, wr }, .. } = self;
        [own, any, post, wr].into_iter().all(Option::is_none)
    }
}
impl Count {
    fn new(samples: &[u64], requests: u32) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let per_request = |count: &u64| *count as f64 / f64::from(requests);
        Some(Self {
            median: sorted.get(sorted.len() / 2).map(per_request)?,
            min: sorted.first().map(per_request)?,
            max: sorted.last().map(per_request)?,
        })
    }
}

fn show(count: Option<Count>) -> String {
    match count {
        None => "–".into(),
        Some(Count { median, .. }) if median.fract() == 0.0 => format!("{median}"),
        Some(Count { median, .. }) => format!("{median:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(&str, &[u64])]) -> Counts {
        let calibration = [(CALIBRATION, &[10][..])];
        calibration.iter().chain(of).map(|(name, samples)| ((*name).to_owned(), samples.to_vec())).collect()
    }

    fn table(columns: &Columns) -> Table {
        Table::new(Device::Rxe, "6.12".into(), "44".into(), "rustc 1".into(), columns, None)
    }

    #[test]
    fn a_row_has_medians_per_request_and_the_ratio_to_the_better_c_function() {
        let columns = Columns {
            own: counts(&[("send_list", &[320, 960, 640])]),
            any: counts(&[("send_list", &[656])]),
            post: counts(&[("send_list", &[3200])]),
            wr: counts(&[("send_list", &[1312])]),
        };
        let markdown = table(&columns).markdown();
        assert!(markdown.contains("per request | 20 | 20.5 | 100 | 41 | 0.50 |"), "{markdown}");
    }

    #[test]
    fn the_older_poll_gives_all_fields_even_where_two_are_wanted() {
        let none = || counts(&[]);
        let columns = Columns { own: none(), any: none(), post: counts(&[("poll_16", &[1600])]), wr: none() };
        let table = table(&columns);
        let row = table.operations.iter().find(|row| row.id == "poll_status_16").unwrap();
        assert_eq!(row.libibverbs.post.unwrap().median, 100.0);
        assert_eq!(table.missing().len(), OPERATIONS.len() - OPTIONAL.len());
    }

    #[test]
    fn a_counter_that_miscounts_is_found_out() {
        let mut columns = Columns { own: counts(&[]), any: counts(&[]), post: counts(&[]), wr: counts(&[]) };
        columns.check_calibration().unwrap();
        columns.wr.insert(CALIBRATION.into(), vec![11]);
        columns.check_calibration().unwrap_err();
    }
}
