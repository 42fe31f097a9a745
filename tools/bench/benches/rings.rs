//! Wall-clock times of post and poll on rings of the software ConnectX, whose engine does not run meanwhile, beside the bare
//! stores. `cargo bench -p bench`.

use bench::floor::{Floor, floor_write_inline_list};
use bench::{LIST, OPERATIONS, Operation, Rig};
use criterion::{Bencher, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::{Duration, Instant};

criterion_group!(rings, operations, many_queue_pairs, bare_stores);
criterion_main!(rings);

/// Times `operation`, and not what comes before and after.
fn time(bencher: &mut Bencher<'_>, rig: &mut Rig, operation: &Operation) {
    let room = rig.room(operation.requests) as u64;
    bencher.iter_custom(|times| {
        let (mut total, mut left) = (Duration::ZERO, times);
        while left > 0 {
            let now = left.min(room);
            operation.before(rig, now as usize);
            let started = Instant::now();
            for _ in 0..now {
                operation.run(rig);
            }
            total += started.elapsed();
            rig.drain();
            left -= now;
        }
        total
    });
}

fn operations(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one queue pair");
    let mut rig = Rig::new(1).unwrap();
    for operation in OPERATIONS {
        group.throughput(Throughput::Elements(operation.requests as u64));
        group.bench_function(operation.name, |bencher| time(bencher, &mut rig, operation));
    }
}

/// Posts and polls of as many queue pairs as a batch has requests, spread over all.
fn many_queue_pairs(criterion: &mut Criterion) {
    // Without optimization the software ConnectX takes long to make so many, and the times mean nothing.
    let most = if cfg!(debug_assertions) { 1_000 } else { 10_000 };
    for count in [100, most] {
        let mut group = criterion.benchmark_group(format!("{count} queue pairs"));
        let mut rig = Rig::new(count).unwrap();
        for name in ["write_inline_8", "poll_status_32"] {
            let operation = Operation::named(name).unwrap();
            group.throughput(Throughput::Elements(operation.requests as u64));
            group.bench_function(name, |bencher| time(bencher, &mut rig, operation));
        }
    }
}

fn bare_stores(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("bare stores");
    let mut floor = Floor::new();
    let (words, remotes) = ([[7; 8]; LIST], [ironverbs::RemoteAddr { addr: 0, rkey: ironverbs::Rkey(1) }; LIST]);
    for (name, requests) in [("write_inline_8", 1), ("write_inline_8_list", LIST)] {
        group.throughput(Throughput::Elements(requests as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let floor = black_box(&mut floor);
                floor_write_inline_list(floor, black_box(&words[..requests]), black_box(&remotes[..requests]));
            });
        });
    }
}
