//! How a command is written, and its response taken.
//!
//! # Safety argument
//!
//! A [`Command`] names no memory but its response, which lives on the stack until the call has returned; SET_OPTION names the
//! value besides, which is borrowed for as long.
#![allow(unsafe_code)]

use super::abi::{CmdHdr, Command, SetOption, command};
use super::sys::CmFile;
use crate::uverbs::errno::Errno;
use zerocopy::{FromZeros, Immutable, IntoBytes};

/// A request as the kernel takes it.
#[derive(IntoBytes, Immutable)]
#[repr(C, packed)]
struct Framed<C> {
    header: CmdHdr,
    request: C,
}

/// Sends a command and takes its response.
pub fn send<C: Command>(file: &dyn CmFile, request: C) -> Result<C::Response, Errno> {
    send_over(file, request, C::Response::new_zeroed())
}

/// Sends a command and takes its response, written over `response`: an older kernel may leave the end as it is.
pub fn send_over<C: Command>(
    file: &dyn CmFile,
    mut request: C,
    mut response: C::Response,
) -> Result<C::Response, Errno> {
    let out_bytes = size_of::<C::Response>();
    if out_bytes != 0 {
        request.respond_to(response.as_mut_bytes().as_mut_ptr().expose_provenance() as u64);
    }
    // SAFETY: the command names `response` with its own length and nothing else.
    unsafe { write(file, C::NUMBER, request, out_bytes) }?;
    Ok(response)
}

/// Sets an option of the id `id`.
pub fn set_option(file: &dyn CmFile, id: u32, level: u32, optname: u32, value: &[u8]) -> Result<(), Errno> {
    let optval = value.as_ptr().expose_provenance() as u64;
    let request = SetOption { optval, id, level, optname, optlen: value.len() as u32 };
    // SAFETY: the command names `value` with its own length, and the kernel only reads it.
    unsafe { write(file, command::SET_OPTION, request, 0) }
}

/// # Safety
///
/// Addresses in `request` obey the caller's part of [`CmFile`].
unsafe fn write<C: IntoBytes + Immutable>(
    file: &dyn CmFile,
    cmd: u32,
    request: C,
    out_bytes: usize,
) -> Result<(), Errno> {
    let header = CmdHdr { cmd, in_bytes: size_of::<C>() as u16, out_bytes: out_bytes as u16 };
    let command = Framed { header, request };
    // SAFETY: the header gives the length; the caller answers for the addresses.
    unsafe { file.write(command.as_bytes()) }
}
