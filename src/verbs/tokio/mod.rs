//! Adapters for the tokio runtime. With feature `tokio` only.
//!
//! - [`AsyncCq`]: a completion queue that is waited for with `.await`.
//! - [`EventStream`]: the asynchronous events of a context.
//! - [`AsyncEventChannel`]: the events of ids of the connection manager.
//! - [`Operations`] and their [`Driver`]: work requests on [pool slots](crate::Slot) that are awaited one by one. Dropping
//!   such a future gives up the answer and nothing else: the device keeps the buffer until the work request completes, and
//!   then the slot goes back to the pool.
//!
//! All of them need a runtime with IO enabled (`enable_io` or `enable_all`), where they are made as well as where they
//! are polled. Nothing here is needed to use an event loop of one's own: [`CompChannel`](crate::CompChannel) and
//! [`AsyncEvents`](crate::AsyncEvents) are descriptors like any other.

mod cm;
mod cq;
mod events;
mod operations;

pub use cm::AsyncEventChannel;
pub use cq::AsyncCq;
pub use events::EventStream;
pub use operations::{Driver, Operation, OperationError, Operations};

use crate::uverbs::errno::Errno;
use crate::uverbs::error::{Error, Verb};
use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime::Handle;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A descriptor that the runtime watches.
type Watched = AsyncFd<Arc<OwnedFd>>;

/// Has the current runtime watch `fd`, which must be a descriptor of its own: a runtime watches each number once.
fn watch(fd: Arc<OwnedFd>, verb: Verb) -> Result<Watched, Error> {
    if Handle::try_current().is_err() {
        let limit = "make it inside a tokio runtime with IO enabled";
        return Err(Error::invalid(verb, "runtime", "none", limit));
    }
    #[allow(
        deprecated,
        reason = "what takes its place is new, and these descriptors are open as long as they are watched"
    )]
    AsyncFd::with_interest(fd, Interest::READABLE).map_err(|e| io_error(verb, &e))
}

fn io_error(verb: Verb, error: &std::io::Error) -> Error {
    match error.raw_os_error() {
        Some(errno) => Error::kernel(verb, Errno::from_raw(errno)),
        // The runtime is shutting down.
        None => Error::kernel(verb, Errno::ECANCELED),
    }
}
