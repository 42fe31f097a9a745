//! Doorbell pages as kernel objects: made, mapped and destroyed one by one.
//!
//! # Safety argument
//!
//! Both commands have a fixed shape, written out here. The addresses in them are those of local words, which live until the
//! call returns and are as long as the command says.
#![allow(unsafe_code)]

use super::abi::uar::{ALLOC, DESTROY, attr, kind};
use super::uar::{Caching, UarPage, offset_in_page};
use crate::mem::map::page_bytes;
use crate::uverbs::abi::ioctl::{Attr, IoctlHdr, Method, attr_flags};
use crate::uverbs::context::Ucontext;
use crate::uverbs::errno::Errno;
use crate::uverbs::error::{Error, Lacking, Verb};
use crate::uverbs::explain;
use std::sync::Arc;

/// The words of a header, and of an attribute.
const HEADER_WORDS: usize = size_of::<IoctlHdr>() / 8;
const ATTR_WORDS: usize = size_of::<Attr>() / 8;
/// Words of the two commands.
const ALLOC_WORDS: usize = HEADER_WORDS + 5 * ATTR_WORDS;
const DESTROY_WORDS: usize = HEADER_WORDS + ATTR_WORDS;
/// Where the kernel writes the new object's handle: the first attribute's data.
const HANDLE_WORD: usize = HEADER_WORDS + 1;

/// A command of as many attributes as its words have room for.
fn command<const WORDS: usize>(method: Method, driver_id: u32, attrs: &[Attr]) -> [u64; WORDS] {
    let header = IoctlHdr {
        length: (WORDS * 8) as u16,
        object_id: method.object,
        method_id: method.method,
        num_attrs: attrs.len() as u16,
        reserved1: 0,
        driver_id,
        reserved2: 0,
    };
    let mut words = [0; WORDS];
    let (head, rest) = words.split_at_mut(HEADER_WORDS);
    let header: [u64; HEADER_WORDS] = zerocopy::transmute!(header);
    head.copy_from_slice(&header);
    for (slot, attr) in rest.chunks_exact_mut(ATTR_WORDS).zip(attrs) {
        let attr: [u64; ATTR_WORDS] = zerocopy::transmute!(*attr);
        slot.copy_from_slice(&attr);
    }
    words
}

/// An attribute of `len` bytes.
const fn attribute(attr_id: u16, len: u16, data: u64) -> Attr {
    Attr { attr_id, len, flags: attr_flags::MANDATORY, attr_data: 0, data }
}

/// A doorbell page's object.
struct UarObject {
    context: Arc<Ucontext>,
    handle: u32,
}

impl Drop for UarObject {
    /// A refusal leaves the page to the kernel, which takes it back when the context is closed.
    fn drop(&mut self) {
        let cdev = self.context.cdev();
        let attrs = [attribute(attr::HANDLE, 0, self.handle.into())];
        let mut words: [u64; DESTROY_WORDS] = command(DESTROY, cdev.driver_id(), &attrs);
        // SAFETY: the command is as long as its header says, and names no memory.
        let _ = unsafe { cdev.ioctl(&mut words) };
    }
}

/// Makes a doorbell page and maps it. `log_uar_bytes` is the size of one, as the context told.
pub fn alloc(context: &Arc<Ucontext>, caching: Caching, log_uar_bytes: u32) -> Result<Arc<UarPage>, Error> {
    let cdev = context.cdev();
    let (mut offset, mut length, mut page_id) = (0_u64, 0_u32, 0_u32);
    let kind = match caching {
        Caching::WriteCombining => kind::BF,
        Caching::Uncached => kind::NC,
    };
    let attrs = [
        attribute(attr::HANDLE, 0, 0),
        attribute(attr::TYPE, 8, kind),
        attribute(attr::MMAP_OFFSET, 8, (&raw mut offset).expose_provenance() as u64),
        attribute(attr::MMAP_LENGTH, 4, (&raw mut length).expose_provenance() as u64),
        attribute(attr::PAGE_ID, 4, (&raw mut page_id).expose_provenance() as u64),
    ];
    let mut words: [u64; ALLOC_WORDS] = command(ALLOC, cdev.driver_id(), &attrs);
    // SAFETY: the command is as long as its header says; its three addresses are those of words of just the lengths given,
    // which nobody else touches during the call.
    unsafe { cdev.ioctl(&mut words) }.map_err(refused)?;
    let object = UarObject { context: Arc::clone(context), handle: words[HANDLE_WORD] as u32 };
    // SAFETY: locals that the kernel wrote. Volatile, since the compiler has seen nobody write them.
    let (offset, length, page_id) = unsafe {
        ((&raw const offset).read_volatile(), (&raw const length).read_volatile(), (&raw const page_id).read_volatile())
    };
    let mapping = cdev.map(offset, length as usize).map_err(|errno| {
        explain::mapping(Error::kernel(Verb::MapQueue, errno), &format!("doorbell page {page_id}"), length as usize)
    })?;
    let at = offset_in_page(page_id, page_bytes(), log_uar_bytes);
    UarPage::new(mapping, at, page_id, caching, Box::new(object))
}

fn refused(errno: Errno) -> Error {
    match errno {
        Errno::EPROTONOSUPPORT | Errno::ENOTTY => Error::Unsupported {
            verb: Verb::OpenDevice,
            what: "making doorbell pages one by one".into(),
            by: Lacking::Driver,
        },
        Errno::EOPNOTSUPP => Error::Unsupported {
            verb: Verb::OpenDevice,
            what: "a write-combining doorbell page".into(),
            by: Lacking::Device,
        },
        _ => Error::kernel(Verb::OpenDevice, errno)
            .with_hint("no doorbell page can be made: the device may have none left"),
    }
}
