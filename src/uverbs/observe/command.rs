//! A command as it passes the seam, taken apart.
//!
//! # Safety argument
//!
//! A [`Command`] reads memory by addresses that it finds in the command. Who makes one promises that they are valid, as
//! the caller of [`Cdev`](crate::sys::Cdev) does for the duration of the call; the view's lifetime keeps it within. Only
//! attributes that the tables of `names` know are followed, because only those tell a value from an address.
#![allow(unsafe_code)]

use super::names::{self, MethodSpec, Shape, Show, WriteSpec};
use crate::uverbs::abi::ioctl::{Attr, IoctlHdr, Method, attr, method};
use crate::uverbs::abi::write::{CmdHdr, EXTENDED, ExCmdHdr};
use std::fmt::{self, Write as _};
use std::marker::PhantomData;
use zerocopy::{FromBytes, IntoBytes};

/// How a command reaches the device.
///
/// ```no_run
/// # fn f(recorded: &ironverbs::sys::Recorded) -> Result<(), ironverbs::Error> {
/// if recorded.form == ironverbs::sys::CommandForm::Write {
///     println!("{} was not sent by ioctl", recorded.name);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommandForm {
    /// `RDMA_VERBS_IOCTL`.
    Ioctl,
    /// write().
    Write,
    /// mmap().
    Map,
    /// open() of the device file.
    Open,
}

/// One command on its way to the device.
///
/// It prints as one line: its name, and its inputs by name.
///
/// ```
/// use ironverbs::{Errno, sys::{Command, Fault}};
/// Fault::new().fail_matching(|command: &Command<'_>| command.name() == "QP.CREATE", Errno::ENOMEM);
/// ```
#[derive(Clone, Copy)]
pub struct Command<'a>(Kind<'a>);

#[derive(Clone, Copy)]
enum Kind<'a> {
    Ioctl { words: &'a [u64], memory: PhantomData<&'a [u8]> },
    Write { words: &'a [u64], memory: PhantomData<&'a [u8]> },
    Map { offset: u64, len_bytes: usize },
    Open { name: &'a str },
}

impl<'a> Command<'a> {
    /// A view of an ioctl command.
    ///
    /// # Safety
    ///
    /// The addresses in it are valid for reads, for the lengths it gives, and nobody writes there, during `'a`.
    pub(super) unsafe fn ioctl(words: &'a [u64]) -> Self {
        Self(Kind::Ioctl { words, memory: PhantomData })
    }

    /// A view of a command given to write().
    ///
    /// # Safety
    ///
    /// As [`Command::ioctl`].
    pub(super) unsafe fn write(words: &'a [u64]) -> Self {
        Self(Kind::Write { words, memory: PhantomData })
    }

    pub(super) fn map(offset: u64, len_bytes: usize) -> Self {
        Self(Kind::Map { offset, len_bytes })
    }

    pub(super) fn open(name: &'a str) -> Self {
        Self(Kind::Open { name })
    }

    /// How it reaches the device.
    pub fn form(&self) -> CommandForm {
        match self.0 {
            Kind::Ioctl { .. } => CommandForm::Ioctl,
            Kind::Write { .. } => CommandForm::Write,
            Kind::Map { .. } => CommandForm::Map,
            Kind::Open { .. } => CommandForm::Open,
        }
    }

    /// Object and method of an ioctl, by the kernel's numbers (`ib_user_ioctl_cmds.h`).
    pub fn method(&self) -> Option<(u16, u16)> {
        self.ioctl_header().map(|hdr| (hdr.object_id, hdr.method_id))
    }

    /// Number of a command of the write() interface, given to write() or inside an ioctl (`INVOKE_WRITE`), with bit 31
    /// set if it is extended (`enum ib_uverbs_write_cmds`).
    pub fn write_number(&self) -> Option<u32> {
        match self.0 {
            Kind::Ioctl { .. } if self.known_method()?.method == method::INVOKE_WRITE => {
                self.attrs().find(|a| a.attr_id == attr::invoke_write::WRITE_CMD).map(|a| a.data as u32)
            }
            Kind::Write { words, .. } => Some(CmdHdr::read_from_prefix(words.as_bytes()).ok()?.0.command),
            _ => None,
        }
    }

    /// Its name, as `QP.CREATE`, `INVOKE_WRITE REG_MR`, `write REG_MR`, `mmap`, `open`.
    pub fn name(&self) -> String {
        let write_name = |number| match names::write_spec(number) {
            Some(spec) => spec.name.to_owned(),
            None => format!("{number:#x}"),
        };
        match self.0 {
            Kind::Ioctl { .. } => match (self.known_method(), self.write_number(), self.ioctl_header()) {
                (Some(spec), Some(number), _) => format!("{} {}", spec.name, write_name(number)),
                (Some(spec), None, _) => spec.name.to_owned(),
                (None, _, Some(hdr)) => match names::object_name(hdr.object_id) {
                    Some(object) => format!("{object}.{}", hdr.method_id),
                    None => format!("{}.{}", hdr.object_id, hdr.method_id),
                },
                (None, _, None) => "ioctl".to_owned(),
            },
            Kind::Write { .. } => format!("write {}", self.write_number().map_or_else(String::new, write_name)),
            Kind::Map { .. } => "mmap".to_owned(),
            Kind::Open { .. } => "open".to_owned(),
        }
    }

    /// What the device answered, by name, for a command that succeeded. `self` is the command after the call.
    pub(super) fn outputs(&self) -> String {
        let mut out = String::new();
        let written = match self.0 {
            Kind::Ioctl { .. } => self.show_attrs(Side::Outputs, &mut out),
            Kind::Write { words, .. } => show_written(words, &mut out),
            Kind::Map { .. } | Kind::Open { .. } => Ok(()),
        };
        debug_assert!(written.is_ok(), "a String takes everything");
        out
    }

    /// The words of the command itself; empty for `mmap` and `open`.
    pub(super) fn words(&self) -> &'a [u64] {
        match self.0 {
            Kind::Ioctl { words, .. } | Kind::Write { words, .. } => words,
            Kind::Map { .. } | Kind::Open { .. } => &[],
        }
    }

    pub(super) fn ioctl_header(&self) -> Option<IoctlHdr> {
        match self.0 {
            Kind::Ioctl { words, .. } => IoctlHdr::read_from_prefix(words.as_bytes()).ok().map(|(hdr, _)| hdr),
            _ => None,
        }
    }

    /// The attributes of an ioctl, in their order.
    pub(super) fn attrs(&self) -> impl Iterator<Item = Attr> + use<'a> {
        let words = match self.0 {
            Kind::Ioctl { words, .. } => words,
            _ => &[],
        };
        let bytes = words.as_bytes().get(size_of::<IoctlHdr>()..).unwrap_or_default();
        bytes.chunks_exact(size_of::<Attr>()).filter_map(|bytes| Attr::read_from_bytes(bytes).ok())
    }

    pub(super) fn known_method(&self) -> Option<&'static MethodSpec> {
        let hdr = self.ioctl_header()?;
        names::method_spec(Method { object: hdr.object_id, method: hdr.method_id })
    }

    /// The memory that an attribute of the command leads to, if it does.
    pub(super) fn memory(&self, attr: &Attr) -> Option<&'a [u8]> {
        let spec = self.known_method()?.attr(attr.attr_id)?;
        let by_address = match spec.shape {
            Shape::In => usize::from(attr.len) > size_of::<u64>(),
            Shape::Out => true,
            _ => false,
        };
        if !by_address || attr.len == 0 {
            return None;
        }
        // SAFETY: the attribute is one that holds an address, and the maker of the view promised that it is valid for
        // `len` bytes during 'a.
        Some(unsafe { memory_at(attr.data, attr.len.into()) })
    }

    fn show_attrs(&self, side: Side, out: &mut String) -> fmt::Result {
        let Some(spec) = self.known_method() else { return Ok(()) };
        let inner = self.write_number().and_then(names::write_spec);
        for attr in self.attrs() {
            let Some(known) = spec.attr(attr.attr_id) else {
                if side == Side::Inputs {
                    write!(out, " {:#x}=?", attr.attr_id)?;
                }
                continue;
            };
            let is_output = matches!(known.shape, Shape::Out | Shape::NewObject | Shape::NewFd);
            if is_output != (side == Side::Outputs) || attr.attr_id == attr::invoke_write::WRITE_CMD && inner.is_some()
            {
                continue;
            }
            let start = out.len();
            write!(out, " {}=", known.name.to_ascii_lowercase())?;
            let inline = attr.data.to_ne_bytes();
            let bytes = self.memory(&attr).unwrap_or(&inline[..usize::from(attr.len).min(inline.len())]);
            match (known.shape, &inner, attr.attr_id) {
                (Shape::Fd | Shape::NewFd, ..) => write!(out, "fd {}", attr.data as i64)?,
                (Shape::Object | Shape::NewObject | Shape::Const, ..) => write!(out, "{}", attr.data)?,
                // A structure's fields bring their own names.
                (_, Some(inner), attr::invoke_write::CORE_IN) => {
                    out.truncate(start);
                    show_fields(inner.show_request, bytes, out)?;
                }
                (_, Some(inner), attr::invoke_write::CORE_OUT) => {
                    out.truncate(start);
                    show_fields(inner.show_response, bytes, out)?;
                }
                (_, _, id) => {
                    let mut value = String::new();
                    names::show_attr(spec.method, id)(bytes, &mut value)?;
                    match value.is_empty() {
                        true => out.truncate(start),
                        false => out.push_str(&names::braced(&value)),
                    }
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Command<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.name();
        match self.0 {
            Kind::Ioctl { .. } => self.show_attrs(Side::Inputs, &mut text)?,
            Kind::Write { words, .. } => {
                if let Some(parts) = WriteParts::of(words) {
                    show_fields(parts.spec.show_request, parts.request, &mut text)?;
                    if parts.driver_request.iter().any(|byte| *byte != 0) {
                        text.push_str(" uhw_in=");
                        names::show_plain(parts.driver_request, &mut text)?;
                    }
                }
            }
            Kind::Map { offset, len_bytes } => write!(text, " offset={offset:#x} bytes={len_bytes}")?,
            Kind::Open { name } => write!(text, " {}", name.escape_debug())?,
        }
        f.write_str(&text)
    }
}

impl fmt::Debug for Command<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Command({self})")
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Inputs,
    Outputs,
}

/// A command given to write(), cut into its parts.
pub(super) struct WriteParts<'a> {
    pub spec: WriteSpec,
    pub request: &'a [u8],
    pub driver_request: &'a [u8],
    /// Address of the response; 0 for none.
    pub response: u64,
    pub response_bytes: usize,
    /// Whether the response's address lies after the header.
    pub has_response: bool,
}

impl<'a> WriteParts<'a> {
    /// `None` for a command that this library does not know, or that is too short.
    pub fn of(words: &'a [u64]) -> Option<Self> {
        let bytes = words.as_bytes();
        let (hdr, body) = CmdHdr::read_from_prefix(bytes).ok()?;
        let spec = names::write_spec(hdr.command)?;
        if hdr.command & EXTENDED != 0 {
            let (ex, body) = ExCmdHdr::read_from_prefix(body).ok()?;
            let (request, driver_request) = body.split_at_checked(usize::from(hdr.in_words) * 8)?;
            let response_bytes = usize::from(hdr.out_words + ex.provider_out_words) * 8;
            let response = ex.response;
            return Some(Self { spec, request, driver_request, response, response_bytes, has_response: true });
        }
        let (request, driver_request) = body.split_at_checked(spec.request_bytes)?;
        let has_response = spec.response_bytes != 0;
        let response = match has_response {
            true => u64::read_from_prefix(request).ok()?.0,
            false => 0,
        };
        Some(Self {
            spec,
            request,
            driver_request,
            response,
            response_bytes: usize::from(hdr.out_words) * 4,
            has_response,
        })
    }
}

fn show_written(words: &[u64], out: &mut String) -> fmt::Result {
    let Some(parts) = WriteParts::of(words) else { return Ok(()) };
    if parts.response == 0 || parts.response_bytes == 0 {
        return Ok(());
    }
    // SAFETY: it is the response's address, which the maker of the view promised to be valid for the length given in
    // the command; the slice is used within this function.
    let response = unsafe { memory_at(parts.response, parts.response_bytes) };
    let (core, driver) = response.split_at(parts.spec.response_bytes.min(response.len()));
    show_fields(parts.spec.show_response, core, out)?;
    if !driver.is_empty() {
        out.push_str(" uhw_out=");
        names::show_plain(driver, out)?;
    }
    Ok(())
}

/// Writes a structure's fields after a space, if any are shown.
fn show_fields(show: Show, bytes: &[u8], out: &mut String) -> fmt::Result {
    let start = out.len();
    out.push(' ');
    show(bytes, out)?;
    if out.len() == start + 1 {
        out.truncate(start);
    }
    Ok(())
}

/// # Safety
///
/// `address` is valid for reads of `len_bytes` bytes, initialised and written by nobody, during `'a`.
unsafe fn memory_at<'a>(address: u64, len_bytes: usize) -> &'a [u8] {
    // SAFETY: the caller's promise; the address was exposed when the command was built.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address as usize), len_bytes) }
}
