//! Devices and contexts: where everything starts.

use super::datagram::{GrhKind, ReceivedGrh};
use super::events::AsyncEvents;
use super::gid::{GidChoice, GidWant, choose_gid};
use super::opened::Opened;
use super::pd::Pd;
use super::provider::{Any, Provider};
use super::registry::Registry;
use crate::sys::Linux;
use crate::uverbs::abi::verbs::device_cap;
use crate::uverbs::attr::{DeviceAttr, GidEntry, GidType, PortAttr};
use crate::uverbs::context::Ucontext;
use crate::uverbs::device::{DeviceIndex, DeviceInfo};
use crate::uverbs::error::{Error, Lacking, Verb};
use crate::uverbs::object::Leak;
use crate::uverbs::sys::Sys;
use crate::uverbs::types::{GidIndex, LinkLayer, PortNum};
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

/// Lists this host's RDMA devices, usable or not; each unusable one says why. Looks anew at each call.
#[doc(alias = "ibv_get_device_list")]
pub fn devices() -> Result<Vec<DeviceInfo>, Error> {
    Linux::new().devices()
}

/// An open device, the root of all objects made on it.
///
/// Cheap to clone. Every object keeps its context open, so they may be dropped in any order.
///
/// ```no_run
/// # fn f() -> Result<(), ironverbs::Error> {
/// let context = ironverbs::Context::open("rxe0")?;
/// println!("{}: up to {} queue pairs", context.info().name, context.attr().max_qp);
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_context")]
pub struct Context<P: Provider = Any> {
    inner: Arc<ContextInner>,
    provider: PhantomData<P>,
}

/// What every object of a context shares.
pub(super) struct ContextInner {
    pub(super) opened: Opened,
    /// The same as `opened`'s.
    pub(super) ucontext: Arc<Ucontext>,
    pub(super) registry: Registry,
    pub(super) attr: DeviceAttr,
    info: DeviceInfo,
    /// Whether a port is Ethernet's, of those that it was asked of.
    ethernet: Mutex<Vec<(PortNum, bool)>>,
}

impl Context {
    /// Opens the device of that name on this host. Only devices for which the library has a [`Provider`] can be opened:
    /// Soft-RoCE and ConnectX (mlx5). Of others, [`devices`] and the details tell what the kernel tells without opening. Fails if
    /// two devices have the name; open those by [`DeviceInfo`].
    pub fn open(name: &str) -> Result<Self, Error> {
        let linux = Linux::new();
        let info = find(&linux, name)?;
        Self::open_on(&linux, &info)
    }

    /// Opens one of the devices that [`devices`] listed.
    #[doc(alias = "ibv_open_device")]
    pub fn open_device(info: &DeviceInfo) -> Result<Self, Error> {
        Self::open_on(&Linux::new(), info)
    }

    /// Opens a device of `sys`: the host, a device model, or a wrapper around either.
    pub fn open_on(sys: &dyn Sys, info: &DeviceInfo) -> Result<Self, Error> {
        let cdev = sys.open(info)?;
        let opened = Opened::open(cdev)?;
        let ucontext = opened.ucontext().clone();
        let attr = ucontext.query_device()?;
        let registry = Registry::default();
        let (info, ethernet) = (info.clone(), Mutex::default());
        let inner = Arc::new(ContextInner { opened, ucontext, registry, attr, info, ethernet });
        Ok(Self { inner, provider: PhantomData })
    }

    /// The same context with its provider named at compile time, or the context back if its driver is another.
    pub fn into_provider<P: Provider>(self) -> Result<Context<P>, Self> {
        if P::drives(self.inner.opened.driver()) {
            Ok(Context { inner: self.inner, provider: PhantomData })
        } else {
            Err(self)
        }
    }
}

impl<P: Provider> Context<P> {
    /// What was known of the device when it was opened.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// The kernel's index of the device.
    pub fn index(&self) -> Option<DeviceIndex> {
        self.inner.info.index
    }

    /// Whether the kernel has taken the device away from it.
    pub(super) fn is_disconnected(&self) -> bool {
        self.inner.ucontext.is_disconnected()
    }

    /// The device's limits and capabilities, as queried when it was opened.
    pub fn attr(&self) -> &DeviceAttr {
        &self.inner.attr
    }

    /// Queries the device's limits and capabilities.
    #[doc(alias = "ibv_query_device_ex")]
    pub fn query_device(&self) -> Result<DeviceAttr, Error> {
        self.inner.ucontext.query_device()
    }

    /// Queries a port.
    #[doc(alias = "ibv_query_port")]
    pub fn query_port(&self, port: PortNum) -> Result<PortAttr, Error> {
        self.inner.query_port(port)
    }

    /// One entry of a port's GID table; `None` if it is empty.
    #[doc(alias = "ibv_query_gid_ex")]
    pub fn query_gid(&self, port: PortNum, index: GidIndex) -> Result<Option<GidEntry>, Error> {
        self.inner.query_gid(port, index)
    }

    /// Every valid entry of every port's GID table.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gid_table(&self) -> Result<Vec<GidEntry>, Error> {
        self.inner.ucontext.gid_table()
    }

    /// The GID to use on `port`, for a peer of which `want` is known, and why.
    pub fn choose_gid(&self, port: PortNum, want: Option<GidWant>) -> Result<GidChoice, Error> {
        self.inner.choose_gid(port, want)
    }

    /// How many completion vectors the device has.
    pub fn num_comp_vectors(&self) -> u32 {
        self.inner.ucontext.num_comp_vectors()
    }

    /// Allocates a protection domain.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<Pd, Error> {
        Pd::new(&self.inner)
    }

    /// The device's asynchronous events. One reader at a time gets each event.
    #[doc(alias = "ibv_get_async_event")]
    pub fn async_events(&self) -> AsyncEvents {
        AsyncEvents::new(&self.inner)
    }

    /// Gives the device up while its objects are still there, so that it can be removed: every queue pair is destroyed,
    /// every region deregistered, and when this returns no file and no mapping of the device is left in the process.
    ///
    /// A driver that cannot disconnect its users waits with the removal of a device (`rdma link del`) until they have
    /// closed it; Soft-RoCE is such a driver. Call this when told to let go, and drop the objects when it suits: all that
    /// is done with them from now on fails as on a device that is gone, with
    /// [`DeviceGone`](Error::DeviceGone), and their destruction counts as done. Whoever waits, in whichever thread, is
    /// told so, too. What had not been polled is lost; slots of a [`Pool`](crate::Pool) that were posted stay away.
    ///
    /// Commands under way in other threads are waited for. Descriptors that were handed out ([`AsFd`](std::os::fd::AsFd))
    /// keep their numbers and lead to a pipe at its end; an `epoll` forgets them, as it does with what is closed. A child
    /// process that was forked while the device was open holds it for itself. A region that the kernel does not
    /// deregister keeps its memory for the life of the process ([`leaks`](Self::leaks)); so does a queue that the kernel had
    /// refused to destroy before. After an error nothing can be done with the device but to call this again.
    ///
    /// A device that is gone already is given up as well, with success, so that whatever happened to it nothing of it is left.
    /// Its regions keep their memory then: the kernel says that a device is gone before it has ended all transfers.
    pub fn shutdown(&self) -> Result<(), Error> {
        self.inner.ucontext.shutdown()?;
        self.inner.registry.device_is_gone();
        Ok(())
    }

    /// Objects that the kernel refused to destroy when they were dropped, and that are still there, with what they use:
    /// a queue pair that stays keeps its completion queues and its protection domain, which are then in the list too.
    /// Asks nothing of the kernel.
    ///
    /// The kernel is asked for them again whenever another object of the context is gone (of more than 64, for some each time), in
    /// case it refused for a reason that passes. Objects of a device that is gone, or was [given up](Self::shutdown), stay in the
    /// list with `EIO`: the kernel has destroyed them with the file, and does not say when the device was done with their memory,
    /// which stays. When the context and all its objects were dropped, the file is closed with what is left, and the kernel destroys
    /// it; only memory that the device may still use stays, for the life of the process. A destroy that is refused at
    /// `close` is the caller's to try again, and is not here.
    pub fn leaks(&self) -> Vec<Leak> {
        self.inner.ucontext.leaks()
    }

    pub(super) fn inner(&self) -> &Arc<ContextInner> {
        &self.inner
    }
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        self.ucontext.abandon();
    }
}

impl ContextInner {
    pub(super) fn query_port(&self, port: PortNum) -> Result<PortAttr, Error> {
        self.check_port(Verb::QueryPort, port)?;
        self.ucontext.query_port(port)
    }

    pub(super) fn query_gid(&self, port: PortNum, index: GidIndex) -> Result<Option<GidEntry>, Error> {
        self.check_port(Verb::QueryGid, port)?;
        self.ucontext.query_gid(port, index.0.into())
    }

    pub(super) fn choose_gid(&self, port: PortNum, want: Option<GidWant>) -> Result<GidChoice, Error> {
        let layer = self.query_port(port)?.link_layer;
        let entries: Vec<_> = self.ucontext.gid_table()?.into_iter().filter(|e| e.port == port).collect();
        choose_gid(layer, &entries, want).map_err(|none| Error::invalid(Verb::QueryGid, "port", port, none.to_string()))
    }

    /// Where the GID is that a datagram was sent to, among those of its kind.
    pub(super) fn index_of_gid(&self, port: PortNum, grh: &ReceivedGrh) -> Result<Option<GidIndex>, Error> {
        let kind = |entry: &GidEntry| match grh.kind {
            GrhKind::Grh => entry.gid_type != GidType::ROCE_V2,
            GrhKind::Ipv4 | GrhKind::Ipv6 => entry.gid_type == GidType::ROCE_V2,
        };
        let table = self.ucontext.gid_table()?;
        let found = table.into_iter().find(|entry| entry.port == port && entry.gid == grh.dgid && kind(entry));
        Ok(found.and_then(|entry| u8::try_from(entry.index).ok()).map(GidIndex))
    }

    /// The GID that the caller named, which must be there.
    pub(super) fn named_gid(&self, port: PortNum, index: GidIndex) -> Result<GidEntry, Error> {
        match self.query_gid(port, index)? {
            Some(entry) => Ok(entry),
            None => {
                let here = self.ucontext.gid_table()?.into_iter().filter(|e| e.port == port);
                let list = here.map(|e| e.index.to_string()).collect::<Vec<_>>().join(", ");
                Err(Error::invalid(
                    Verb::QueryGid,
                    "GID index",
                    index,
                    format!("that entry is empty; port {port} has a GID at index {list}"),
                ))
            }
        }
    }

    pub(super) fn check_port(&self, verb: Verb, port: PortNum) -> Result<(), Error> {
        let last = self.attr.phys_port_cnt;
        if port.get() > last {
            let limit = format!(
                "{} has port{} 1{}",
                self.info.shown_name(),
                if last == 1 { "" } else { "s" },
                match last {
                    0 | 1 => String::new(),
                    n => format!(" to {n}"),
                }
            );
            return Err(Error::invalid(verb, "port", port, limit));
        }
        Ok(())
    }

    /// Refuses extended reliable connections where there are none.
    pub(super) fn check_xrc(&self, verb: Verb) -> Result<(), Error> {
        if self.attr.device_cap_flags_ex & device_cap::XRC != 0 {
            return Ok(());
        }
        let by = match self.opened {
            Opened::Rxe(_) => Lacking::Driver,
            Opened::Mlx5(_) => Lacking::Device,
        };
        Err(Error::Unsupported { verb, what: "extended reliable connections (XRC)".into(), by })
    }

    pub(super) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The kernel is asked once for each port, which keeps its link layer as long as its device is there.
    pub(super) fn is_ethernet(&self, port: PortNum) -> Result<bool, Error> {
        let known = || self.ethernet.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, ethernet)) = known().iter().find(|(of, _)| *of == port) {
            return Ok(*ethernet);
        }
        let ethernet = self.query_port(port)?.link_layer == LinkLayer::Ethernet;
        known().push((port, ethernet));
        Ok(ethernet)
    }
}

/// What there is to do where there is no device.
const NONE_HERE: &str = "this host has none (rdma-probe says what it looked for); a network interface can be made one in \
                         software (rdma link add rxe0 type rxe netdev INTERFACE), and without any the crate softcx \
                         simulates adapters in the process (Context::open_on, rdma-probe --sim)";

/// The one device of that name.
fn find(sys: &dyn Sys, name: &str) -> Result<DeviceInfo, Error> {
    let all = sys.devices()?;
    let names = all.iter().map(|d| d.shown_name().to_string()).collect::<Vec<_>>().join(", ");
    let mut named = all.iter().filter(|d| d.name == name);
    let none = |hint: String| Error::NoDevice {
        wanted: format!("named {}", name.escape_debug()).into(),
        hint: Some(hint.into()),
    };
    match (named.next(), named.next()) {
        (Some(one), None) => Ok(one.clone()),
        (Some(_), Some(_)) => Err(none("two devices have that name; open one by its index".into())),
        (None, _) if all.is_empty() => Err(none(NONE_HERE.into())),
        (None, _) => Err(none(format!("there is {names}"))),
    }
}

impl<P: Provider> Clone for Context<P> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), provider: PhantomData }
    }
}

impl<P: Provider> fmt::Debug for Context<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.inner.info.name)
            .field("driver", &self.inner.opened.driver())
            .finish()
    }
}
