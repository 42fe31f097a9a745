//! A small model of the kernel's connection manager, for unit tests: what it takes, refuses and writes back, and the events
//! that a test has it tell.
//!
//! It reads commands by literal offsets from the kernel's documentation, not by the structures of `abi`, so that a wrong
//! offset there does not agree with itself here; and it panics at what the kernel would let pass but should not be sent:
//! dirty reserved fields, a zero `uid`.
//!
//! # Safety argument
//!
//! Memory is touched only at addresses that commands give for the length that they give, during the call: the caller's
//! part of [`CmFile`].
#![allow(unsafe_code)]

use super::abi::EventResp;
use super::error::Error;
use super::sys::{CmFile, CmSys};
use crate::uverbs::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use zerocopy::IntoBytes;

/// The model. Clones are the same one.
#[derive(Clone, Default)]
pub struct FakeCm {
    state: Arc<Mutex<State>>,
    /// Of who waits in GET_EVENT: something was told.
    told: Arc<Condvar>,
}

#[derive(Default)]
struct State {
    /// By the number of their descriptors.
    files: BTreeMap<i32, Queue>,
    ids: BTreeMap<u32, Id>,
    next_id: u32,
    log: Vec<String>,
    refuse: BTreeMap<u32, Errno>,
    refuse_once: Option<(u32, Errno)>,
    locked_out: bool,
    /// Commands from this number on are not known.
    knows_below: Option<u32>,
    files_at_most: Option<usize>,
    tells_no_device: bool,
    never_waits: bool,
    sleepers: usize,
}

struct Queue {
    events: VecDeque<EventResp>,
    /// How many were told on this file. Those that an id brought are not.
    told: u64,
    ready: Arc<EventFd>,
}

impl Queue {
    /// Not readable once there is nothing left to read.
    fn calm_if_empty(&self) {
        if self.events.is_empty() {
            // Its count is read and zeroed at once; there may be none.
            let _ = self.ready.read();
        }
    }
}

struct Id {
    file: i32,
    uid: u64,
    reported: u32,
}

struct FakeFile {
    cm: FakeCm,
    ready: Arc<EventFd>,
    /// GET_EVENT waits for one.
    waits: AtomicBool,
}

impl CmSys for FakeCm {
    fn open(&self) -> Result<Arc<dyn CmFile>, Error> {
        if self.state().has_too_many_files() {
            return Err(Error::NoService { why: "there are too many files".into() });
        }
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let ready = Arc::new(EventFd::from_value_and_flags(0, flags).unwrap());
        let queue = Queue { events: VecDeque::new(), told: 0, ready: ready.clone() };
        self.state().files.insert(ready.as_fd().as_raw_fd(), queue);
        Ok(Arc::new(FakeFile { cm: self.clone(), ready, waits: AtomicBool::new(false) }))
    }
}

impl FakeCm {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The commands so far that were not refused, without those for events. Takes them out.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.state().log)
    }

    /// Ids that there are.
    pub fn ids(&self) -> Vec<u32> {
        self.state().ids.keys().copied().collect()
    }

    /// What the events of id `number` carry.
    pub fn uid(&self, number: u32) -> u64 {
        self.state().ids[&number].uid
    }

    /// Refuses every command of that number.
    pub fn refuse(&self, command: u32, errno: Errno) {
        self.state().refuse.insert(command, errno);
    }

    /// Refuses the next command of that number.
    pub fn refuse_once(&self, command: u32, errno: Errno) {
        self.state().refuse_once = Some((command, errno));
    }

    /// Refuses everything, as after a change of credentials; or no more.
    pub fn lock_out(&self, on: bool) {
        self.state().locked_out = on;
    }

    /// A kernel that knows commands below `number` only.
    pub fn knows_below(&self, number: u32) {
        self.state().knows_below = Some(number);
    }

    /// A kernel before Linux 5.7, whose responses end before the device's index.
    pub fn tells_no_device(&self) {
        self.state().tells_no_device = true;
    }

    /// Opens no more than so many files at once.
    pub fn files_at_most(&self, most: usize) {
        self.state().files_at_most = Some(most);
    }

    /// Files cannot be let wait.
    pub fn never_wait(&self) {
        self.state().never_waits = true;
    }

    /// Has an event told of id `number`, as long as there is one.
    pub fn tell(&self, number: u32, mut event: EventResp) {
        let mut state = self.state();
        let Some(id) = state.ids.get(&number) else { return };
        (event.uid, event.id) = (id.uid, number);
        let file = id.file;
        // The kernel keeps quiet of an id that has no uid.
        if event.uid != 0 {
            self.push(&mut state, file, event);
        }
    }

    /// Has a peer ask the listening id `number`. Returns the new id's number.
    pub fn ask(&self, number: u32, event: EventResp) -> u32 {
        let mut state = self.state();
        let Id { file, uid, .. } = state.ids[&number];
        let new = state.new_id(file, 0);
        self.push(&mut state, file, EventResp { uid, id: new, event: 4, ..event });
        new
    }

    /// An id of a request on the only file, of which no event was told.
    pub fn orphan(&self) -> u32 {
        let mut state = self.state();
        let file = *state.files.keys().next().unwrap();
        state.new_id(file, 0)
    }

    /// Puts an event onto the only file as it is.
    pub fn tell_raw(&self, event: EventResp) {
        let mut state = self.state();
        let file = *state.files.keys().next().unwrap();
        self.push(&mut state, file, event);
    }

    fn push(&self, state: &mut State, file: i32, event: EventResp) {
        let queue = state.files.get_mut(&file).unwrap();
        queue.events.push_back(event);
        queue.told += 1;
        queue.ready.write(1).unwrap();
        self.told.notify_all();
    }

    /// Sleeps until an event is told on the file. Whether there is one is looked at before, and after each that is told, and not when
    /// an id brings some (`wait_event_interruptible` and `ucma_migrate_id`).
    fn wait_for_event<'a>(&self, mut state: MutexGuard<'a, State>, file: i32) -> MutexGuard<'a, State> {
        while state.files[&file].events.is_empty() {
            let before = state.files[&file].told;
            state.sleepers += 1;
            while state.files[&file].told == before {
                state = self.told.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.sleepers -= 1;
        }
        state
    }

    /// Waits until so many sleep in GET_EVENT.
    pub fn until_sleeping(&self, sleepers: usize) {
        while self.state().sleepers != sleepers {
            std::thread::yield_now();
        }
    }
}

impl State {
    fn has_too_many_files(&self) -> bool {
        self.files_at_most.is_some_and(|most| self.files.len() >= most)
    }

    fn new_id(&mut self, file: i32, uid: u64) -> u32 {
        let number = self.next_id;
        self.next_id += 1;
        self.ids.insert(number, Id { file, uid, reported: 0 });
        number
    }

    fn id(&mut self, number: u32, file: i32) -> Result<&mut Id, Errno> {
        match self.ids.get_mut(&number) {
            None => Err(Errno::ENOENT),
            Some(id) if id.file != file => Err(Errno::EINVAL),
            Some(id) => Ok(id),
        }
    }

    /// Takes the events that `mine` picks off a file.
    fn take_events(&mut self, file: i32, mine: impl Fn(&EventResp) -> bool) -> VecDeque<EventResp> {
        let queue = self.files.get_mut(&file).unwrap();
        let (taken, left): (VecDeque<_>, _) = queue.events.drain(..).partition(mine);
        queue.events = left;
        queue.calm_if_empty();
        taken
    }

    fn run(&mut self, file: i32, cmd: u32, body: &[u8], out: usize) -> Result<(String, Vec<u8>), Errno> {
        let u16_at = |offset: usize| u16::from_ne_bytes(body[offset..offset + 2].try_into().unwrap());
        let u32_at = |offset: usize| u32::from_ne_bytes(body[offset..offset + 4].try_into().unwrap());
        let u64_at = |offset: usize| u64::from_ne_bytes(body[offset..offset + 8].try_into().unwrap());
        let expect = |len: usize| assert_eq!(body.len(), len, "length of command {cmd}");
        let room = |need: usize| if out < need { Err(Errno::ENOSPC) } else { Ok(()) };
        let nothing = Vec::new();
        Ok(match cmd {
            0 => {
                expect(24);
                room(4)?;
                assert_ne!(u64_at(0), 0, "the kernel would tell nothing of an id without a uid");
                assert_eq!(body[19..24], [0; 5]);
                if ![0x106, 0x111, 0x2, 0x13f].contains(&u16_at(16)) {
                    return Err(Errno::EINVAL);
                }
                let id = self.new_id(file, u64_at(0));
                (format!("create {id} space {:#x} type {}", u16_at(16), body[18]), id.to_ne_bytes().to_vec())
            }
            1 => {
                expect(16);
                room(4)?;
                let number = u32_at(8);
                let reported = self.id(number, file)?.reported;
                let uid = self.ids.remove(&number).unwrap().uid;
                for event in self.take_events(file, |event| event.uid == uid && uid != 0) {
                    if event.event == 4 {
                        self.ids.remove(&event.id);
                    }
                }
                (format!("destroy {number}"), reported.to_ne_bytes().to_vec())
            }
            2 => {
                expect(40);
                self.id(u32_at(36), file)?;
                (format!("bind_ip {} {:?}", u32_at(36), &body[8..16]), nothing)
            }
            3 => {
                expect(64);
                self.id(u32_at(56), file)?;
                (format!("resolve_ip {} {:?} {} ms", u32_at(56), &body[28..36], u32_at(60)), nothing)
            }
            4 => {
                expect(8);
                self.id(u32_at(0), file)?;
                assert_ne!(u32_at(4), 0, "time-out");
                (format!("resolve_route {}", u32_at(0)), nothing)
            }
            5 => {
                expect(16);
                room(200)?;
                let mut answer = vec![0; 208];
                answer[136..144].copy_from_slice(&[2, 0, 0x1d, 0x2f, 10, 9, 9, 1]);
                answer[196] = 1;
                answer[200] = 7;
                answer.truncate(if self.tells_no_device { 200 } else { 208 });
                self.id(u32_at(8), file)?;
                (format!("query_route {}", u32_at(8)), answer)
            }
            6 => {
                expect(288);
                self.id(u32_at(272), file)?;
                assert_eq!(u32_at(276), 0);
                if body[271] == 0 {
                    return Err(Errno::EINVAL);
                }
                let len = usize::from(body[264]);
                let numbers = [u32_at(0), u32_at(280), u32_at(284)];
                (format!("connect {} {numbers:?} {:?} {:?}", u32_at(272), &body[265..271], &body[8..8 + len]), nothing)
            }
            7 => {
                expect(8);
                self.id(u32_at(0), file)?;
                (format!("listen {} backlog {}", u32_at(0), u32_at(4)), nothing)
            }
            8 => {
                expect(296);
                let (number, valid, len) = (u32_at(280), body[279], usize::from(body[272]));
                assert_ne!(u64_at(0), 0);
                let id = self.id(number, file)?;
                if valid == 0 {
                    return Ok((format!("establish {number}"), nothing));
                }
                id.uid = u64_at(0);
                (format!("accept {number} qp {} {:?}", u32_at(8), &body[16..16 + len]), nothing)
            }
            9 => {
                expect(264);
                self.id(u32_at(0), file)?;
                let len = usize::from(body[4]);
                (format!("reject {} reason {} {:?}", u32_at(0), body[5], &body[8..8 + len]), nothing)
            }
            10 => {
                expect(4);
                self.id(u32_at(0), file)?;
                (format!("disconnect {}", u32_at(0)), nothing)
            }
            11 => {
                expect(16);
                room(144)?;
                self.id(u32_at(8), file)?;
                (format!("init_qp_attr {} state {}", u32_at(8), u32_at(12)), (0..144).collect())
            }
            12 => {
                expect(8);
                room(324)?;
                let queue = self.files.get_mut(&file).unwrap();
                let event = queue.events.pop_front().ok_or(Errno::EAGAIN)?;
                queue.calm_if_empty();
                if let Some(id) = self.ids.values_mut().find(|id| id.uid == event.uid) {
                    id.reported += 1;
                }
                (String::new(), event.as_bytes().to_vec())
            }
            14 => {
                expect(24);
                self.id(u32_at(8), file)?;
                let address = std::ptr::with_exposed_provenance::<u8>(u64_at(0) as usize);
                // SAFETY: the caller's part: so many bytes are there.
                let value = unsafe { std::slice::from_raw_parts(address, u32_at(20) as usize) };
                (format!("set_option {} {}.{} {value:?}", u32_at(8), u32_at(12), u32_at(16)), nothing)
            }
            15 => {
                expect(8);
                self.id(u32_at(0), file)?;
                (format!("notify {} {}", u32_at(0), u32_at(4)), nothing)
            }
            16 => {
                expect(48);
                room(4)?;
                assert_ne!(u64_at(8), 0);
                self.id(u32_at(44), file)?;
                (format!("join_ip {} {:?}", u32_at(44), &body[16..24]), 70_u32.to_ne_bytes().to_vec())
            }
            17 => {
                expect(16);
                room(4)?;
                if u32_at(8) != 70 {
                    return Err(Errno::ENOENT);
                }
                (format!("leave {}", u32_at(8)), vec![0; 4])
            }
            18 => {
                expect(16);
                room(4)?;
                let (number, from) = (u32_at(8), u32_at(12) as i32);
                let uid = self.id(number, from)?.uid;
                self.ids.get_mut(&number).unwrap().file = file;
                let events = self.take_events(from, |event| event.uid == uid);
                let queue = self.files.get_mut(&file).unwrap();
                // Who polls from here on sees them. Who sleeps already is not woken, but that cannot be shown by an eventfd.
                if !events.is_empty() {
                    queue.ready.write(1).unwrap();
                }
                queue.events.extend(events);
                (format!("migrate {number}"), vec![0; 4])
            }
            19 => {
                expect(16);
                let number = u32_at(8);
                self.id(number, file)?;
                let mut answer = vec![0; 280];
                match u32_at(12) {
                    0 => {
                        room(272)?;
                        answer[..11].copy_from_slice(&[2, 0, 0, 0xff, 0xfe, 9, 9, 1, 1, 0, 0xff]);
                        answer[11] = 0xff;
                        answer[16..24].copy_from_slice(&[2, 0, 0x1d, 0x2f, 10, 9, 9, 1]);
                        answer[272] = 7;
                        answer.truncate(if self.tells_no_device { 272 } else { 280 });
                    }
                    1 => {
                        room(8)?;
                        answer = vec![0; 8 + 72];
                        answer[0] = 1;
                        answer[8] = 0x2b;
                        answer[16..80].copy_from_slice(&[5; 64]);
                    }
                    2 => {
                        room(272)?;
                        answer[16] = 27;
                        answer[24..40].copy_from_slice(&[3; 16]);
                    }
                    _ => return Err(Errno::ENOSYS),
                }
                (format!("query {number} {}", u32_at(12)), answer)
            }
            20 => {
                expect(136);
                self.id(u32_at(0), file)?;
                assert_eq!(u16_at(6), 0);
                (format!("bind {} {:?}", u32_at(0), &body[8..8 + usize::from(u16_at(4))]), nothing)
            }
            21 => {
                expect(272);
                self.id(u32_at(0), file)?;
                assert_eq!(u32_at(12), 0);
                let (from, to) = (usize::from(u16_at(8)), usize::from(u16_at(10)));
                for rest in [&body[16 + from..144], &body[144 + to..]] {
                    assert!(
                        rest.iter().all(|byte| *byte == 0),
                        "the kernel looks at an address's family whatever its size"
                    );
                }
                let addresses = (&body[16..16 + from], &body[144..144 + to]);
                (format!("resolve_addr {} {addresses:?} {} ms", u32_at(0), u32_at(4)), nothing)
            }
            22 => {
                expect(152);
                room(4)?;
                assert_ne!(u64_at(8), 0);
                self.id(u32_at(16), file)?;
                let address = &body[24..24 + usize::from(u16_at(20))];
                (format!("join {} flags {} {address:?}", u32_at(16), u16_at(22)), 70_u32.to_ne_bytes().to_vec())
            }
            _ => return Err(Errno::EINVAL),
        })
    }
}

// SAFETY: see the module's safety argument.
unsafe impl CmFile for FakeFile {
    unsafe fn write(&self, command: &[u8]) -> Result<(), Errno> {
        let (header, body) = command.split_at(8);
        let cmd = u32::from_ne_bytes(header[..4].try_into().unwrap());
        let file = self.ready.as_fd().as_raw_fd();
        let mut state = self.cm.state();
        // The flag is looked at where there is no event, and again after each sleep.
        while cmd == 12 && state.files[&file].events.is_empty() && self.waits.load(Ordering::Relaxed) {
            drop(self.cm.wait_for_event(state, file));
            // Another may take it first.
            state = self.cm.state();
        }
        if state.locked_out {
            return Err(Errno::EACCES);
        }
        let [in_bytes, out] = [4, 6].map(|at| usize::from(u16::from_ne_bytes(header[at..at + 2].try_into().unwrap())));
        assert_eq!(in_bytes, body.len());
        if state.knows_below.is_some_and(|number| cmd >= number) {
            return Err(Errno::EINVAL);
        }
        if let Some(errno) = state.refuse.get(&cmd) {
            return Err(*errno);
        }
        if let Some((_, errno)) = state.refuse_once.take_if(|(number, _)| *number == cmd) {
            return Err(errno);
        }
        let (entry, answer) = state.run(file, cmd, body, out)?;
        // Where the response's address is, by command.
        let response_at = if cmd == 0 { 8 } else { 0 };
        if !answer.is_empty() {
            let address = u64::from_ne_bytes(body[response_at..response_at + 8].try_into().unwrap()) as usize;
            let len = answer.len().min(out);
            // SAFETY: the caller's part: `out` bytes are there for the response.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address).copy_from(answer.as_ptr(), len) };
        }
        if !entry.is_empty() {
            state.log.push(entry);
        }
        Ok(())
    }

    fn let_wait(&self, wait: bool) -> Result<(), Errno> {
        let mut state = self.cm.state();
        if state.never_waits {
            return Err(Errno::EOPNOTSUPP);
        }
        state.log.push(format!("waits {wait}"));
        self.waits.store(wait, Ordering::Relaxed);
        Ok(())
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

/// Closing a file destroys its ids.
impl Drop for FakeFile {
    fn drop(&mut self) {
        let file = self.ready.as_fd().as_raw_fd();
        let mut state = self.cm.state();
        state.files.remove(&file);
        state.ids.retain(|_, id| id.file != file);
    }
}
