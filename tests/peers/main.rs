//! Do rdma-core's C library and this library write the same work queue elements?
//!
//! Both read one list of requests ([`list`], [`cases`]) and issue it on a software ConnectX, in a guest whose own mlx5 driver
//! drives it. The adapter records what it fetches, and every element must be the same, byte for byte, but for what [`elements`]
//! lists with the reason. libibverbs does it in its two ways: `ibv_post_send`, and `ibv_wr_start` and its kin.
//!
//! `IRONVERBS_TEST_KERNEL` names the kernel to boot (`6.12` or `6.1`); without it the comparison is reported as ignored.
//! `IRONVERBS_VM` names the program that boots it, in place of `cargo vm`. In the guest, this program issues the list itself: `--issue
//! DEVICE LIST`.

mod cases;
mod complete;
mod elements;
mod guest;
mod list;
mod ours;
mod record;
mod ring_end;

use elements::{Part, difference};
use guest::Outcome;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use list::{Case, Kind, List};
use record::{Element, Numbers};
use softcx::bits::be16;
use softcx::bits::wqe::srq_next;
use std::fmt::Write as _;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

/// A test of what came of the list.
type Test = Box<dyn Fn(&List, &Outcome) -> Result<(), String> + Send>;

/// The two ways of libibverbs.
const SIDES: [&str; 2] = ["classic", "extended"];
/// And this library's.
const OURS: &str = "ours";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    if let [_, option, device, list] = &words[..]
        && option == "--issue"
    {
        ours::issue(device, &std::fs::read_to_string(list).expect("the list can be read"));
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let kernel = std::env::var("IRONVERBS_TEST_KERNEL").ok().filter(|kernel| !kernel.is_empty());
    let list = Arc::new(cases::all());
    let outcome: Arc<OnceLock<Result<Outcome, ()>>> = Arc::default();
    let mut trials = vec![Trial::test("the_list_is_complete", {
        let list = Arc::clone(&list);
        move || is_complete(&list)
    })];
    let Some(kernel) = kernel else {
        trials.push(Trial::ignorable_test("elements_are_those_of_libmlx5", || {
            Ok(Completion::ignored_with("IRONVERBS_TEST_KERNEL names no kernel to boot"))
        }));
        return libtest_mimic::run(&arguments, trials).exit_code();
    };
    let guest = |name: String, test: Test| {
        let (list, outcome, kernel) = (Arc::clone(&list), Arc::clone(&outcome), kernel.clone());
        Trial::test(name, move || {
            let mut failed = None;
            let outcome = outcome.get_or_init(|| guest::run(&kernel, &list).map_err(|error| failed = Some(error)));
            match (outcome, failed) {
                (Ok(outcome), _) => Ok(test(&list, outcome)?),
                (Err(()), Some(error)) => Err(error.into()),
                (Err(()), None) => Err("the guest failed, as the first test tells".into()),
            }
        })
    };
    for side in SIDES.into_iter().chain([OURS]) {
        let test = move |list: &List, outcome: &Outcome| ring_ends(list, outcome, side);
        trials.push(guest(format!("{side}::every_element_begins_at_every_block_of_a_ring"), Box::new(test)));
    }
    trials.push(guest("every_side_uses_blue_flame".into(), Box::new(blue_flame)));
    for side in SIDES {
        for (number, case) in list.cases.iter().enumerate() {
            let test = move |list: &List, outcome: &Outcome| equal(list, outcome, side, &list.cases[number]);
            trials.push(guest(format!("{side}::{}", case.name), Box::new(test)));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// All that both sides can is in the list.
fn is_complete(list: &List) -> Result<(), Failed> {
    let missing = complete::missing(list);
    if missing.is_empty() { Ok(()) } else { Err(format!("the list lacks: {}", missing.join("; ")).into()) }
}

/// Each side's elements begin at every block of its rings, which the adapter says to be as long as the side does.
fn ring_ends(list: &List, outcome: &Outcome, side: &str) -> Result<(), String> {
    for queue in cases::RING_END {
        let Elements { all, kind, numbers, .. } = Elements::sends(list, outcome, side, queue)?;
        ring_end::check(queue, kind, all).map_err(|error| format!("{side}: {queue}: {error}"))?;
        // This library does not tell.
        let told = numbers.get(queue, "blocks").ok();
        if side != OURS && told != all[0].ring {
            return Err(format!(
                "{side}: {queue}: the library tells of {told:?} blocks, the adapter of {:?}",
                all[0].ring
            ));
        }
    }
    Ok(())
}

/// Each side has elements that the adapter took from its copy, and others that it took from the ring. That a copy is what the ring
/// holds, the adapter checks: the guest's run fails where it is not.
fn blue_flame(list: &List, outcome: &Outcome) -> Result<(), String> {
    for side in SIDES.into_iter().chain([OURS]) {
        let mut count = [0, 0];
        for queue in list.queues.keys() {
            for element in Elements::sends(list, outcome, side, queue)?.all {
                count[usize::from(element.copied)] += 1;
            }
        }
        let [rings, copies] = count;
        if rings == 0 || copies == 0 {
            return Err(format!(
                "{side}: of its elements the adapter took {copies} from copies and {rings} from rings"
            ));
        }
    }
    Ok(())
}

fn numbers<'a>(outcome: &'a Outcome, side: &str) -> Result<&'a Numbers, String> {
    outcome.sides.get(side).ok_or_else(|| format!("{side} did not run"))
}

/// The elements of one case.
fn equal(list: &List, outcome: &Outcome, side: &str, case: &Case) -> Result<(), String> {
    let mut wrong = String::new();
    for (queue, range) in &case.sends {
        let find = |side| Elements::sends(list, outcome, side, queue);
        compare(&mut wrong, &format!("send {queue}"), range, &find(side)?, &find(OURS)?);
    }
    for (queue, range) in &case.receives {
        let find = |side| Elements::receives(list, outcome, side, queue);
        compare(&mut wrong, &format!("receive {queue}"), range, &find(side)?, &find(OURS)?);
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// All elements of one queue of one side.
struct Elements<'a> {
    all: &'a [Element],
    numbers: &'a Numbers,
    kind: Kind,
    what: What,
}

/// Which ring they are of.
enum What {
    Sends,
    Receives,
    /// A shared queue's, whose elements are used for the first time up to that number.
    Shared(usize),
}

impl<'a> Elements<'a> {
    fn sends(list: &List, outcome: &'a Outcome, side: &str, queue: &str) -> Result<Self, String> {
        let numbers = numbers(outcome, side)?;
        let all = outcome.record.sends.get(&numbers.get(queue, "qpn")?).map_or(&[][..], Vec::as_slice);
        let found = Self { all, numbers, kind: list.queues[queue].kind, what: What::Sends };
        found.complete(side, queue, list.total(queue).0)
    }

    fn receives(list: &List, outcome: &'a Outcome, side: &str, queue: &str) -> Result<Self, String> {
        let numbers = numbers(outcome, side)?;
        let kind = list.queues[queue].kind;
        let record = &outcome.record;
        let (rings, of, what) = match kind {
            // One is never posted: the list's end.
            Kind::Xrc => {
                let elements = (list.queues[queue].recv_wr + 1).next_power_of_two();
                (&record.shared_receives, "srqn", What::Shared(elements - 1))
            }
            _ => (&record.receives, "qpn", What::Receives),
        };
        let all = rings.get(&numbers.get(queue, of)?).map_or(&[][..], Vec::as_slice);
        let found = Self { all, numbers, kind, what };
        let found = found.complete(side, queue, list.total(queue).1)?;
        let linked = |pair: &[Element]| u32::from(be16(&pair[0].bytes, srq_next::NEXT_INDEX)) == pair[1].index;
        if kind == Kind::Xrc && !all.windows(2).all(linked) {
            return Err(format!("{side}: an element of {queue} is not the one that the element before it names"));
        }
        Ok(found)
    }

    fn complete(self, side: &str, queue: &str, total: usize) -> Result<Self, String> {
        match self.all.len() == total {
            true => Ok(self),
            false => Err(format!("{side}: of {queue}, the adapter fetched {} elements of {total}", self.all.len())),
        }
    }

    fn parts(&self, number: usize) -> Vec<Part> {
        let Element { bytes, index, .. } = &self.all[number];
        let (mut parts, fresh) = match self.what {
            What::Sends => (elements::send(bytes, self.kind, self.numbers), true),
            What::Receives => (elements::receive(bytes, false, true, self.numbers), true),
            What::Shared(fresh) => (elements::receive(bytes, true, number < fresh, self.numbers), number < fresh),
        };
        if fresh {
            let index = elements::Value::Named(index.to_string());
            parts.push(Part { at: bytes.len(), what: "place in the ring", value: index });
        }
        parts
    }
}

/// Compares those elements, and says what is wrong with the first that differ.
fn compare(wrong: &mut String, what: &str, range: &Range<usize>, theirs: &Elements<'_>, ours: &Elements<'_>) {
    const SHOWN: usize = 3;
    let differ: Vec<_> = range
        .clone()
        .filter_map(|number| Some((number, difference(&theirs.parts(number), &ours.parts(number))?)))
        .collect();
    for (number, difference) in differ.iter().take(SHOWN) {
        let hex = |elements: &Elements<'_>| -> String {
            elements.all[*number].bytes.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let _ = writeln!(
            wrong,
            "{what}, element {number}: libmlx5 has {difference}\n  libmlx5: {}\n  ours:    {}",
            hex(theirs),
            hex(ours)
        );
    }
    if differ.len() > SHOWN {
        let _ = writeln!(wrong, "{what}: {} elements differ, of {}", differ.len(), range.len());
    }
}
