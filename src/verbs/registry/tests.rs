//! Event files that behave as the kernel's do when a device goes away, or worse.

use super::*;
use crate::uverbs::abi::verbs::AsyncEventDesc;
use crate::uverbs::errno::Errno;
use crate::uverbs::fake::{FakeKernel, Knows};
use crate::uverbs::observe::Fault;
use crate::uverbs::sys::{Cdev, Sys};
use crate::verbs::channel::CompChannel;
use crate::{Context, DeviceInfo};
use nix::pty::openpty;
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(20);

/// A host whose only device is a fake.
struct FakeHost(Arc<FakeKernel>);

impl Sys for FakeHost {
    fn devices(&self) -> Result<Vec<DeviceInfo>, Error> {
        Ok(vec![])
    }
    fn open(&self, _: &DeviceInfo) -> Result<Arc<dyn Cdev>, Error> {
        Ok(self.0.clone())
    }
}

/// A context whose asynchronous events come from one file, and a channel whose completion events come from another.
fn open(events: impl Into<OwnedFd>, completions: impl Into<OwnedFd>) -> (Context, CompChannel) {
    let kernel = FakeKernel::new(Knows::ALL);
    kernel.give_event_file(events.into());
    kernel.give_event_file(completions.into());
    let context = Context::open_on(&FakeHost(kernel), &DeviceInfo::new("fake0")).unwrap();
    let channel = context.create_comp_channel().unwrap();
    (context, channel)
}

/// One end that the test writes, and one for the library.
fn socket() -> (UnixStream, UnixStream) {
    UnixStream::pair().unwrap()
}

fn async_record(event_type: u32, element: u64) -> AsyncEventDesc {
    AsyncEventDesc { element, event_type, reserved: 0 }
}

/// A file that gives `bytes` and then EIO, with a hang-up: a terminal whose other side is closed.
fn then_eio(bytes: &[u8]) -> OwnedFd {
    let pty = openpty(None, None).unwrap();
    let mut termios = tcgetattr(&pty.slave).unwrap();
    cfmakeraw(&mut termios);
    tcsetattr(&pty.slave, SetArg::TCSANOW, &termios).unwrap();
    File::from(pty.slave).write_all(bytes).unwrap();
    pty.master
}

/// A file that poll reports an error for, and nothing else: a pipe that nobody reads.
fn with_pollerr() -> OwnedFd {
    std::io::pipe().unwrap().1.into()
}

fn queue(context: &Context) -> (u64, Arc<Health>) {
    let inner = context.inner();
    let (handle, health) = (inner.ucontext.next_user_handle(), Arc::new(Health::default()));
    inner.registry.insert(handle, Source::Cq(health.clone()));
    (handle, health)
}

fn is_gone<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::DeviceGone { .. }), "{error}");
}

/// Waits as a completion queue does.
fn wait(channel: &CompChannel, health: &Health) -> Result<bool, Error> {
    let deadline = Instant::now() + LONG;
    channel.inner().wait_readable(deadline, health)
}

#[test]
fn nothing_to_read_is_not_the_end() {
    let ((_kernel, events), (_other, completions)) = (socket(), socket());
    let (context, channel) = open(events, completions);
    let (_, health) = queue(&context);
    assert_eq!(channel.drain(|_| ()).unwrap(), 0);
    assert!(!channel.wait(SHORT).unwrap());
    assert_eq!(context.async_events().next(SHORT).unwrap(), None);
    assert!(health.is_well());
}

#[test]
fn every_event_tells_whose_it_is() {
    let ((mut kernel, events), (_other, completions)) = (socket(), socket());
    let (context, _channel) = open(events, completions);
    let inner = context.inner();
    let [qp, srq, dropped] = [0; 3].map(|_| inner.ucontext.next_user_handle());
    let (cq, health) = queue(&context);
    let qpn = Qpn::new(0x11).unwrap();
    inner.registry.insert(qp, Source::Qp(qpn));
    inner.registry.insert(srq, Source::Srq);
    inner.registry.insert(dropped, Source::Qp(qpn));
    inner.registry.remove(dropped);
    let cases = [
        (AsyncEventType::QP_FATAL, qp, Subject::Qp(qpn)),
        (AsyncEventType::QP_LAST_WQE_REACHED, qp, Subject::Qp(qpn)),
        (AsyncEventType::SRQ_LIMIT_REACHED, srq, Subject::Srq(SrqId(srq))),
        (AsyncEventType::PORT_ACTIVE, 1, Subject::Port(PortNum::ONE)),
        (AsyncEventType::LID_CHANGE, 2, Subject::Port(PortNum::new(2).unwrap())),
        (AsyncEventType::PKEY_CHANGE, 1, Subject::Port(PortNum::ONE)),
        (AsyncEventType::SM_CHANGE, 1, Subject::Port(PortNum::ONE)),
        (AsyncEventType::CLIENT_REREGISTER, 1, Subject::Port(PortNum::ONE)),
        (AsyncEventType::GID_CHANGE, 1, Subject::Port(PortNum::ONE)),
        (AsyncEventType::GID_CHANGE, 0x1_0000_0001, Subject::Unknown(0x1_0000_0001)),
        (AsyncEventType::QP_FATAL, dropped, Subject::Dropped),
        (AsyncEventType::QP_FATAL, cq + 1, Subject::Unknown(cq + 1)),
        (AsyncEventType(77), qp, Subject::Qp(qpn)),
        (AsyncEventType(77), 0, Subject::Unknown(0)),
        (AsyncEventType::CQ_ERR, cq, Subject::Cq(CqId(cq))),
    ];
    for (kind, element, _) in &cases {
        kernel.write_all(async_record(kind.0, *element).as_bytes()).unwrap();
    }
    let events = context.async_events();
    for (kind, element, subject) in cases {
        let event = events.try_next().unwrap();
        assert_eq!(event, Some(AsyncEvent { kind, subject }), "{kind} of {element}");
    }
    assert_eq!(events.try_next().unwrap(), None);
    assert!(matches!(health.check(Verb::PollCq), Err(Error::CqOverrun { .. })));
}

/// The kernel gives queue pair numbers again, and an event may have been read while its queue pair was still there.
#[test]
fn event_read_before_its_object_was_dropped_is_not_the_next_ones() {
    let ((mut kernel, events), (_other, completions)) = (socket(), socket());
    let (context, _channel) = open(events, completions);
    let inner = context.inner();
    let (old, new) = (inner.ucontext.next_user_handle(), inner.ucontext.next_user_handle());
    let qpn = Qpn::new(0x11).unwrap();
    inner.registry.insert(old, Source::Qp(qpn));
    kernel.write_all(async_record(1, old).as_bytes()).unwrap();
    inner.registry.keep_unread_events(inner.ucontext.async_fd()).unwrap();
    inner.registry.remove(old);
    inner.registry.insert(new, Source::Qp(qpn));
    let event = context.async_events().try_next().unwrap().unwrap();
    assert_eq!(event.subject, Subject::Dropped);
}

#[test]
fn error_of_the_channel_ends_every_wait() {
    for (name, completions) in [("EIO", then_eio(&[])), ("POLLERR", with_pollerr())] {
        let (_kernel, events) = socket();
        let (context, channel) = open(events, completions);
        let (_, health) = queue(&context);
        let started = Instant::now();
        is_gone(wait(&channel, &health));
        assert!(started.elapsed() < LONG, "{name}");
        assert_eq!(health.poll_error(), Some(crate::PollError::DeviceGone), "{name}");
        is_gone(context.async_events().next(LONG));
        let (_, later) = queue(&context);
        is_gone(later.check(Verb::GetCqEvent));
        if name == "EIO" {
            is_gone(channel.drain(|_| ()));
        }
    }
}

#[test]
fn error_of_the_event_file_ends_every_wait() {
    let (_kernel, completions) = socket();
    let (context, channel) = open(then_eio(&[]), completions);
    let (_, health) = queue(&context);
    is_gone(wait(&channel, &health));
    is_gone(context.async_events().try_next());
    is_gone(context.async_events().next(LONG));
}

#[test]
fn events_before_the_error_are_given() {
    let (_kernel, completions) = socket();
    let records = [async_record(9, 1), async_record(8, 0)];
    let (context, _channel) = open(then_eio(records.as_bytes()), completions);
    let (_, health) = queue(&context);
    let events = context.async_events();
    let first = events.try_next().unwrap().unwrap();
    assert_eq!((first.kind, first.subject), (AsyncEventType::PORT_ACTIVE, Subject::Port(PortNum::ONE)));
    let second = events.next(LONG).unwrap().unwrap();
    assert_eq!((second.kind, second.subject), (AsyncEventType::DEVICE_FATAL, Subject::Device));
    is_gone(events.try_next());
    is_gone(health.check(Verb::PollCq));
}

#[test]
fn completion_events_before_the_error_are_given() {
    let (_kernel, events) = socket();
    let (_context, channel) = open(events, then_eio([7_u64, 8].as_bytes()));
    assert!(channel.wait(LONG).unwrap());
    let mut told = vec![];
    is_gone(channel.drain(|id| told.push(id)));
    assert_eq!(told, [CqId(7), CqId(8)]);
}

/// A record that is cut short is a fault of the interface, and not the end of the device.
#[test]
fn short_record_is_told_as_such() {
    let ((mut kernel, events), (mut other, completions)) = (socket(), socket());
    let (context, channel) = open(events, completions);
    kernel.write_all(&[0; 15]).unwrap();
    other.write_all(&[0; 7]).unwrap();
    for error in [channel.drain(|_| ()).unwrap_err(), context.async_events().try_next().unwrap_err()] {
        assert!(matches!(error, Error::Abi { .. }), "{error}");
    }
    let (_, health) = queue(&context);
    assert!(health.is_well());
}

#[test]
fn fatal_event_ends_a_wait_in_another_thread() {
    for reader in [false, true] {
        let ((mut kernel, events), (_other, completions)) = (socket(), socket());
        let (context, channel) = open(events, completions);
        let (_, health) = queue(&context);
        let waiter = thread::spawn(move || is_gone(wait(&channel, &health)));
        let events = reader.then(|| context.async_events());
        thread::sleep(SHORT);
        kernel.write_all(async_record(8, 0).as_bytes()).unwrap();
        if let Some(events) = events {
            assert_eq!(events.next(LONG).unwrap().unwrap().kind, AsyncEventType::DEVICE_FATAL);
        }
        waiter.join().unwrap();
    }
}

/// A kernel that takes a device away leaves the event file open and silent.
#[test]
fn a_device_that_is_taken_away_is_told_after_its_last_event() {
    let ((mut kernel, events), (_other, completions)) = (socket(), socket());
    let fake = FakeKernel::new(Knows::ALL);
    fake.give_event_file(events.into());
    fake.give_event_file(completions.into());
    let fault = Fault::new();
    let sys = fault.wrap_sys(Arc::new(FakeHost(fake)));
    let context = Context::open_on(&*sys, &DeviceInfo::new("fake0")).unwrap();
    let events = context.async_events();
    fault.fail_matching(|_| true, Errno::EIO);
    assert_eq!(events.try_next().unwrap(), None, "nobody asks as long as nothing has happened");
    fault.clear();
    kernel.write_all(async_record(8, 0).as_bytes()).unwrap();
    assert_eq!(events.next(LONG).unwrap().unwrap().kind, AsyncEventType::DEVICE_FATAL);
    assert_eq!(events.try_next().unwrap(), None, "the driver may start the device anew, and take it away then");
    kernel.write_all(async_record(8, 0).as_bytes()).unwrap();
    fault.fail_matching(|_| true, Errno::EIO);
    assert_eq!(events.next(LONG).unwrap().unwrap().kind, AsyncEventType::DEVICE_FATAL);
    is_gone(events.try_next());
    is_gone(events.next(LONG));
}

/// Who waits for a channel with many queues is woken to look at them.
#[test]
fn overrun_of_one_queue_wakes_who_waits_for_its_channel() {
    let ((mut kernel, events), (_other, completions)) = (socket(), socket());
    let (context, channel) = open(events, completions);
    let inner = context.inner();
    let handle = inner.ucontext.next_user_handle();
    let health = Arc::new(Health::new(Some(channel.inner().alarm.clone())));
    inner.registry.insert(handle, Source::Cq(health.clone()));
    kernel.write_all(async_record(0, handle).as_bytes()).unwrap();
    assert!(channel.wait(LONG).unwrap());
    assert_eq!(health.poll_error(), Some(crate::PollError::Overrun));
    assert!(!channel.wait(SHORT).unwrap(), "told once");
}

/// Whoever watches the file for changes is told of an event once, and leaves it to a reader that may never read.
#[test]
fn a_reader_that_goes_leaves_nothing_unread() {
    let ((mut kernel, events), (_other, completions)) = (socket(), socket());
    let (context, _channel) = open(events, completions);
    let (handle, health) = queue(&context);
    let events = context.async_events();
    kernel.write_all(async_record(0, handle).as_bytes()).unwrap();
    context.inner().registry.keep_unread_events(context.inner().ucontext.async_fd()).unwrap();
    assert!(health.is_well(), "it is the reader's to read");
    drop(events);
    assert_eq!(health.poll_error(), Some(crate::PollError::Overrun));
}

#[test]
fn kept_events_are_bounded() {
    let ((mut kernel, events), (_other, completions)) = (socket(), socket());
    let (context, _channel) = open(events, completions);
    let inner = context.inner();
    for n in 0..MAX_KEPT as u64 + 5 {
        kernel.write_all(async_record(100, 1_000_000 + n).as_bytes()).unwrap();
        inner.registry.keep_unread_events(inner.ucontext.async_fd()).unwrap();
    }
    let events = context.async_events();
    assert_eq!(events.try_next().unwrap().unwrap().subject, Subject::Unknown(1_000_005), "the oldest go first");
    let rest = std::iter::from_fn(|| events.try_next().unwrap()).count();
    assert_eq!(rest, MAX_KEPT - 1);
}

/// A task that is gone but for its waker owns objects of the same context.
#[cfg(feature = "tokio")]
#[test]
fn a_waker_is_not_dropped_under_the_lock() {
    use std::task::Wake;
    struct Owner(crate::AsyncEvents);
    impl Wake for Owner {
        fn wake(self: Arc<Self>) {
            let _ = self.0.try_next();
        }
    }
    let ((_kernel, events), (_other, completions)) = (socket(), socket());
    let (context, _channel) = open(events, completions);
    let registry = &context.inner().registry;
    let task = || Waker::from(Arc::new(Owner(context.async_events())));
    registry.wake_later(1, &task());
    registry.wake_later(1, &task());
    registry.forget_task(1);
    assert!(!registry.has_reader(), "both tasks are gone");
}
