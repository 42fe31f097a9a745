//! Two connected queue pairs, and beside each region the bytes that it should hold.
//!
//! # Safety argument
//!
//! The tests post raw scatter/gather entries, and this is the only file that submits them. All regions they name belong to
//! an [`Mr`], which deregisters before it frees its memory, and their bytes are reached by its copying functions only, so
//! no reference to them exists. Entries that a test makes wrong on purpose carry a key that names no region or one of the
//! same process's other regions, which are used in the same way. No work request's number reaches 2^32 on a queue pair
//! whose completions reach a pool.
#![allow(unsafe_code)]

use crate::target::{Target, fast_forward};
use fastrand::Rng;
use ironverbs::{
    AccessFlags, AckTimeout, Any, CompChannel, ConnectOptions, Connected, Context, Cq, Endpoint, GidIndex, Mr, Mtu, Pd,
    PortNum, PostError, PreparedQp, Psn, QKey, Qp, QpBuilder, QpType, Rc, Receives, RecvBatch, RecvHalf, RemoteAddr,
    RnrTimer, SendBatch, SendHalf, Sge, Srq, SrqKind, Uc, Ud, Wc, WcOpcode, WcStatus,
};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

/// How long anything that must happen may take. Never reached when all is well, also in an emulated guest.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How long to look for something that must not happen.
pub const SHORT: Duration = Duration::from_millis(30);

/// What a pair is made like. Sizes are what is asked for; the queue pair's `cap` tells what it got.
#[derive(Clone, Copy)]
pub struct Setup {
    pub send_wr: u32,
    pub recv_wr: u32,
    pub send_sge: u32,
    pub recv_sge: u32,
    pub inline: u32,
    pub cq_depth: u32,
    pub signal_all: bool,
    /// Whether each completion queue has a channel.
    pub channel: bool,
    pub psn: Option<Psn>,
    /// What the queue pairs allow their peers.
    pub qp_access: AccessFlags,
    /// What the regions allow.
    pub mr_access: AccessFlags,
    pub mr_bytes: usize,
    /// Changes the library's default options of the connection.
    pub options: fn(&mut ConnectOptions),
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            send_wr: 32,
            recv_wr: 32,
            send_sge: 4,
            recv_sge: 4,
            inline: 64,
            cq_depth: 256,
            signal_all: false,
            channel: false,
            psn: None,
            qp_access: AccessFlags::ALL,
            mr_access: AccessFlags::ALL,
            mr_bytes: 32 * 1024,
            options: patient,
        }
    }
}

/// Long time-outs: in an emulated guest with few processors, a busy test keeps the driver from its work for a while.
pub fn patient(options: &mut ConnectOptions) {
    options.timeout = AckTimeout::from_code(18).unwrap();
}

/// Short retries, so that errors come soon.
pub fn impatient(options: &mut ConnectOptions) {
    options.timeout = AckTimeout::from_code(12).unwrap();
    options.retry_count = 2;
    options.rnr_retry = 1;
    options.min_rnr_timer = RnrTimer::from_code(8).unwrap();
}

/// A message waits for its receive for as long as it takes.
pub fn receives_may_be_late(options: &mut ConnectOptions) {
    patient(options);
    options.rnr_retry = 7;
}

/// A transport that connects, and how its queue pairs are made.
pub trait Kind: Connected + Sized {
    fn builder<'a>(pd: &'a Pd, send_cq: &'a Cq, recv_cq: &'a Cq) -> QpBuilder<'a, Any, Self>;
}

impl Kind for Rc {
    fn builder<'a>(pd: &'a Pd, send_cq: &'a Cq, recv_cq: &'a Cq) -> QpBuilder<'a, Any, Self> {
        QpBuilder::rc(pd, send_cq, recv_cq)
    }
}

impl Kind for Uc {
    fn builder<'a>(pd: &'a Pd, send_cq: &'a Cq, recv_cq: &'a Cq) -> QpBuilder<'a, Any, Self> {
        QpBuilder::uc(pd, send_cq, recv_cq)
    }
}

/// One side of a connection, with all it needs.
pub struct Side<T: QpType = Rc> {
    pub qp: Qp<Any, T>,
    pub cq: Cq,
    pub mr: Mr,
    pub channel: Option<CompChannel>,
    pub pd: Pd,
    pub context: Context,
    pub port: PortNum,
    pub gid_index: Option<GidIndex>,
    /// What the region should hold.
    pub image: Vec<u8>,
}

/// Two sides, connected with each other.
pub struct Pair<T: QpType = Rc> {
    pub a: Side<T>,
    pub b: Side<T>,
}

/// A side that is not connected yet.
pub struct Half<T: QpType = Rc> {
    pub prepared: PreparedQp<Any, T>,
    pub cq: Cq,
    pub mr: Mr,
    pub channel: Option<CompChannel>,
    pub pd: Pd,
    pub context: Context,
    port: PortNum,
}

impl Half {
    pub fn new(target: &Target, context: Context, setup: &Setup) -> Self {
        Self::of_kind(target, context, setup)
    }
}

impl<T: Kind> Half<T> {
    pub fn of_kind(target: &Target, context: Context, setup: &Setup) -> Self {
        let channel = setup.channel.then(|| context.create_comp_channel().unwrap());
        let builder = context.cq_builder(setup.cq_depth);
        let cq = match &channel {
            Some(channel) => builder.channel(channel).build().unwrap(),
            None => builder.build().unwrap(),
        };
        let pd = context.alloc_pd().unwrap();
        let mr = pd.alloc_mr(setup.mr_bytes, setup.mr_access).unwrap();
        let prepared = prepare_kind(target, &pd, &cq, &cq, setup);
        Self { prepared, cq, mr, channel, pd, context, port: target.port }
    }

    pub fn connect(self, remote: &Endpoint, setup: &Setup) -> Side<T> {
        let Self { prepared, cq, mr, channel, pd, context, port } = self;
        let gid_index = prepared.gid_index();
        let image = vec![0; mr.len_bytes()];
        Side { qp: connect(prepared, remote, setup), cq, mr, channel, pd, context, port, gid_index, image }
    }
}

/// A queue pair of that kind, not connected yet.
pub fn prepare(target: &Target, pd: &Pd, send_cq: &Cq, recv_cq: &Cq, setup: &Setup) -> PreparedQp {
    prepare_kind(target, pd, send_cq, recv_cq, setup)
}

/// As [`prepare`], of any kind.
pub fn prepare_kind<T: Kind>(
    target: &Target,
    pd: &Pd,
    send_cq: &Cq,
    recv_cq: &Cq,
    setup: &Setup,
) -> PreparedQp<Any, T> {
    builder(target, pd, send_cq, recv_cq, setup).build().unwrap()
}

/// As [`prepare_kind`], up to the last settings.
pub fn builder<'a, T: Kind>(
    target: &Target,
    pd: &'a Pd,
    send_cq: &'a Cq,
    recv_cq: &'a Cq,
    setup: &Setup,
) -> QpBuilder<'a, Any, T> {
    let mut builder = T::builder(pd, send_cq, recv_cq)
        .port(target.port)
        .max_send_wr(setup.send_wr)
        .max_recv_wr(setup.recv_wr)
        .max_send_sge(setup.send_sge)
        .max_recv_sge(setup.recv_sge)
        .max_inline_bytes(setup.inline)
        .signal_all(setup.signal_all)
        .access(setup.qp_access);
    if let Some(index) = target.gid_index {
        builder = builder.gid_index(index);
    }
    if let Some(psn) = setup.psn {
        builder = builder.psn(psn);
    }
    builder
}

/// Connects with the setup's options.
pub fn connect<T: Kind>(prepared: PreparedQp<Any, T>, remote: &Endpoint, setup: &Setup) -> Qp<Any, T> {
    let mut options = prepared.connect_options();
    (setup.options)(&mut options);
    prepared.connect_with(remote, &options).unwrap()
}

impl Pair {
    pub fn new(target: &Target, setup: &Setup) -> Self {
        Self::of_kind(target, setup)
    }
}

impl<T: Kind> Pair<T> {
    pub fn of_kind(target: &Target, setup: &Setup) -> Self {
        let half = |context| Half::of_kind(target, context, setup);
        Self::join(half(target.open()), half(target.open_peer()), setup)
    }

    pub fn join(a: Half<T>, b: Half<T>, setup: &Setup) -> Self {
        let (a_end, b_end) = (a.prepared.endpoint(), b.prepared.endpoint());
        Self { a: a.connect(&b_end, setup), b: b.connect(&a_end, setup) }
    }
}

impl<T: Receives> Pair<T> {
    /// The same pair with its sides exchanged.
    pub fn swap(&mut self) {
        std::mem::swap(&mut self.a, &mut self.b);
    }

    /// Fills both regions with random bytes.
    pub fn scramble(&mut self, rng: &mut Rng) {
        self.a.scramble(rng);
        self.b.scramble(rng);
    }

    /// Both regions hold what they should, to the last byte.
    pub fn check(&self) {
        self.a.check("a");
        self.b.check("b");
    }

    /// Path MTU that the connection uses.
    pub fn mtu(&self) -> u32 {
        let [a, b] = [&self.a, &self.b].map(|side| side.qp.endpoint().mtu.unwrap_or(Mtu::B256));
        a.min(b).bytes()
    }
}

impl<T: Receives> Side<T> {
    /// An entry for `len` bytes of the region.
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        self.mr.sge(offset..offset + len).unwrap()
    }

    /// Entries for pieces of the region.
    pub fn sges(&self, pieces: &[Range<usize>]) -> Vec<Sge> {
        pieces.iter().map(|piece| self.mr.sge(piece.clone()).unwrap()).collect()
    }

    pub fn remote(&self, offset: usize) -> RemoteAddr {
        self.mr.remote(offset).unwrap()
    }

    /// Posts a batch of sends.
    pub fn try_send<R>(
        &mut self,
        fill: impl FnOnce(&mut SendBatch<'_, Any, T>) -> Result<R, PostError>,
    ) -> Result<R, PostError> {
        try_send(&mut self.qp, fill)
    }

    /// Posts a batch of sends, which must be accepted.
    pub fn send<R>(&mut self, fill: impl FnOnce(&mut SendBatch<'_, Any, T>) -> Result<R, PostError>) -> R {
        self.try_send(fill).unwrap()
    }

    /// Posts a batch of receives.
    pub fn try_recv<R>(
        &mut self,
        fill: impl FnOnce(&mut RecvBatch<'_, Any, T>) -> Result<R, PostError>,
    ) -> Result<R, PostError> {
        try_recv(&mut self.qp, fill)
    }

    /// Posts one receive, which must be accepted.
    pub fn recv(&mut self, wr_id: u64, sges: &[Sge]) {
        self.try_recv(|batch| batch.recv(wr_id, sges)).unwrap();
    }

    /// Waits for exactly `n` completions.
    pub fn completions(&mut self, n: usize) -> Vec<Wc> {
        completions(&mut self.cq, n)
    }

    /// Waits for one completion, which must be a success.
    pub fn success(&mut self) -> Wc {
        let wc = self.completions(1)[0];
        assert_eq!(wc.status(), WcStatus::SUCCESS, "{wc:?}");
        wc
    }

    /// Waits for `n` completions, all of which must be successes.
    pub fn successes(&mut self, n: usize) -> Vec<Wc> {
        let all = self.completions(n);
        for wc in &all {
            assert_eq!(wc.status(), WcStatus::SUCCESS, "{wc:?} in {all:?}");
        }
        all
    }

    /// No completion is there, and none comes for a while.
    pub fn silent(&mut self) {
        silent(&mut self.cq);
    }

    /// Waits until every send that was posted is done, without a look at its completion.
    ///
    /// Soft-RoCE frees a request's slot when it is done, and simulated devices come to rest; for others it is a guess.
    pub fn settle(&mut self, target: &Target) {
        if fast_forward(PATIENCE) {
            // All is done.
        } else if target.kind.is_rxe() {
            let capacity = self.qp.cap().max_send_wr;
            eventually("all sends are done", || self.qp.send_batch().remaining() == capacity);
        } else {
            thread::sleep(SHORT);
        }
    }

    /// Fills the region with random bytes.
    pub fn scramble(&mut self, rng: &mut Rng) {
        rng.fill(&mut self.image);
        self.mr.write(0, &self.image).unwrap();
    }

    /// Puts bytes into the region, as the program would.
    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.mr.write(offset, bytes).unwrap();
        self.expect(offset, bytes);
    }

    /// From here on the region should hold these bytes there.
    pub fn expect(&mut self, offset: usize, bytes: &[u8]) {
        self.image[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Bytes of the region.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.mr.read(offset, &mut out).unwrap();
        out
    }

    /// The region holds what it should, to the last byte.
    pub fn check(&self, name: &str) {
        let now = self.bytes(0, self.image.len());
        if now != self.image {
            let wrong: Vec<_> = (0..now.len()).filter(|i| now[*i] != self.image[*i]).collect();
            let (first, last) = (wrong[0], wrong[wrong.len() - 1]);
            let shown = first..(first + 16).min(now.len());
            panic!(
                "side {name}: {} bytes between {first} and {last} differ; from {first} there is {:02x?}, should be {:02x?}",
                wrong.len(),
                &now[shown.clone()],
                &self.image[shown],
            );
        }
    }
}

/// Bytes of a receive of which a datagram has the first 40.
pub const DATAGRAM_ROOM: usize = 40 + 4096;
/// What the datagram sides' queue pairs take.
pub const QKEY: QKey = QKey(0x1111_1111);

impl Side<Ud> {
    /// A queue pair for datagrams on `context`, from the GID at `gid_index`, or the target's.
    pub fn datagrams(target: &Target, context: Context, gid_index: Option<GidIndex>, setup: &Setup) -> Self {
        let cq = context.create_cq(setup.cq_depth).unwrap();
        let pd = context.alloc_pd().unwrap();
        let mr = pd.alloc_mr(setup.mr_bytes, setup.mr_access).unwrap();
        let mut builder = QpBuilder::ud(&pd, &cq, &cq)
            .port(target.port)
            .qkey(QKEY)
            .max_send_wr(setup.send_wr)
            .max_recv_wr(setup.recv_wr)
            .max_send_sge(setup.send_sge)
            .max_recv_sge(setup.recv_sge)
            .max_inline_bytes(setup.inline);
        if let Some(index) = gid_index.or(target.gid_index) {
            builder = builder.gid_index(index);
        }
        if let Some(psn) = setup.psn {
            builder = builder.psn(psn);
        }
        let prepared = builder.build().unwrap();
        let gid_index = prepared.gid_index();
        let image = vec![0; mr.len_bytes()];
        let qp = prepared.activate().unwrap();
        Self { qp, cq, mr, channel: None, pd, context, port: target.port, gid_index, image }
    }
}

/// Posts a batch of sends.
pub fn try_send<T: QpType, R>(
    qp: &mut Qp<Any, T>,
    fill: impl FnOnce(&mut SendBatch<'_, Any, T>) -> Result<R, PostError>,
) -> Result<R, PostError> {
    let mut batch = qp.send_batch();
    let result = fill(&mut batch)?;
    // SAFETY: see the module's argument.
    unsafe { batch.submit()? }
    Ok(result)
}

/// Posts a batch of sends to a half.
pub fn try_send_half<R>(
    half: &mut SendHalf,
    fill: impl FnOnce(&mut SendBatch<'_>) -> Result<R, PostError>,
) -> Result<R, PostError> {
    let mut batch = half.send_batch();
    let result = fill(&mut batch)?;
    // SAFETY: see the module's argument.
    unsafe { batch.submit()? }
    Ok(result)
}

/// Posts a batch of receives to a half.
pub fn try_recv_half<R>(
    half: &mut RecvHalf,
    fill: impl FnOnce(&mut RecvBatch<'_>) -> Result<R, PostError>,
) -> Result<R, PostError> {
    submit_recv(half.recv_batch(), fill)
}

/// Posts a batch of receives.
pub fn try_recv<T: Receives, R>(
    qp: &mut Qp<Any, T>,
    fill: impl FnOnce(&mut RecvBatch<'_, Any, T>) -> Result<R, PostError>,
) -> Result<R, PostError> {
    submit_recv(qp.recv_batch(), fill)
}

/// Posts a batch of receives to a shared receive queue.
pub fn try_recv_shared<K: SrqKind, R>(
    srq: &mut Srq<Any, K>,
    fill: impl FnOnce(&mut RecvBatch<'_>) -> Result<R, PostError>,
) -> Result<R, PostError> {
    submit_recv(srq.recv_batch(), fill)
}

fn submit_recv<T: QpType, R>(
    mut batch: RecvBatch<'_, Any, T>,
    fill: impl FnOnce(&mut RecvBatch<'_, Any, T>) -> Result<R, PostError>,
) -> Result<R, PostError> {
    let result = fill(&mut batch)?;
    // SAFETY: see the module's argument.
    unsafe { batch.submit()? }
    Ok(result)
}

/// Posts a receive on a queue pair that is not connected yet.
pub fn recv_early<T: Receives>(qp: &mut PreparedQp<Any, T>, wr_id: u64, sges: &[Sge]) {
    let mut batch = qp.recv_batch();
    batch.recv(wr_id, sges).unwrap();
    // SAFETY: see the module's argument.
    unsafe { batch.submit().unwrap() }
}

/// Waits for exactly `n` completions.
pub fn completions(cq: &mut Cq, n: usize) -> Vec<Wc> {
    let mut all = Vec::with_capacity(n);
    // More room than is needed at the end: what comes too much is a failure too.
    let mut room = [const { MaybeUninit::uninit() }; 32];
    let patience = Patience::new();
    while all.len() < n {
        let some = cq.poll_into(&mut room).unwrap();
        if some.is_empty() {
            patience.check(&format!("{n} completions, of which came {all:?}"));
        }
        all.extend_from_slice(some);
    }
    assert_eq!(all.len(), n, "a completion too many in {all:?}");
    all
}

/// No completion is there, and none comes for a while.
pub fn silent(cq: &mut Cq) {
    let deadline = Instant::now() + SHORT;
    let simulated = fast_forward(SHORT);
    loop {
        if let Some(wc) = cq.poll_one().unwrap() {
            panic!("a completion that should not be: {wc:?}");
        }
        if simulated || Instant::now() >= deadline {
            return;
        }
        thread::yield_now();
    }
}

/// Lets time pass in which something may happen: the device's own, if that can be told apart.
pub fn pass(time: Duration) {
    if !fast_forward(time) {
        thread::sleep(time);
    }
}

/// Waits until `condition` holds, for as long as patience lasts.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let patience = Patience::new();
    while !condition() {
        patience.check(what);
    }
}

/// For loops that something else has to end.
pub struct Patience(Instant);

impl Patience {
    pub fn new() -> Self {
        Self(Instant::now() + PATIENCE)
    }

    /// Lets others run, and fails when patience is at its end.
    pub fn check(&self, what: &str) {
        assert!(Instant::now() < self.0, "not within {PATIENCE:?}: {what}");
        thread::yield_now();
    }
}

/// The completion of a successful send, and what it must tell.
#[track_caller]
pub fn assert_sent<T: QpType>(wc: &Wc, wr_id: u64, qp: &Qp<Any, T>, opcode: WcOpcode) {
    let done = wc.outcome().unwrap_or_else(|error| panic!("{wc:?}: {error}"));
    assert_eq!((wc.wr_id, wc.qpn(), done.opcode), (wr_id, qp.qpn().get(), opcode), "{wc:?}");
    assert_eq!(done.imm, None, "a send has no immediate data to tell: {wc:?}");
}

/// The completion of a successful receive, and what it must tell.
#[track_caller]
pub fn assert_received<T: QpType>(
    wc: &Wc,
    wr_id: u64,
    qp: &Qp<Any, T>,
    opcode: WcOpcode,
    byte_len: usize,
    imm: Option<u32>,
) {
    let done = wc.outcome().unwrap_or_else(|error| panic!("{wc:?}: {error}"));
    let told = (wc.wr_id, wc.qpn(), done.opcode, done.byte_len as usize, done.imm);
    assert_eq!(told, (wr_id, qp.qpn().get(), opcode, byte_len, imm), "{wc:?}");
}
