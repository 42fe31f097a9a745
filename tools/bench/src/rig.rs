//! Queue pairs on one completion queue of a software ConnectX, each connected to itself.

use crate::Result;
use crate::device::Device;
use crate::hot::{self, Hot};
use ironverbs::{AccessFlags, Context, Cq, Mlx5, Mr, Pages, Qp, QpBuilder, RemoteAddr, Sge, Wc, WcStatus};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Requests of a batch.
pub const LIST: usize = 32;
/// Entries of the longest list.
const MANY_SGES: usize = 30;
/// Requests that are under way at most.
const DEPTH: usize = 16 * LIST;

/// What is measured on.
pub struct Rig {
    all: Vec<Qp<Mlx5>>,
    /// Whose turn it is.
    next: usize,
    pub(crate) cq: Cq<Mlx5>,
    pub(crate) hot: &'static Hot<Mlx5>,
    pub(crate) sge: Sge,
    pub(crate) sges: Vec<Sge>,
    pub(crate) remote: RemoteAddr,
    pub(crate) words: Vec<[u8; 8]>,
    pub(crate) remotes: Vec<RemoteAddr>,
    pub(crate) statuses: Vec<(u64, WcStatus)>,
    pub(crate) values: Vec<MaybeUninit<Wc>>,
    _mr: Mr<Pages>,
    _context: Context<Mlx5>,
    device: Device,
}

impl Rig {
    /// With so many queue pairs.
    pub fn new(count: usize) -> Result<Self> {
        let (device, context) = Device::open("sim")?;
        let context = context.into_provider().map_err(|_| "the software ConnectX is not of mlx5")?;
        let pd = context.alloc_pd()?;
        let mr = pd.alloc_mr(4096, AccessFlags::ALL)?;
        let cq = context.create_cq(2 * DEPTH as u32)?;
        // Where there are many, each has little to do.
        let (depth, sges) = if count == 1 { (DEPTH, MANY_SGES) } else { (LIST, 1) };
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let builder = QpBuilder::rc(&pd, &cq, &cq).access(AccessFlags::ALL).max_inline_bytes(8);
            let builder = builder.max_send_wr(depth as u32).max_recv_wr(depth as u32).max_send_sge(sges as u32);
            let prepared = builder.build()?;
            let itself = prepared.endpoint();
            all.push(prepared.connect(&itself)?);
        }
        let remote = mr.remote(2048)?;
        Ok(Self {
            all,
            next: 0,
            cq,
            hot: black_box(&hot::MLX5),
            sge: mr.sge(0..64)?,
            sges: vec![mr.sge(0..2)?; MANY_SGES],
            remote,
            words: vec![[7; 8]; LIST],
            remotes: vec![remote; LIST],
            statuses: vec![(0, WcStatus::SUCCESS); LIST],
            values: vec![const { MaybeUninit::uninit() }; LIST],
            _mr: mr,
            _context: context,
            device,
        })
    }

    /// The queue pair whose turn it is, of those that are measured together: as many as a batch has requests, spread over all.
    pub fn qp(&mut self) -> &mut Qp<Mlx5> {
        let last = self.all.len() - 1;
        let at = self.next * last / (LIST - 1);
        self.next = (self.next + 1) % LIST;
        &mut self.all[at]
    }

    /// How many batches of `requests` can be posted before the device works, or polled after it has.
    pub fn room(&self, requests: usize) -> usize {
        match self.all.len() {
            1 => DEPTH / requests,
            _ => LIST / requests,
        }
    }

    /// Posts so many receives to the one queue pair.
    pub(crate) fn receive(&mut self, count: usize) {
        let (hot, sge) = (self.hot, self.sge);
        (hot.recv_list)(self.qp(), count as u64, &sge).unwrap();
    }

    /// Puts so many completions into the queue, and leaves them there.
    pub(crate) fn complete(&mut self, count: usize) {
        let (hot, word, remote) = (self.hot, self.words[0], self.remote);
        for _ in 0..count {
            (hot.write_inline)(self.qp(), 0, &word, &remote).unwrap();
        }
        self.work();
    }

    /// Lets the device work.
    pub(crate) fn work(&self) {
        self.device.work(Duration::ZERO);
    }

    /// Lets the device work, and takes every completion.
    pub fn drain(&mut self) {
        self.work();
        while let Some(wc) = self.cq.poll_one().unwrap() {
            assert!(wc.outcome().is_ok(), "{wc:?}");
        }
    }
}
