//! Everything a program sets up, and what of it is still there.
//!
//! # Safety argument
//!
//! The only memory that is posted belongs to regions that deregister before they free it, and that are read and written by
//! copy.
#![allow(unsafe_code)]

use crate::target::Target;
use ironverbs::sys::{Fault, Sys};
use ironverbs::{
    AccessFlags, Any, CompChannel, Context, Cq, DeviceInfo, Error, Memory, Mr, Mw, Notify, Pd, PostError, Qp,
    QpBuilder, QpType, SendBatch, Sge, Srq, Wc,
};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Two connected queue pairs, one of them on a shared receive queue, with a completion queue on a channel, and memory that
/// tells when it is freed. Both queues were resized.
///
/// Dropped in the order of the fields.
pub struct Scene {
    /// A window of each type, bound to nothing.
    pub windows: [Mw; 2],
    pub a: Qp,
    pub b: Qp,
    /// `a` takes its receives from it.
    pub srq: Srq,
    pub mr: Mr<Watched>,
    pub cq: Cq,
    pub channel: CompChannel,
    pub pd: Pd,
}

/// How many commands to the kernel a [`Scene`] takes at least: opening, context, events, queries, PD, MR, channel, CQ and
/// its mapping, its new size and mapping, the same for the SRQ, and its limit, two queue pairs with three mappings, their three
/// changes of state, one arm, two windows. Queues of other devices than Soft-RoCE are the program's own memory, and are not mapped.
pub fn fewest_commands(target: &Target) -> u64 {
    if target.kind.is_rxe() { 30 } else { 20 }
}

impl Scene {
    /// Sets everything up. `context` keeps the context if that much succeeded.
    pub fn new(target: &Target, sys: &dyn Sys, context: &mut Option<Context>, freed: &Freed) -> Result<Self, Error> {
        let info = device(target, sys)?;
        let context = context.insert(Context::open_on(sys, &info)?);
        context.query_port(target.port)?;
        let pd = context.alloc_pd()?;
        let mr = Mr::register(&pd, Watched::new(freed), AccessFlags::ALL)?;
        let channel = context.create_comp_channel()?;
        let mut cq = context.cq_builder(64).channel(&channel).build()?;
        cq.resize(128)?;
        cq.arm(Notify::Any)?;
        let mut srq = context.create_srq(&pd, 16)?;
        srq.arm_limit(1)?;
        if target.kind.is_rxe() {
            // The driver of ConnectX adapters cannot.
            srq.resize(32)?;
        }
        let builder = || {
            let builder = QpBuilder::rc(&pd, &cq, &cq).port(target.port).access(AccessFlags::ALL);
            match target.gid_index {
                Some(index) => builder.gid_index(index),
                None => builder,
            }
        };
        let (a, b) = (builder().srq(&srq).build()?, builder().build()?);
        let (a_end, b_end) = (a.endpoint(), b.endpoint());
        let (a, b) = (a.connect(&b_end)?, b.connect(&a_end)?);
        let windows = [pd.alloc_mw()?, a.alloc_mw()?];
        Ok(Self { windows, a, b, srq, mr, cq, channel, pd })
    }

    /// As [`new`](Self::new), which must succeed, with every command seen by `fault`.
    pub fn watched(target: &Target, fault: &Fault, freed: &Freed) -> (Self, Context) {
        let sys = fault.wrap_sys(target.host.sys());
        let mut context = None;
        let scene = Self::new(target, &*sys, &mut context, freed).unwrap();
        (scene, context.unwrap())
    }

    /// Eight bytes of the region, for a request.
    pub fn entry(&self) -> Sge {
        self.mr.sge(..8).unwrap()
    }
}

/// The device under test, as `sys` lists it.
fn device(target: &Target, sys: &dyn Sys) -> Result<DeviceInfo, Error> {
    Ok(sys.devices()?.into_iter().find(|info| info.name == target.device).expect("the device is still there"))
}

/// Posts a batch of sends.
pub fn send<T: QpType>(
    qp: &mut Qp<Any, T>,
    fill: impl FnOnce(&mut SendBatch<'_, Any, T>) -> Result<(), PostError>,
) -> Result<(), PostError> {
    let mut batch = qp.send_batch();
    fill(&mut batch)?;
    // SAFETY: see the module's argument.
    unsafe { batch.submit() }
}

/// Posts a receive.
pub fn recv(qp: &mut Qp, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
    let mut batch = qp.recv_batch();
    batch.recv(wr_id, sges)?;
    // SAFETY: see the module's argument.
    unsafe { batch.submit() }
}

/// Posts a receive to a shared receive queue.
pub fn recv_shared(srq: &mut Srq, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
    let mut batch = srq.recv_batch();
    batch.recv(wr_id, sges)?;
    // SAFETY: see the module's argument.
    unsafe { batch.submit() }
}

/// Waits for `n` completions.
pub fn completions(cq: &mut Cq, n: usize) -> Vec<Wc> {
    let mut all = vec![];
    let deadline = Instant::now() + Duration::from_secs(20);
    while all.len() < n {
        match cq.poll_one().unwrap() {
            Some(wc) => all.push(wc),
            None => {
                assert!(Instant::now() < deadline, "{n} completions, of which came {all:?}");
                thread::yield_now();
            }
        }
    }
    all
}

/// Whether memory was freed.
#[derive(Clone, Debug, Default)]
pub struct Freed(Arc<AtomicBool>);

impl Freed {
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Memory that tells when it is freed.
#[derive(Debug)]
pub struct Watched {
    bytes: Vec<u8>,
    freed: Freed,
}

impl Watched {
    pub fn new(freed: &Freed) -> Self {
        freed.0.store(false, Ordering::Relaxed);
        Self { bytes: vec![0; 4096], freed: freed.clone() }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.freed.0.store(true, Ordering::Relaxed);
    }
}

// SAFETY: the vector is private, is never grown, and moving it does not move its bytes. No other code refers to them.
unsafe impl Memory for Watched {
    fn as_bytes(&mut self) -> NonNull<[u8]> {
        self.bytes.as_bytes()
    }
}

/// The kernel's objects of the kinds that a context holds, without the contexts themselves; `None`, with a line that says
/// why, if they cannot be counted.
pub fn objects(target: &Target) -> Option<u64> {
    match target.objects() {
        Ok(counts) => Some(["pd", "mr", "cq", "qp", "srq"].iter().filter_map(|kind| counts.get(*kind)).sum()),
        Err(reason) => {
            eprintln!("skipped: the kernel's objects are not counted: {reason}");
            None
        }
    }
}

/// Mappings of device files in this process, or of a simulated device's memory. Each one keeps its context's objects in the
/// kernel.
pub fn device_mappings() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_device = |line: &&str| line.contains("uverbs") || line.contains("memfd:softcx");
    maps.lines().filter(is_device).map(str::to_string).collect()
}

/// There are as many as before.
#[track_caller]
pub fn assert_mappings(before: &[String], why: impl std::fmt::Display) {
    // The kernel may show neighbours as one, so bytes are counted.
    let bytes = |lines: &[String]| -> usize {
        let ends =
            lines.iter().map(|line| line.split(['-', ' ']).take(2).map(|n| usize::from_str_radix(n, 16).unwrap()));
        ends.map(|mut ends| {
            let start = ends.next().unwrap();
            ends.next().unwrap() - start
        })
        .sum()
    };
    let now = device_mappings();
    assert_eq!(bytes(&now), bytes(before), "{why}: {now:#?}, before: {before:#?}");
}
