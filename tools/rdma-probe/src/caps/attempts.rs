//! What is asked, and what is tried: small objects of our own, destroyed at once.

use super::verdict::{Group, Verdict};
use crate::failure::Failure;
use ironverbs::sys::Sys;
use ironverbs::{
    AccessFlags, Context, Cq, DeviceAttr, DeviceInfo, Errno, Error, FlushPlacement, Gid, Lid, LinkLayer, Notify, Path,
    Pd, PortNum, QpBuilder, QpCap, Srq, Stamps,
};
use std::fs::File;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;
use std::time::Duration;

/// Bytes of a region that is registered to see whether that works: one page.
const PAGE: usize = 4096;

/// Where attempts are made.
struct Bench<'a> {
    sys: &'a dyn Sys,
    device: &'a DeviceInfo,
    context: &'a Context,
    pd: Pd,
    cq: Cq,
    verdicts: Vec<Verdict>,
}

/// Makes every attempt. Only that there is nothing to make them with is a failure.
pub fn run(sys: &dyn Sys, device: &DeviceInfo, context: &Context) -> Result<Vec<Verdict>, Failure> {
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    let mut bench = Bench { sys, device, context, pd, cq, verdicts: Vec::new() };
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

    /// As [`asked`](Self::asked); where it is not offered, an attempt tells who refuses.
    fn asked_or(&mut self, group: Group, name: &str, offered: bool, reason: String, attempt: Result<(), Error>) {
        match attempt {
            Err(refused) if !offered => self.tried(group, name, Err(refused)),
            _ => self.asked(group, name, offered, reason),
        }
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
        let made = if xrc { Ok(()) } else { self.context.create_xrcd().map(drop) };
        self.asked_or(group, "XRC", xrc, "device_cap_flags, XRC".to_owned(), made);
        let reads = rd_atom.min(init_rd_atom);
        let text = format!("max_qp_rd_atom {rd_atom}, max_qp_init_rd_atom {init_rd_atom}");
        self.asked(group, "READs and atomics at once", reads > 0, text);
        let made = self.context.create_srq(&self.pd, 16).and_then(|srq| {
            let (one, other) =
                (QpBuilder::rc(&self.pd, &self.cq, &self.cq), QpBuilder::rc(&self.pd, &self.cq, &self.cq));
            let _pair = (one.srq(&srq).build()?, other.srq(&srq).build()?);
            Ok("two on one shared receive queue".to_owned())
        });
        self.tried(group, "RC on an SRQ", made);
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
        let context = self.context;
        let text = "device_cap_flags_ex, ATOMIC_WRITE; Soft-RoCE has it from Linux 6.2 on";
        self.asked(group, "ATOMIC_WRITE", context.has_atomic_write(), text);
        for (name, placement, flag) in [
            ("FLUSH to visibility", FlushPlacement::GLOBAL_VISIBILITY, "FLUSH_GLOBAL"),
            ("FLUSH to persistence", FlushPlacement::PERSISTENCE, "FLUSH_PERSISTENT"),
        ] {
            let text = format!("device_cap_flags_ex, {flag}; Soft-RoCE has it from Linux 6.2 on");
            self.asked(group, name, context.has_flush(placement), text);
        }
    }

    fn memory(&mut self) {
        let group = Group::Memory;
        let pd = self.pd.clone();
        let register = |access| pd.alloc_mr(PAGE, access).map(|mr| format!("{} bytes registered", mr.len_bytes()));
        self.tried(group, "local access", register(AccessFlags::LOCAL_WRITE));
        let remote = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        self.tried(group, "remote READ and WRITE", register(remote));
        self.tried(group, "remote atomics", register(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC));
        self.tried(group, "relaxed ordering", register(AccessFlags::LOCAL_WRITE | AccessFlags::RELAXED_ORDERING));
        let elsewhere = pd.mr_builder(PAGE).access(AccessFlags::LOCAL_WRITE).iova(OTHER_ADDRESS).build();
        self.tried(
            group,
            "another address than its own",
            elsewhere.map(|mr| format!("registered at {:#x}", mr.iova())),
        );
        let changed = pd.alloc_mr(PAGE, AccessFlags::LOCAL_WRITE).and_then(|mut mr| {
            mr.rereg(None, Some(AccessFlags::LOCAL_READ))?;
            Ok("its access changed".to_owned())
        });
        self.tried(group, "changing a region", changed);
        self.tried(group, "memory window type 1", pd.alloc_mw().map(|_| "made, bound to nothing".to_owned()));
        let window =
            QpBuilder::rc(&pd, &self.cq, &self.cq).build().and_then(|qp| qp.into_unconnected().alloc_mw().map(drop));
        self.tried(group, "memory window type 2", window.map(|()| "made, bound to nothing".to_owned()));
        self.tried(group, "dma-buf", dmabuf(&pd));
        self.tried(group, "on-demand paging", register(AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND));
        let device_memory = self.context.alloc_dm(PAGE as u64, 0);
        self.tried(group, "device memory", device_memory.map(|dm| format!("{} bytes of it", dm.len_bytes())));
        let flags = self.attr().device_cap_flags_ex;
        self.asked(group, "fast registration", flags & MEM_MGT_EXTENSIONS != 0, "device_cap_flags, MEM_MGT_EXTENSIONS");
        let copy_on_fork = self.sys.details(self.device).copy_on_fork;
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
        let stamped = match mask {
            0 => self.context.cq_builder(16).stamps(Stamps::Ticks).build().map(drop),
            _ => Ok(()),
        };
        self.asked_or(group, "time stamps", mask != 0, format!("completion_timestamp_mask {mask:#x}"), stamped);
        let moderated = if count == 0 { self.cq.moderate(1, Duration::from_micros(1)) } else { Ok(()) };
        let text = format!("at most {count} completions or {period} us for one event");
        self.asked_or(group, "moderation", count != 0, text, moderated);
    }

    fn shared_receives(&mut self) {
        let attr = self.attr();
        let (srqs, wrs, resize) = (attr.max_srq, attr.max_srq_wr, attr.device_cap_flags_ex & SRQ_RESIZE != 0);
        let group = Group::SharedReceives;
        let of = format!("max_srq {srqs}, max_srq_wr {wrs}");
        let srq = |each: &dyn Fn(&mut Srq) -> Result<String, Error>| {
            self.context.create_srq(&self.pd, 16).and_then(|mut srq| each(&mut srq))
        };
        let made = srq(&|srq| Ok(format!("{} receives; {of}", srq.capacity())));
        let limit = srq(&|srq| srq.arm_limit(4).map(|()| "armed for less than 4 receives".to_owned()));
        let larger = srq(&|srq| srq.resize(64).map(|()| format!("from 16 to {} receives", srq.capacity())));
        self.tried(group, "SRQ", made);
        self.tried(group, "SRQ limit event", limit);
        self.tried(group, "SRQ resize", larger);
        if !resize {
            self.asked(group, "SRQ resize by its own word", false, "device_cap_flags, SRQ_RESIZE");
        }
    }

    fn other(&mut self) {
        let group = Group::Other;
        let attr = self.attr();
        let (groups, raw, rss, tags) =
            (attr.max_mcast_grp, attr.raw_packet_caps, attr.rss_caps.supported_qpts, attr.tm_caps.max_num_tags);
        let most = format!("max_mcast_grp {groups}");
        self.tried(group, "address handle", self.address_handle());
        self.tried(group, "multicast", self.multicast().map(|text| format!("{text}; {most}")));
        self.asked(group, "raw packet offloads", raw != 0, format!("raw_packet_caps {raw:#x}"));
        self.asked(group, "receive-side scaling", rss != 0, format!("rss_supported_qpts {rss:#x}"));
        self.asked(group, "tag matching", tags != 0, format!("tm_max_num_tags {tags}"));
    }
}

impl Bench<'_> {
    /// To this very port.
    fn address_handle(&self) -> Result<String, Error> {
        let choice = self.context.choose_gid(PortNum::ONE, None)?;
        let gid = choice.entry.gid;
        self.pd.create_ah(&Path::to_gid(PortNum::ONE, choice.index, gid))?;
        Ok(format!("to {}", Ipv6Addr::from(gid.0)))
    }

    /// A group that nobody else uses, left at once.
    fn multicast(&self) -> Result<String, Error> {
        let qp = QpBuilder::ud(&self.pd, &self.cq, &self.cq).build()?.activate().map_err(|e| e.error)?;
        let group = Gid::from(IpAddr::V6(OWN_GROUP));
        let lid = match self.context.query_port(PortNum::ONE)?.link_layer {
            LinkLayer::InfiniBand => GROUP_LID,
            _ => Lid(0),
        };
        qp.attach_mcast(group, lid)?;
        qp.detach_mcast(group, lid)?;
        Ok(format!("joined {OWN_GROUP} and left it"))
    }
}

/// A driver that has dma-bufs refuses a file that is none; one that has not refuses before it looks.
fn dmabuf(pd: &Pd) -> Result<String, Error> {
    let Ok(no_dmabuf) = File::open("/dev/null") else { return Ok("unknown: there is no /dev/null".to_owned()) };
    match pd.reg_dmabuf_mr(no_dmabuf.as_fd(), 0, PAGE as u64, OTHER_ADDRESS, AccessFlags::LOCAL_WRITE) {
        Ok(_) => Ok("registered".to_owned()),
        Err(Error::Kernel { errno: Errno::EINVAL | Errno::EBADF, .. }) => {
            Ok("the driver looks at the file, and refuses one that is no dma-buf".to_owned())
        }
        Err(refused) => Err(refused),
    }
}

/// Where a region is said to begin; any multiple of every page size is as good.
const OTHER_ADDRESS: u64 = 0x1_0000_0000;

/// Transient, and of this link only (RFC 4291 2.7).
const OWN_GROUP: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x6962, 0x7662);

/// The group's LID on InfiniBand: any of those for multicast (IB spec 4.1.1: 0xc000 to 0xfffe). Nothing is sent there.
const GROUP_LID: Lid = Lid(0xc000);

/// Bits of `enum ib_uverbs_device_cap_flags`.
const SRQ_RESIZE: u64 = 1 << 13;
const XRC: u64 = 1 << 20;
const MEM_MGT_EXTENSIONS: u64 = 1 << 21;
