//! One open device file: its context, its objects and their handles.

use super::channel::Channel;
use super::page::Page;
use super::router::{Entry, Router, Subject};
use super::sim::Shared;
use super::uapi::Response;
use crate::commands::Refusal;
use crate::device::Device;
use crate::fabric::DeviceId;
use ironverbs::Errno;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Numbers of object types.
pub(super) mod kind {
    pub const DEVICE: u16 = 0;
    pub const PD: u16 = 1;
    pub const CQ: u16 = 3;
    pub const QP: u16 = 4;
    pub const SRQ: u16 = 5;
    pub const AH: u16 = 6;
    pub const MR: u16 = 7;
    pub const MW: u16 = 8;
    pub const XRCD: u16 = 10;
    pub const ASYNC_EVENT: u16 = 16;
    pub const UAR: u16 = 0x1008;
}

/// Type of the receiving end of XRC.
const XRC_TGT: u8 = 10;

/// An object of a file.
#[derive(Debug)]
pub(super) struct Object {
    what: What,
    /// Handles of the objects that it needs.
    uses: Vec<u32>,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Pd {
        pd: u32,
    },
    Mr {
        key: u32,
        iova: u64,
        len: u64,
    },
    Mw {
        key: u32,
    },
    Cq {
        cqn: u32,
    },
    /// Events of a handle that was opened, and not made, go nowhere.
    Qp {
        qpn: u32,
        qp_type: u8,
        sig_all: bool,
        inline: u32,
        opened: bool,
    },
    Srq {
        srqn: u32,
        max_wr: u32,
        max_sge: u32,
    },
    Ah,
    Xrcd {
        xrcd: u32,
        inode: Option<(u64, u64)>,
    },
    Uar {
        page: u32,
        offset: u64,
    },
}

impl What {
    pub fn kind(&self) -> u16 {
        match self {
            Self::Pd { .. } => kind::PD,
            Self::Mr { .. } => kind::MR,
            Self::Mw { .. } => kind::MW,
            Self::Cq { .. } => kind::CQ,
            Self::Qp { .. } => kind::QP,
            Self::Srq { .. } => kind::SRQ,
            Self::Ah => kind::AH,
            Self::Xrcd { .. } => kind::XRCD,
            Self::Uar { .. } => kind::UAR,
        }
    }
}

/// The context of a file.
#[derive(Debug)]
pub(super) struct Context {
    pub cqe_version: u8,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub context: Option<Context>,
    objects: BTreeMap<u32, Object>,
    /// How many objects need an object.
    users: HashMap<u32, usize>,
    /// Handles below `next_handle` that are free.
    free_handles: BTreeSet<u32>,
    next_handle: u32,
    /// Completion channels.
    pub channels: Vec<Arc<Channel>>,
    /// Asynchronous event files; the first is the default.
    pub async_files: Vec<Arc<Channel>>,
    /// What can be mapped, by offset.
    pub pages: BTreeMap<u64, Arc<Page>>,
}

/// An open file of a simulated device.
pub(super) struct File {
    pub shared: Arc<Shared>,
    pub id: DeviceId,
    state: Mutex<State>,
}

impl File {
    pub fn new(shared: Arc<Shared>, id: DeviceId) -> Self {
        Self { shared, id, state: Mutex::default() }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn router(&self) -> MutexGuard<'_, Router> {
        self.shared.router.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to the device. The order of locks is file, device, router.
    pub fn with<T>(&self, f: impl FnOnce(&mut Device) -> T) -> T {
        self.shared.fabric.with_any(self.id, f)
    }

    /// Watches an object for events.
    pub fn watch(
        &self,
        subject: Subject,
        user_handle: u64,
        completions: Option<Arc<Channel>>,
        asynchronous: Option<Arc<Channel>>,
    ) {
        let entry = Entry { completions, asynchronous, user_handle, reported: (0, 0) };
        self.router().add(self.id, subject, entry);
    }

    /// Destroys an object of `kind`. Answers how many completion and asynchronous events it ever had.
    pub fn destroy(&self, kind: u16, handle: u32) -> Result<(u32, u32), Errno> {
        let mut state = self.state();
        let what = state.object(handle)?.clone();
        if what.kind() != kind {
            return Err(Errno::EINVAL);
        }
        if state.is_used(handle) {
            return Err(Errno::EBUSY);
        }
        let counts = self.undo(&what)?;
        state.remove(handle);
        state.forget_closed();
        if let What::Uar { offset, .. } = what {
            state.pages.remove(&offset);
        }
        Ok(counts)
    }

    fn undo(&self, what: &What) -> Result<(u32, u32), Errno> {
        let forget = |subject| self.router().remove(self.id, subject);
        match *what {
            What::Pd { pd } => self.with(|d| d.dealloc_pd(pd)).map_err(errno)?,
            What::Mr { key, .. } | What::Mw { key } => self.with(|d| d.destroy_mkey(key)).map_err(errno)?,
            What::Cq { cqn } => {
                self.with(|d| d.destroy_cq(cqn)).map_err(errno)?;
                return Ok(forget(Subject::Cq(cqn)));
            }
            What::Qp { qpn, qp_type, opened, .. } => {
                // The events are the maker's, whoever goes last.
                let counts = |opened: bool| if opened { (0, 0) } else { forget(Subject::Qp(qpn)) };
                if qp_type == XRC_TGT && !self.shared.leave_receiving(self.id, qpn) {
                    return Ok(counts(opened));
                }
                self.with(|d| d.destroy_qp(qpn)).map_err(errno)?;
                return Ok(counts(opened));
            }
            What::Srq { srqn, .. } => {
                self.with(|d| d.destroy_srq(srqn)).map_err(errno)?;
                return Ok(forget(Subject::Srq(srqn)));
            }
            What::Ah => {}
            What::Xrcd { xrcd, inode } => self.close_xrcd(xrcd, inode)?,
            What::Uar { page, .. } => self.with(|d| d.remove_uar(page)).map_err(errno)?,
        }
        Ok((0, 0))
    }

    /// QUERY_CONTEXT's answer, and part of GET_CONTEXT's.
    pub fn describe(&self, cqe_version: u8, room: usize) -> Vec<u8> {
        let write_combining = self.shared.write_combining(self.id);
        self.with(|d| super::query::describe_context(d, cqe_version, write_combining, room))
    }

    /// Handles of all objects of a kind.
    pub fn handles(&self, kind: u16) -> Vec<u32> {
        self.state().objects.iter().filter(|(_, o)| o.what.kind() == kind).map(|(h, _)| *h).collect()
    }

    /// A new asynchronous event file.
    pub fn open_async_file(&self) -> Result<i32, Errno> {
        let (channel, number) = Channel::new()?;
        let channel = Arc::new(channel);
        self.router().add_file(self.id, &channel);
        let mut state = self.state();
        state.forget_closed();
        state.async_files.push(channel);
        Ok(number)
    }

    /// A new completion channel.
    pub fn open_channel(&self) -> Result<Response, Errno> {
        let (channel, number) = Channel::new()?;
        let mut state = self.state();
        state.forget_closed();
        state.channels.push(Arc::new(channel));
        Ok(Response::new(4).u32(0, number as u32))
    }
}

impl State {
    /// A handle for a new object: the lowest free one.
    pub fn insert(&mut self, what: What, uses: Vec<u32>) -> u32 {
        let handle = self.free_handles.pop_first().unwrap_or_else(|| {
            self.next_handle += 1;
            self.next_handle - 1
        });
        self.count(&uses, 1);
        self.objects.insert(handle, Object { what, uses });
        handle
    }

    /// Takes an object out.
    fn remove(&mut self, handle: u32) {
        if let Some(object) = self.objects.remove(&handle) {
            self.count(&object.uses, -1);
            self.free_handles.insert(handle);
        }
    }

    /// Makes another object of it, and lets it need others.
    pub fn replace(&mut self, handle: u32, what: What, uses: Option<Vec<u32>>) {
        let Some(object) = self.objects.get_mut(&handle) else { return };
        object.what = what;
        if let Some(uses) = uses {
            let before = std::mem::replace(&mut object.uses, uses.clone());
            self.count(&before, -1);
            self.count(&uses, 1);
        }
    }

    fn count(&mut self, uses: &[u32], by: isize) {
        for handle in uses {
            let users = self.users.entry(*handle).or_default();
            *users = users.saturating_add_signed(by);
            if *users == 0 {
                self.users.remove(handle);
            }
        }
    }

    fn is_used(&self, handle: u32) -> bool {
        self.users.contains_key(&handle)
    }

    pub fn object(&self, handle: u32) -> Result<&What, Errno> {
        self.objects.get(&handle).map(|o| &o.what).ok_or(Errno::ENOENT)
    }

    pub fn pd(&self, handle: u32) -> Result<u32, Errno> {
        if let What::Pd { pd } = self.object(handle)? { Ok(*pd) } else { Err(Errno::EINVAL) }
    }

    pub fn cqn(&self, handle: u32) -> Result<u32, Errno> {
        if let What::Cq { cqn } = self.object(handle)? { Ok(*cqn) } else { Err(Errno::EINVAL) }
    }

    pub fn qpn(&self, handle: u32) -> Result<u32, Errno> {
        if let What::Qp { qpn, .. } = self.object(handle)? { Ok(*qpn) } else { Err(Errno::EINVAL) }
    }

    pub fn xrcd(&self, handle: u32) -> Result<u32, Errno> {
        if let What::Xrcd { xrcd, .. } = self.object(handle)? { Ok(*xrcd) } else { Err(Errno::EINVAL) }
    }

    pub fn has_uar(&self, page: u32) -> bool {
        self.objects.values().any(|o| matches!(o.what, What::Uar { page: p, .. } if p == page))
    }

    pub fn channel(&self, number: i32) -> Result<Arc<Channel>, Errno> {
        Channel::named(&self.channels, number).ok_or(Errno::EBADF)
    }

    /// Forgets event files that no object tells, and that the program has closed: nobody can name them again. The default
    /// one stays, for objects to come.
    fn forget_closed(&mut self) {
        let is_open = |file: &Arc<Channel>| Arc::strong_count(file) > 1 || !file.is_closed();
        self.channels.retain(is_open);
        let mut is_default = true;
        self.async_files.retain(|file| std::mem::take(&mut is_default) || is_open(file));
    }

    /// The file that an object's events go to: the one named, or the default.
    pub fn async_file(&self, number: Option<i32>) -> Result<Option<Arc<Channel>>, Errno> {
        match number {
            None => Ok(self.async_files.first().cloned()),
            Some(n) => Channel::named(&self.async_files, n).map(Some).ok_or(Errno::EBADF),
        }
    }

    pub fn context(&self) -> Result<&Context, Errno> {
        self.context.as_ref().ok_or(Errno::EINVAL)
    }
}

impl File {
    /// Ends the context: everything that is left goes, users before what they use.
    pub fn tear_down(&self) {
        loop {
            let unused: Vec<(u16, u32)> = {
                let state = self.state();
                let unused = state.objects.iter().filter(|(h, _)| !state.is_used(**h));
                unused.map(|(h, o)| (o.what.kind(), *h)).collect()
            };
            let destroyed = unused.iter().filter(|(kind, handle)| self.destroy(*kind, *handle).is_ok()).count();
            if destroyed == 0 {
                break;
            }
        }
        let (files, channels) = {
            let mut state = self.state();
            state.context = None;
            (std::mem::take(&mut state.async_files), std::mem::take(&mut state.channels))
        };
        drop(channels);
        files.into_iter().for_each(Channel::bury);
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.tear_down();
    }
}

/// What the kernel answers when the device refuses.
pub(super) fn errno(refusal: Refusal) -> Errno {
    match refusal {
        Refusal::Busy => Errno::EBUSY,
        Refusal::Memory(_) => Errno::EFAULT,
        Refusal::NoObject | Refusal::BadState | Refusal::BadParam => Errno::EINVAL,
    }
}
