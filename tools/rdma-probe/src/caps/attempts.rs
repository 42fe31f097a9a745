//! What is asked, and what is tried: small objects of our own, destroyed at once.

use super::verdict::{Group, Verdict};
use crate::failure::Failure;
use ironverbs::sys::Linux;
use ironverbs::{AccessFlags, Context, Cq, DeviceAttr, DeviceInfo, Error, Notify, Pd, QpBuilder, QpCap};

/// Bytes of a region that is registered to see whether that works: one page.
const PAGE: usize = 4096;

/// Where attempts are made.
struct Bench<'a> {
    linux: &'a Linux,
    device: &'a DeviceInfo,
    context: &'a Context,
    pd: Pd,
    cq: Cq,
    verdicts: Vec<Verdict>,
}

/// Makes every attempt. Only that there is nothing to make them with is a failure.
pub fn run(linux: &Linux, device: &DeviceInfo, context: &Context) -> Result<Vec<Verdict>, Failure> {
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    let mut bench = Bench { linux, device, context, pd, cq, verdicts: Vec::new() };
    bench.queue_pairs();
    bench.operations();
    bench.memory();
    bench.completions();
    bench.shared_receives();
    bench.other();
    let Bench { verdicts, .. } = bench;
    Ok(verdicts)
}

impl Bench<'_> {
    fn attr(&self) -> &DeviceAttr {
        self.context.attr()
    }

    fn tried(&mut self, group: Group, name: &str, outcome: Result<String, Error>) {
        self.verdicts.push(Verdict::tried(group, name, outcome));
    }

    fn asked(&mut self, group: Group, name: &str, offered: bool, reason: impl Into<String>) {
        self.verdicts.push(Verdict::asked(group, name, offered, reason));
    }

    fn queue_pairs(&mut self) {
        let group = Group::QueuePairs;
        let caps = |cap: QpCap| {
            format!("{} sends, {} receives, {} bytes inline", cap.max_send_wr, cap.max_recv_wr, cap.max_inline_data)
        };
        let made = QpBuilder::rc(&self.pd, &self.cq, &self.cq).build().map(|qp| caps(qp.cap()));
        self.tried(group, "RC", made);
        let made = QpBuilder::uc(&self.pd, &self.cq, &self.cq).build().map(|qp| caps(qp.cap()));
        self.tried(group, "UC", made);
        let made = QpBuilder::ud(&self.pd, &self.cq, &self.cq).build().map(|qp| caps(qp.cap()));
        self.tried(group, "UD", made);
        let attr = self.attr();
        let xrc = attr.device_cap_flags_ex & XRC != 0;
        let (rd_atom, init_rd_atom) = (attr.max_qp_rd_atom, attr.max_qp_init_rd_atom);
        self.asked(group, "XRC", xrc, "device_cap_flags, XRC");
        let reads = rd_atom.min(init_rd_atom);
        let text = format!("max_qp_rd_atom {rd_atom}, max_qp_init_rd_atom {init_rd_atom}");
        self.asked(group, "READs and atomics at once", reads > 0, text);
        let inline = QpBuilder::rc(&self.pd, &self.cq, &self.cq).max_inline_bytes(256).build();
        let inline = inline.map(|qp| format!("{} bytes where 256 were asked for", qp.cap().max_inline_data));
        self.tried(group, "inline sends of 256 bytes", inline);
    }

    fn operations(&mut self) {
        let group = Group::Operations;
        let cap = self.attr().atomic_cap;
        let text = match cap {
            0 => "atomic_cap NONE",
            1 => "atomic_cap HCA: atomic among this device's own operations",
            2 => "atomic_cap GLOB: atomic with every access to the memory",
            _ => "an unknown atomic_cap",
        };
        self.asked(group, "atomics", cap != 0, text);
    }

    fn memory(&mut self) {
        let group = Group::Memory;
        let pd = self.pd.clone();
        let register = |access| pd.alloc_mr(PAGE, access).map(|mr| format!("{} bytes registered", mr.len_bytes()));
        self.tried(group, "local access", register(AccessFlags::LOCAL_WRITE));
        let remote = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        self.tried(group, "remote READ and WRITE", register(remote));
        self.tried(group, "remote atomics", register(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC));
        let flags = self.attr().device_cap_flags_ex;
        self.asked(group, "fast registration", flags & MEM_MGT_EXTENSIONS != 0, "device_cap_flags, MEM_MGT_EXTENSIONS");
        let copy_on_fork = self.linux.details(self.device).copy_on_fork;
        let text = "the kernel copies registered pages for the child, so the parent's stay (copy-on-fork)";
        if let Some(yes) = copy_on_fork {
            self.asked(group, "fork with registered memory", yes, text);
        }
    }

    fn completions(&mut self) {
        let group = Group::Completions;
        let vectors = self.context.num_comp_vectors();
        self.asked(group, "completion vectors", vectors > 0, format!("{vectors} of them"));
        let armed = |notify| -> Result<String, Error> {
            let channel = self.context.create_comp_channel()?;
            let cq = self.context.cq_builder(16).channel(&channel).build()?;
            cq.arm(notify)?;
            Ok(format!("armed, on a queue of {} entries", cq.capacity()))
        };
        let (any, solicited) = (armed(Notify::Any), armed(Notify::Solicited));
        self.tried(group, "events of all completions", any);
        self.tried(group, "events of solicited completions", solicited);
        let attr = self.attr();
        let (mask, count, period) =
            (attr.timestamp_mask, attr.max_cq_moderation_count, attr.max_cq_moderation_period_us);
        self.asked(group, "time stamps", mask != 0, format!("completion_timestamp_mask {mask:#x}"));
        let text = format!("at most {count} completions or {period} us for one event");
        self.asked(group, "moderation", count != 0, text);
    }

    fn shared_receives(&mut self) {
        let attr = self.attr();
        let (srqs, wrs, resize) = (attr.max_srq, attr.max_srq_wr, attr.device_cap_flags_ex & SRQ_RESIZE != 0);
        let group = Group::SharedReceives;
        self.asked(group, "SRQ", srqs > 0, format!("max_srq {srqs}, max_srq_wr {wrs}"));
        self.asked(group, "SRQ resize", resize, "device_cap_flags, SRQ_RESIZE");
    }

    fn other(&mut self) {
        let group = Group::Other;
        let attr = self.attr();
        let (groups, raw, rss, tags) =
            (attr.max_mcast_grp, attr.raw_packet_caps, attr.rss_caps.supported_qpts, attr.tm_caps.max_num_tags);
        self.asked(group, "multicast", groups > 0, format!("max_mcast_grp {groups}"));
        self.asked(group, "raw packet offloads", raw != 0, format!("raw_packet_caps {raw:#x}"));
        self.asked(group, "receive-side scaling", rss != 0, format!("rss_supported_qpts {rss:#x}"));
        self.asked(group, "tag matching", tags != 0, format!("tm_max_num_tags {tags}"));
    }
}

/// Bits of `enum ib_uverbs_device_cap_flags`.
const SRQ_RESIZE: u64 = 1 << 13;
const XRC: u64 = 1 << 20;
const MEM_MGT_EXTENSIONS: u64 = 1 << 21;
