//! An adapter, and what most tests do with it.

use ironverbs::sys::Sys;
use ironverbs::{AccessFlags, Context, Cq, Error, Inline, Mr, Pd, Qp, QpBuilder, Srq, Wc, WrFlags};
use softcx::{DeviceId, SimDevice, SimHost};
use std::time::Duration;

/// An adapter whose queue pairs are connected to each other.
pub struct Rig {
    pub host: SimHost,
    pub device: DeviceId,
    pub cq: Cq,
    pub mr: Mr,
    pub pd: Pd,
    pub context: Context,
}

impl Rig {
    pub fn new(cq_depth: u32) -> Self {
        Self::with(SimDevice::roce("mlx5_0"), |context| context.create_cq(cq_depth))
    }

    /// With a completion queue whose blocks the device packs.
    pub fn packed(cq_depth: u32) -> Self {
        Self::with(SimDevice::roce("mlx5_0"), |context| context.cq_builder(cq_depth).compressed(true).build())
    }

    /// On that adapter, with that completion queue.
    pub fn with(device: SimDevice, cq: impl FnOnce(&Context) -> Result<Cq, Error>) -> Self {
        let host = SimHost::new(1);
        let device = host.add(device);
        let context = Context::open_on(&host, &host.devices().unwrap()[0]).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = cq(&context).unwrap();
        let mr = pd.alloc_mr(1 << 16, AccessFlags::ALL).unwrap();
        Self { host, device, cq, mr, pd, context }
    }

    /// Two queue pairs of that depth.
    pub fn pair(&self, depth: u32, srq: Option<&Srq>) -> [Qp; 2] {
        self.pair_with(depth, srq, |builder| builder)
    }

    /// As [`pair`](Self::pair), with other settings.
    pub fn pair_with(
        &self,
        depth: u32,
        srq: Option<&Srq>,
        set: impl for<'a> Fn(QpBuilder<'a>) -> QpBuilder<'a>,
    ) -> [Qp; 2] {
        let prepare = || {
            let builder = QpBuilder::rc(&self.pd, &self.cq, &self.cq).access(AccessFlags::ALL).max_inline_bytes(128);
            let builder = set(builder.max_send_wr(depth).max_recv_wr(depth));
            match srq {
                Some(srq) => builder.srq(srq).build().unwrap(),
                None => builder.build().unwrap(),
            }
        };
        let (a, b) = (prepare(), prepare());
        let (to_a, to_b) = (a.endpoint(), b.endpoint());
        [a.connect(&to_b).unwrap(), b.connect(&to_a).unwrap()]
    }

    /// The device does everything that it can.
    pub fn settle(&self) {
        assert!(self.host.fabric().settle(Duration::from_secs(10)));
    }

    pub fn poll(&mut self) -> Vec<Wc> {
        std::iter::from_fn(|| self.cq.poll_one().unwrap()).collect()
    }

    pub fn finish(self) {
        let reports = self.host.fabric().take_reports();
        assert!(reports.is_empty(), "{reports:#?}");
        assert!(self.context.leaks().is_empty());
    }
}

pub fn send(qp: &mut Qp, wr_id: u64, flags: WrFlags) {
    let mut batch = qp.send_batch();
    batch.send(wr_id, flags, Inline(&wr_id.to_ne_bytes())).unwrap();
    // SAFETY: inline payload.
    unsafe { batch.submit().unwrap() };
}

pub fn receive(qp: &mut Qp, wr_id: u64, mr: &Mr) {
    let mut batch = qp.recv_batch();
    batch.recv(wr_id, &[mr.sge(0..64).unwrap()]).unwrap();
    // SAFETY: see the file's argument.
    unsafe { batch.submit().unwrap() };
}
