//! Issues the list by this library.
//!
//! # Safety argument
//!
//! All that is posted names bytes of one region, which deregisters before it frees its memory, and which is read and written
//! by copy. Numbers of work requests stay below 2^32.
#![allow(unsafe_code)]

use crate::list::{IOVA, pattern};
use ironverbs::{
    AccessFlags, AddressHandle, Any, Connected, Context, Cq, GidIndex, Grh, Inline, InlinePieces, Mr, Mw, Path,
    Payload, Pd, PortNum, PostError, QKey, Qp, QpBuilder, Qpn, Receives, RecvBatch, RemoteAddr, SendBatch, Sge, Srq,
    Srqn, StaticRate, Uc, Ud, Wc, WrFlags, Xrc, XrcRecvQp, XrcSend,
};
use std::collections::BTreeMap;
use std::str::SplitWhitespace;
use std::time::{Duration, Instant};

const PORT: PortNum = PortNum::ONE;
const GID_INDEX: GidIndex = GidIndex(0);
const QKEY: QKey = QKey(0x1111_1111);
const CQ_DEPTH: u32 = 511;
const PATIENCE: Duration = Duration::from_secs(30);

/// What the list has made so far.
struct Scene {
    windows: BTreeMap<String, Mw>,
    addresses: BTreeMap<String, AddressHandle>,
    queues: BTreeMap<String, Queue>,
    region: Option<Mr>,
    pd: Pd,
    context: Context,
    /// Number of the last work request.
    last: u64,
}

struct Queue {
    ends: Ends,
    batch: Vec<Request>,
    send_cq: Cq,
    recv_cq: Cq,
}

enum Ends {
    Rc(Qp),
    Uc(Qp<Any, Uc>),
    Ud(Qp<Any, Ud>),
    Xrc(Box<Extended>),
}

/// An extended connection with its shared receive queue.
struct Extended {
    qp: Qp<Any, XrcSend>,
    srq: Srq<Any, Xrc>,
    _recv: XrcRecvQp,
}

/// A line of the list.
struct Request {
    op: String,
    flags: WrFlags,
    imm: u32,
    remote: RemoteAddr,
    a: u64,
    b: u64,
    /// The address, or the window.
    target: String,
    inline: bool,
    pieces: Vec<(usize, usize)>,
    access: AccessFlags,
}

/// Issues the list on that device, and prints the numbers that it names things by.
///
/// # Panics
///
/// If anything fails.
pub fn issue(device: &str, list: &str) {
    let context = Context::open(device).unwrap();
    let pd = context.alloc_pd().unwrap();
    let mut scene = Scene {
        windows: BTreeMap::new(),
        addresses: BTreeMap::new(),
        queues: BTreeMap::new(),
        region: None,
        pd,
        context,
        last: 0,
    };
    for (number, line) in (1..).zip(list.lines()) {
        let mut words = Words(line.split_whitespace());
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scene.line(&mut words)));
        if let Err(panic) = done {
            eprintln!("line {number} of the list: {line}");
            std::panic::resume_unwind(panic);
        }
    }
    println!("done");
}

struct Words<'a>(SplitWhitespace<'a>);

impl Words<'_> {
    fn word(&mut self) -> String {
        self.0.next().expect("one more word").to_owned()
    }

    fn number(&mut self) -> u64 {
        let word = self.word();
        let number = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => word.parse(),
        };
        number.unwrap_or_else(|_| panic!("{word} is a number"))
    }

    fn flags(&mut self) -> WrFlags {
        self.word().chars().fold(WrFlags::NONE, |flags, letter| {
            flags
                | match letter {
                    's' => WrFlags::SIGNALED,
                    'e' => WrFlags::SOLICITED,
                    'f' => WrFlags::FENCE,
                    _ => WrFlags::NONE,
                }
        })
    }

    fn pieces(&mut self) -> Vec<(usize, usize)> {
        let piece = |word: &str| {
            let (offset, length) = word.split_once(':').expect("OFFSET:LENGTH");
            (offset.parse().unwrap(), length.parse().unwrap())
        };
        self.0.by_ref().map(piece).collect()
    }
}

fn tell(name: &str, what: &str, number: u32) {
    println!("number {name}.{what} {number:#x}");
}

impl Scene {
    fn line(&mut self, words: &mut Words<'_>) {
        match &*words.word() {
            "region" => self.region(words),
            "queue" => self.queue(words),
            "address" => self.address(words),
            "window" => self.window(words),
            "receive" => self.receive(words),
            "send" => {
                let queue = words.word();
                let request = Request {
                    op: words.word(),
                    flags: words.flags(),
                    imm: words.number() as u32,
                    remote: self.mr().remote(words.number() as usize).unwrap(),
                    a: words.number(),
                    b: words.number(),
                    target: words.word(),
                    inline: words.word() == "inline",
                    pieces: words.pieces(),
                    access: AccessFlags::LOCAL_READ,
                };
                self.queues.get_mut(&queue).unwrap().batch.push(request);
            }
            op @ ("bind" | "unbind" | "invalidate") => {
                let (queue, window, flags) = (words.word(), words.word(), words.flags());
                let mut request = Request {
                    op: op.to_owned(),
                    flags,
                    imm: 0,
                    remote: self.mr().remote(0).unwrap(),
                    a: 0,
                    b: 0,
                    target: window,
                    inline: false,
                    pieces: vec![],
                    access: AccessFlags::LOCAL_READ,
                };
                if op == "bind" {
                    request.pieces = vec![(words.number() as usize, words.number() as usize)];
                    request.access = AccessFlags::from_bits(words.number() as u32);
                }
                self.queues.get_mut(&queue).unwrap().batch.push(request);
            }
            "submit" => self.submit(words),
            other => panic!("{other} is a word of the list"),
        }
    }

    fn mr(&self) -> &Mr {
        self.region.as_ref().expect("the region is there")
    }

    fn region(&mut self, words: &mut Words<'_>) {
        let bytes = words.number() as usize;
        let access = AccessFlags::ALL | AccessFlags::MW_BIND;
        let mut mr = self.pd.mr_builder(bytes).access(access).iova(IOVA).build().unwrap();
        mr.write(0, &(0..bytes).map(pattern).collect::<Vec<_>>()).unwrap();
        tell("region", "lkey", mr.lkey().0);
        tell("region", "rkey", mr.rkey().0);
        self.region = Some(mr);
    }

    fn queue(&mut self, words: &mut Words<'_>) {
        let (name, kind) = (words.word(), words.word());
        let signal_all = words.number() != 0;
        let [send_wr, send_sge, inline, recv_wr, recv_sge] = [(); 5].map(|()| words.number() as u32);
        let cq = || self.context.create_cq(CQ_DEPTH).unwrap();
        let (send_cq, recv_cq, pd) = (cq(), cq(), &self.pd);
        macro_rules! sized {
            ($builder:expr) => {
                $builder.signal_all(signal_all).max_send_wr(send_wr).max_send_sge(send_sge).max_inline_bytes(inline)
            };
        }
        macro_rules! connected {
            ($builder:expr, $access:expr) => {{
                let builder = sized!($builder).max_recv_wr(recv_wr).max_recv_sge(recv_sge).access($access);
                let prepared = builder.build().unwrap();
                let itself = prepared.endpoint();
                prepared.connect(&itself).unwrap()
            }};
        }
        let (ends, qpn) = match &*kind {
            "RC" => {
                let qp = connected!(QpBuilder::rc(pd, &send_cq, &recv_cq), AccessFlags::ALL);
                let qpn = qp.qpn();
                (Ends::Rc(qp), qpn)
            }
            "UC" => {
                let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
                let qp = connected!(QpBuilder::uc(pd, &send_cq, &recv_cq), access);
                let qpn = qp.qpn();
                (Ends::Uc(qp), qpn)
            }
            "UD" => {
                let builder = sized!(QpBuilder::ud(pd, &send_cq, &recv_cq)).max_recv_wr(recv_wr).max_recv_sge(recv_sge);
                let qp = builder.qkey(QKEY).build().unwrap().activate().unwrap();
                let qpn = qp.qpn();
                (Ends::Ud(qp), qpn)
            }
            "XRC" => {
                let domain = self.context.create_xrcd().unwrap();
                let builder = self.context.srq_builder(pd, recv_wr).max_sge(recv_sge);
                let srq = builder.xrc(&domain, &recv_cq).build().unwrap();
                tell(&name, "srqn", srq.number().get());
                let recv = domain.recv_qp().access(AccessFlags::ALL).build().unwrap();
                let send = sized!(QpBuilder::xrc_send(pd, &send_cq)).build().unwrap();
                let (recv_end, send_end) = (recv.endpoint(), send.endpoint());
                let _recv = recv.connect(&send_end).unwrap();
                let qp = send.connect(&recv_end).unwrap();
                let qpn = qp.qpn();
                (Ends::Xrc(Box::new(Extended { qp, srq, _recv })), qpn)
            }
            other => panic!("{other} is a kind of queue pair"),
        };
        tell(&name, "qpn", qpn.get());
        self.queues.insert(name, Queue { ends, batch: vec![], send_cq, recv_cq });
    }

    fn address(&mut self, words: &mut Words<'_>) {
        let name = words.word();
        let (sl, rate, global) = (words.number() as u8, words.number() as u8, words.number() != 0);
        let (traffic_class, hop_limit) = (words.number() as u8, words.number() as u8);
        let flow_label = words.number() as u32;
        let dlid = self.context.query_port(PORT).unwrap().lid;
        let dgid = self.context.query_gid(PORT, GID_INDEX).unwrap().unwrap().gid;
        let grh = Grh { dgid, sgid_index: GID_INDEX, hop_limit, traffic_class, flow_label };
        let path = Path { port: PORT, dlid, sl, static_rate: StaticRate(rate), grh: global.then_some(grh) };
        self.addresses.insert(name, self.pd.create_ah(&path).unwrap());
    }

    fn window(&mut self, words: &mut Words<'_>) {
        let (name, queue) = (words.word(), words.word());
        let window = match (words.number(), &self.queues[&queue].ends) {
            (1, _) => self.pd.alloc_mw(),
            (2, Ends::Rc(qp)) => qp.alloc_mw(),
            _ => panic!("a window is of type 1 or 2, on a reliable connection"),
        };
        let window = window.unwrap();
        tell(&name, "window", window.rkey().0);
        self.windows.insert(name, window);
    }

    fn receive(&mut self, words: &mut Words<'_>) {
        let name = words.word();
        let sges = self.sges(&words.pieces());
        self.last += 1;
        let wr_id = self.last;
        match &mut self.queues.get_mut(&name).unwrap().ends {
            Ends::Rc(qp) => post(qp.recv_batch(), wr_id, &sges),
            Ends::Uc(qp) => post(qp.recv_batch(), wr_id, &sges),
            Ends::Ud(qp) => post(qp.recv_batch(), wr_id, &sges),
            Ends::Xrc(ends) => post(ends.srq.recv_batch(), wr_id, &sges),
        }
    }

    fn sges(&self, pieces: &[(usize, usize)]) -> Vec<Sge> {
        pieces.iter().map(|&(offset, length)| self.mr().sge(offset..offset + length).unwrap()).collect()
    }

    fn submit(&mut self, words: &mut Words<'_>) {
        let name = words.word();
        let Queue { batch: requests, .. } = self.queues.get_mut(&name).unwrap();
        let requests = std::mem::take(requests);
        let payloads: Vec<_> = requests.iter().map(|request| Bytes::of(self, request)).collect();
        let Scene { windows, addresses, queues, region, last, .. } = self;
        let mr = region.as_ref().unwrap();
        let queue = queues.get_mut(&name).unwrap();
        let first = *last + 1;
        *last += requests.len() as u64;
        let all = (first..).zip(&requests).zip(&payloads);
        macro_rules! submit {
            ($qp:expr, |$batch:ident, $wr_id:ident, $request:ident, $payload:ident| $push:expr) => {{
                let mut $batch = $qp.send_batch();
                for (($wr_id, $request), bytes) in all {
                    let slices = bytes.slices();
                    let $payload = bytes.payload(&slices);
                    $push.unwrap();
                }
                // SAFETY: see the module's argument.
                unsafe { $batch.submit() }.unwrap();
            }};
        }
        match &mut queue.ends {
            Ends::Rc(qp) => {
                submit!(qp, |batch, wr_id, request, payload| push_rc(&mut batch, wr_id, request, payload, windows, mr))
            }
            Ends::Uc(qp) => submit!(qp, |batch, wr_id, request, payload| push(&mut batch, wr_id, request, payload)),
            Ends::Ud(qp) => {
                let qpn = qp.qpn();
                submit!(qp, |batch, wr_id, request, payload| push_ud(
                    &mut batch,
                    wr_id,
                    request,
                    payload,
                    &addresses[&request.target],
                    qpn
                ))
            }
            Ends::Xrc(ends) => {
                let srqn = ends.srq.number();
                submit!(ends.qp, |batch, wr_id, request, payload| push_xrc(&mut batch, wr_id, request, payload, srqn))
            }
        }
        let (sends, receives) = (words.number(), words.number());
        for wc in completions(&mut queue.send_cq, sends).iter().chain(&completions(&mut queue.recv_cq, receives)) {
            for window in windows.values_mut() {
                window.observe(wc);
            }
        }
    }
}

/// The payload of a request, as it is given to a batch.
enum Bytes {
    Entries(Vec<Sge>),
    Inline(Vec<Vec<u8>>),
}

impl Bytes {
    fn of(scene: &Scene, request: &Request) -> Self {
        if !request.inline {
            return Self::Entries(if request.op == "bind" { vec![] } else { scene.sges(&request.pieces) });
        }
        let copy = |&(offset, length): &(usize, usize)| {
            let mut bytes = vec![0; length];
            scene.mr().read(offset, &mut bytes).unwrap();
            bytes
        };
        Self::Inline(request.pieces.iter().map(copy).collect())
    }

    fn slices(&self) -> Vec<&[u8]> {
        match self {
            Self::Entries(_) => vec![],
            Self::Inline(pieces) => pieces.iter().map(Vec::as_slice).collect(),
        }
    }

    fn payload<'a>(&'a self, slices: &'a [&'a [u8]]) -> Payload<'a> {
        match (self, slices) {
            (Self::Entries(sges), _) => sges[..].into(),
            (_, [piece]) => Inline(piece).into(),
            _ => InlinePieces(slices).into(),
        }
    }
}

fn push<T: Connected>(
    batch: &mut SendBatch<'_, Any, T>,
    wr_id: u64,
    request: &Request,
    payload: Payload<'_>,
) -> Result<(), PostError> {
    let Request { flags, imm, remote, .. } = *request;
    match &*request.op {
        "SEND" => batch.send(wr_id, flags, payload),
        "SEND_IMM" => batch.send_imm(wr_id, flags, payload, imm),
        "WRITE" => batch.write(wr_id, flags, payload, remote),
        "WRITE_IMM" => batch.write_imm(wr_id, flags, payload, remote, imm),
        other => panic!("{other} is an operation of this connection"),
    }
}

fn push_rc(
    batch: &mut SendBatch<'_>,
    wr_id: u64,
    request: &Request,
    payload: Payload<'_>,
    windows: &mut BTreeMap<String, Mw>,
    mr: &Mr,
) -> Result<(), PostError> {
    let Request { flags, remote, a, b, .. } = *request;
    let window = windows.get_mut(&request.target);
    match (&*request.op, window, &payload) {
        ("READ", _, Payload::Sges(sges)) => batch.read(wr_id, flags, sges, remote),
        ("CAS", _, Payload::Sges(sges)) => batch.compare_swap(wr_id, flags, sges[0], remote, a, b),
        ("FAA", _, Payload::Sges(sges)) => batch.fetch_add(wr_id, flags, sges[0], remote, a),
        ("SEND_INV", Some(window), _) => batch.send_inv(wr_id, flags, payload, window.rkey()),
        ("bind", Some(window), _) => {
            let (offset, length) = request.pieces[0];
            let binding = window.plan_bind(mr, offset..offset + length, request.access).unwrap();
            batch.bind_mw(wr_id, flags, window, binding)
        }
        ("unbind", Some(window), _) => {
            let binding = window.plan_unbind().unwrap();
            batch.bind_mw(wr_id, flags, window, binding)
        }
        ("invalidate", Some(window), _) => batch.local_inv(wr_id, flags, window),
        _ => push(batch, wr_id, request, payload),
    }
}

fn push_ud(
    batch: &mut SendBatch<'_, Any, Ud>,
    wr_id: u64,
    request: &Request,
    payload: Payload<'_>,
    address: &AddressHandle,
    qpn: Qpn,
) -> Result<(), PostError> {
    let to = address.to(qpn, QKEY);
    match &*request.op {
        "SEND" => batch.send_to(wr_id, request.flags, payload, to),
        "SEND_IMM" => batch.send_imm_to(wr_id, request.flags, payload, request.imm, to),
        other => panic!("{other} is an operation of datagrams"),
    }
}

fn push_xrc(
    batch: &mut SendBatch<'_, Any, XrcSend>,
    wr_id: u64,
    request: &Request,
    payload: Payload<'_>,
    srqn: Srqn,
) -> Result<(), PostError> {
    let Request { flags, imm, remote, a, b, .. } = *request;
    let mut batch = batch.to_srq(srqn);
    match (&*request.op, &payload) {
        ("SEND", _) => batch.send(wr_id, flags, payload),
        ("SEND_IMM", _) => batch.send_imm(wr_id, flags, payload, imm),
        ("WRITE", _) => batch.write(wr_id, flags, payload, remote),
        ("WRITE_IMM", _) => batch.write_imm(wr_id, flags, payload, remote, imm),
        ("READ", Payload::Sges(sges)) => batch.read(wr_id, flags, sges, remote),
        ("CAS", Payload::Sges(sges)) => batch.compare_swap(wr_id, flags, sges[0], remote, a, b),
        ("FAA", Payload::Sges(sges)) => batch.fetch_add(wr_id, flags, sges[0], remote, a),
        (other, _) => panic!("{other} is an operation of extended connections"),
    }
}

fn post<T: Receives>(mut batch: RecvBatch<'_, Any, T>, wr_id: u64, sges: &[Sge]) {
    batch.recv(wr_id, sges).unwrap();
    // SAFETY: see the module's argument.
    unsafe { batch.submit() }.unwrap();
}

/// Waits for so many, all of which must be successes.
fn completions(cq: &mut Cq, count: u64) -> Vec<Wc> {
    let deadline = Instant::now() + PATIENCE;
    let mut all = vec![];
    while (all.len() as u64) < count {
        match cq.poll_one().unwrap() {
            Some(wc) => {
                wc.outcome().unwrap_or_else(|error| panic!("{error}: {wc:?}"));
                all.push(wc);
            }
            None => assert!(Instant::now() < deadline, "{} of {count} completions came", all.len()),
        }
    }
    all
}
