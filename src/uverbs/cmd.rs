//! An ioctl command under construction: header and attributes in one buffer on the stack.
//!
//! # Safety argument
//!
//! A command is full of addresses. Every address that [`CmdBuf`] puts into one comes from a reference that it keeps
//! borrowed until it is issued, mutably for outputs; so while the kernel works nobody else reads what it writes. What
//! the kernel answers in place are handles and file descriptors; a descriptor is adopted once, because [`Answer::fd`]
//! takes it out.
//!
//! What a *payload* says is not this module's business: a request that names memory by address (`REG_MR`) is unsafe to
//! build where it is built.
#![allow(unsafe_code)]

use super::abi::ioctl::{Attr, IoctlHdr, Method, attr, attr_flags};
use super::errno::Errno;
use super::sys::Cdev;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Most attributes of one command: as many as QP.CREATE defines, and its driver's two.
const MAX_ATTRS: usize = 17;
/// Longest input that travels inside its attribute.
const INLINE_BYTES: usize = size_of::<u64>();
const HEADER_WORDS: usize = size_of::<IoctlHdr>() / size_of::<u64>();
const ATTR_WORDS: usize = size_of::<Attr>() / size_of::<u64>();
/// What a new file descriptor's attribute holds before the kernel writes it: no descriptor.
const NO_FD: u64 = -1_i64 as u64;

/// An ioctl command. Attributes are mandatory unless added by a method that says otherwise: the kernel refuses the
/// command rather than ignoring what it does not know.
pub struct CmdBuf<'a> {
    words: [u64; HEADER_WORDS + MAX_ATTRS * ATTR_WORDS],
    n_attrs: usize,
    method: Method,
    driver_id: u32,
    /// A part did not fit into the interface; `issue` refuses.
    too_long: bool,
    borrows: PhantomData<&'a mut [u8]>,
}

impl<'a> CmdBuf<'a> {
    /// A command without attributes, for a device of `driver_id`.
    pub fn new(method: Method, driver_id: u32) -> Self {
        let words = [0; HEADER_WORDS + MAX_ATTRS * ATTR_WORDS];
        Self { words, n_attrs: 0, method, driver_id, too_long: false, borrows: PhantomData }
    }

    /// Input of any shape. Up to 8 bytes travel in the attribute itself, more by address.
    pub fn ptr_in<T: IntoBytes + Immutable + ?Sized>(&mut self, id: u16, value: &'a T) {
        let bytes = value.as_bytes();
        let data = match bytes.len() {
            0..=INLINE_BYTES => inline(bytes),
            _ => bytes.as_ptr().expose_provenance() as u64,
        };
        self.push(id, bytes.len(), attr_flags::MANDATORY, data);
    }

    /// Output, always by address. The kernel writes at most its length.
    pub fn ptr_out<T: IntoBytes + FromBytes + ?Sized>(&mut self, id: u16, out: &'a mut T) {
        self.out(id, attr_flags::MANDATORY, out.as_mut_bytes());
    }

    /// Output that an older kernel may leave untouched, because it does not know the attribute.
    pub fn optional_out<T: IntoBytes + FromBytes + ?Sized>(&mut self, id: u16, out: &'a mut T) {
        self.out(id, 0, out.as_mut_bytes());
    }

    /// Constant, always 8 bytes.
    pub fn const_in(&mut self, id: u16, value: u64) {
        self.push(id, size_of::<u64>(), attr_flags::MANDATORY, value);
    }

    /// Flags, 4 bytes.
    pub fn flags_in(&mut self, id: u16, flags: u32) {
        self.push(id, size_of::<u32>(), attr_flags::MANDATORY, inline(&flags.to_ne_bytes()));
    }

    /// An existing object.
    pub fn object_in(&mut self, id: u16, handle: u32) {
        self.push(id, 0, attr_flags::MANDATORY, u64::from(handle));
    }

    /// An object that the command makes: see [`Answer::handle`].
    pub fn object_out(&mut self, id: u16) {
        self.push(id, 0, attr_flags::MANDATORY, 0);
    }

    /// An open file.
    pub fn fd_in(&mut self, id: u16, fd: BorrowedFd<'a>) {
        self.push(id, 0, attr_flags::MANDATORY, i64::from(fd.as_raw_fd()) as u64);
    }

    /// A file that the command opens: see [`Answer::fd`].
    pub fn fd_out(&mut self, id: u16) {
        self.push(id, 0, attr_flags::MANDATORY, NO_FD);
    }

    /// The driver's part of request and response; an empty slice adds nothing.
    pub fn uhw(&mut self, uhw_in: &'a [u8], uhw_out: &'a mut [u8]) {
        if !uhw_in.is_empty() {
            self.ptr_in(attr::UHW_IN, uhw_in);
        }
        if !uhw_out.is_empty() {
            self.ptr_out(attr::UHW_OUT, uhw_out);
        }
    }

    /// Sends the command. What it makes is in the answer, what it tells in the outputs.
    pub fn issue(&mut self, cdev: &dyn Cdev) -> Result<Answer<'_>, Errno> {
        if self.too_long {
            return Err(Errno::EMSGSIZE);
        }
        let n_words = HEADER_WORDS + self.n_attrs * ATTR_WORDS;
        let header = IoctlHdr {
            length: (n_words * size_of::<u64>()) as u16,
            object_id: self.method.object,
            method_id: self.method.method,
            num_attrs: self.n_attrs as u16,
            reserved1: 0,
            driver_id: self.driver_id,
            reserved2: 0,
        };
        let header: [u64; HEADER_WORDS] = zerocopy::transmute!(header);
        self.words[..HEADER_WORDS].copy_from_slice(&header);
        let words = &mut self.words[..n_words];
        // SAFETY: every address in the command was made from a reference that is borrowed for 'a, which is alive as
        // long as `self`, and every length is that reference's; see the module.
        unsafe { cdev.ioctl(words) }?;
        Ok(Answer { attrs: &mut words[HEADER_WORDS..] })
    }

    fn out(&mut self, id: u16, flags: u16, bytes: &'a mut [u8]) {
        let len_bytes = bytes.len();
        self.push(id, len_bytes, flags, bytes.as_mut_ptr().expose_provenance() as u64);
    }

    fn push(&mut self, attr_id: u16, len_bytes: usize, flags: u16, data: u64) {
        let at = HEADER_WORDS + self.n_attrs * ATTR_WORDS;
        let (Ok(len), Some(slot)) = (u16::try_from(len_bytes), self.words.get_mut(at..at + ATTR_WORDS)) else {
            self.too_long = true;
            return;
        };
        let words: [u64; ATTR_WORDS] = zerocopy::transmute!(Attr { attr_id, len, flags, attr_data: 0, data });
        slot.copy_from_slice(&words);
        self.n_attrs += 1;
    }
}

/// At most 8 bytes as they lie in an attribute's data: first byte at the lowest address, the rest zero.
fn inline(bytes: &[u8]) -> u64 {
    let mut data = [0; INLINE_BYTES];
    data[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(data)
}

/// What the kernel wrote into a command's own attributes.
pub struct Answer<'c> {
    attrs: &'c mut [u64],
}

impl Answer<'_> {
    /// The handle of the object that the command made. `id` is the attribute given to [`CmdBuf::object_out`].
    pub fn handle(&self, id: u16) -> u32 {
        self.slot(id).map_or(0, |at| self.attrs[at] as u32)
    }

    /// The file that the command opened, once. `id` is the attribute given to [`CmdBuf::fd_out`]; `None` when nothing
    /// was written there.
    pub fn fd(&mut self, id: u16) -> Option<OwnedFd> {
        let at = self.slot(id)?;
        adopt(std::mem::replace(&mut self.attrs[at], NO_FD) as i64)
    }

    /// Index of the word that holds attribute `id`'s data.
    fn slot(&self, id: u16) -> Option<usize> {
        self.attrs
            .chunks_exact(ATTR_WORDS)
            .position(|words| {
                let [first, _] = words else { return false };
                let first: [u16; 4] = zerocopy::transmute!(*first);
                first[0] == id
            })
            .map(|i| i * ATTR_WORDS + 1)
    }
}

/// Takes a file descriptor that a command just returned; `None` for a negative one.
pub fn adopt(fd: i64) -> Option<OwnedFd> {
    let raw = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the implementer of `Cdev` promises that a descriptor in an answer is open and owned by nobody else.
    Some(unsafe { OwnedFd::from_raw_fd(raw) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::map::Mapping;
    use crate::uverbs::abi::ioctl::method;
    use std::os::fd::{AsFd, IntoRawFd, RawFd};
    use std::sync::Mutex;

    /// Keeps the words of the last command, and writes `answer` into the data of its first attribute.
    #[derive(Default)]
    struct Mirror {
        words: Mutex<Vec<u64>>,
        answer: Option<u64>,
    }

    // SAFETY: it maps nothing, follows no address, and hands out only descriptors that a test gave it to hand out.
    unsafe impl Cdev for Mirror {
        unsafe fn ioctl(&self, command: &mut [u64]) -> Result<(), Errno> {
            *self.words.lock().unwrap() = command.to_vec();
            if let Some(answer) = self.answer {
                command[4] = answer;
            }
            Ok(())
        }
        unsafe fn write(&self, _command: &[u64]) -> Result<(), Errno> {
            Err(Errno::ENOSYS)
        }
        fn map(&self, _offset: u64, _len_bytes: usize) -> Result<Mapping, Errno> {
            Err(Errno::ENOSYS)
        }
        fn driver_id(&self) -> u32 {
            14
        }
        fn raw_fd(&self) -> Option<RawFd> {
            None
        }
    }

    /// The bytes of the only attribute of the command that `build` makes.
    fn encoded<'a>(build: impl FnOnce(&mut CmdBuf<'a>)) -> Vec<u8> {
        let mirror = Mirror::default();
        let mut cmd = CmdBuf::new(method::QP_CREATE, 14);
        build(&mut cmd);
        cmd.issue(&mirror).map(|_| ()).unwrap();
        let words = mirror.words.lock().unwrap();
        assert_eq!(words.len(), 5);
        words[3..].as_bytes().to_vec()
    }

    #[test]
    fn inputs_of_up_to_eight_bytes_travel_inside() {
        let bytes = [0xa1_u8, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8];
        for len in [1, 4, 8] {
            let mut expected = vec![0x07, 0, len as u8, 0, 1, 0, 0, 0];
            expected.extend_from_slice(&bytes[..len]);
            expected.resize(16, 0);
            assert_eq!(encoded(|cmd| cmd.ptr_in(7, &bytes[..len])), expected, "length {len}");
        }
    }

    #[test]
    fn longer_inputs_travel_by_address() {
        let bytes = [0xa5_u8; 16];
        for len in [9, 16] {
            let mut expected = vec![0x07, 0, len as u8, 0, 1, 0, 0, 0];
            expected.extend_from_slice(&(bytes.as_ptr().addr() as u64).to_ne_bytes());
            assert_eq!(encoded(|cmd| cmd.ptr_in(7, &bytes[..len])), expected, "length {len}");
        }
    }

    #[test]
    fn outputs_travel_by_address_however_short() {
        let mut out = 0_u32;
        let address = std::ptr::from_mut(&mut out).addr() as u64;
        let mut expected = vec![0x07, 0, 4, 0, 1, 0, 0, 0];
        expected.extend_from_slice(&address.to_ne_bytes());
        assert_eq!(encoded(|cmd| cmd.ptr_out(7, &mut out)), expected);
        expected[4] = 0;
        assert_eq!(encoded(|cmd| cmd.optional_out(7, &mut out)), expected, "not mandatory");
    }

    #[test]
    fn constants_take_eight_bytes_and_flags_four() {
        assert_eq!(encoded(|cmd| cmd.const_in(9, 2)), [9, 0, 8, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encoded(|cmd| cmd.flags_in(9, 2)), [9, 0, 4, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn objects_and_files_have_no_length() {
        assert_eq!(encoded(|cmd| cmd.object_in(2, 0x0102)), [2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encoded(|cmd| cmd.object_out(2)), [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let no_fd = [2, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255];
        assert_eq!(encoded(|cmd| cmd.fd_out(2)), no_fd);
        let file = std::io::stderr();
        assert_eq!(encoded(|cmd| cmd.fd_in(2, file.as_fd())), [2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn an_empty_driver_part_adds_nothing() {
        let mirror = Mirror::default();
        let mut cmd = CmdBuf::new(method::QP_CREATE, 14);
        cmd.uhw(&[], &mut []);
        assert!(cmd.issue(&mirror).is_ok());
        let header = [24_u8, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 14, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(mirror.words.lock().unwrap().as_bytes(), header);
    }

    #[test]
    fn what_does_not_fit_is_not_sent() {
        let mirror = Mirror::default();
        let long = vec![0_u8; 65536];
        let mut cmd = CmdBuf::new(method::QP_CREATE, 14);
        cmd.ptr_in(1, long.as_slice());
        assert_eq!(cmd.issue(&mirror).err(), Some(Errno::EMSGSIZE));
        let mut cmd = CmdBuf::new(method::QP_CREATE, 14);
        for id in 0..=MAX_ATTRS as u16 {
            cmd.const_in(id, 0);
        }
        assert_eq!(cmd.issue(&mirror).err(), Some(Errno::EMSGSIZE));
        assert!(mirror.words.lock().unwrap().is_empty(), "nothing reached the device");
    }

    #[test]
    fn answers_are_read_from_the_attribute() {
        let mirror = Mirror { answer: Some(0x0102_0304), ..Default::default() };
        let mut cmd = CmdBuf::new(method::QP_CREATE, 14);
        cmd.object_out(5);
        assert_eq!(cmd.issue(&mirror).map(|answer| answer.handle(5)), Ok(0x0102_0304));
    }

    #[test]
    fn a_file_is_adopted_once() {
        let file = std::io::pipe().unwrap().0;
        let raw = std::os::fd::OwnedFd::from(file).into_raw_fd();
        let mirror = Mirror { answer: Some(raw as u64), ..Default::default() };
        let mut cmd = CmdBuf::new(method::ASYNC_EVENT_ALLOC, 14);
        cmd.fd_out(0);
        let mut answer = cmd.issue(&mirror).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(answer.fd(0).map(|fd| fd.as_raw_fd()), Some(raw));
        assert!(answer.fd(0).is_none());
    }

    #[test]
    fn a_file_that_was_not_written_is_none() {
        let mut cmd = CmdBuf::new(method::ASYNC_EVENT_ALLOC, 14);
        cmd.fd_out(0);
        let mut answer = cmd.issue(&Mirror::default()).unwrap_or_else(|e| panic!("{e}"));
        assert!(answer.fd(0).is_none());
    }
}
