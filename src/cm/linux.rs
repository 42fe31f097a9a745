//! The real file, `/dev/infiniband/rdma_cm`.
//!
//! # Safety argument
//!
//! [`LinuxCmFile`] passes commands to the kernel as they are, and keeps the implementer's part of [`CmFile`] because the
//! kernel does.
#![allow(unsafe_code)]

use super::abi::ABI_VERSION;
use super::error::{Error, Step};
use super::sys::{CmFile, CmSys};
use crate::uverbs::errno::Errno;
use crate::uverbs::explain::of_any_verb;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The connection manager of a Linux host.
///
/// ```no_run
/// # fn f() -> Result<(), ironverbs::rdma_cm::Error> {
/// use ironverbs::sys::{CmSys, LinuxCm};
/// let file = LinuxCm::new().open()?;
/// # drop(file);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct LinuxCm {
    node: PathBuf,
}

impl LinuxCm {
    /// The host's own, `/dev/infiniband/rdma_cm`.
    pub fn new() -> Self {
        Self::at("/dev/infiniband/rdma_cm")
    }

    /// The same file at another place, as where a container has it.
    pub fn at(node: impl Into<PathBuf>) -> Self {
        Self { node: node.into() }
    }
}

impl Default for LinuxCm {
    fn default() -> Self {
        Self::new()
    }
}

impl CmSys for LinuxCm {
    fn open(&self) -> Result<Arc<dyn CmFile>, Error> {
        let node = &self.node;
        let refused = |e: std::io::Error| open_error(node, &e);
        // Looked at before it is opened, because opening another device may set something off.
        if !std::fs::metadata(node).map_err(refused)?.file_type().is_char_device() {
            return Err(Error::NoService { why: format!("{} is no character device", node.display()).into() });
        }
        check_version(Path::new("/sys/class/misc/rdma_cm/abi_version"))?;
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(node);
        Ok(Arc::new(LinuxCmFile { file: file.map_err(refused)? }))
    }
}

/// Where sysfs does not tell, commands will.
fn check_version(path: &Path) -> Result<(), Error> {
    let told = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u32>().ok());
    match told {
        Some(version) if version != ABI_VERSION => {
            let why = format!("it speaks version {version} of its interface, and this library version {ABI_VERSION}");
            Err(Error::NoService { why: why.into() })
        }
        _ => Ok(()),
    }
}

fn open_error(node: &Path, e: &std::io::Error) -> Error {
    let errno = Errno::from_raw(e.raw_os_error().unwrap_or(libc::EIO));
    let node = node.display();
    match errno {
        Errno::ENOENT => Error::NoService {
            why: format!(
                "there is no {node}: load the kernel module (modprobe rdma_ucm), and in a container pass the file in"
            )
            .into(),
        },
        Errno::ENXIO | Errno::ENODEV => Error::NoService {
            why: format!("{node} leads to no driver: the kernel module rdma_ucm is not loaded (modprobe rdma_ucm)")
                .into(),
        },
        Errno::EACCES => Error::kernel(Step::Open, errno).with_hint(format!(
            "{node} is not for this user to read and write; distributions set mode 0666, or the group rdma"
        )),
        Errno::EPERM => {
            Error::kernel(Step::Open, errno).with_hint(format!("the control group of this container forbids {node}"))
        }
        _ => Error::kernel(Step::Open, errno).with_hint(match of_any_verb(errno) {
            // One of those limits.
            Some(limit) => {
                format!("{node}: each connection takes one file, and one more while a task waits for it; {limit}")
            }
            None => node.to_string(),
        }),
    }
}

struct LinuxCmFile {
    file: File,
}

// SAFETY: see the module's safety argument.
unsafe impl CmFile for LinuxCmFile {
    unsafe fn write(&self, command: &[u8]) -> Result<(), Errno> {
        // SAFETY: the buffer is live for the call; what the addresses in it lead to is the caller's part.
        let written = unsafe { libc::write(self.file.as_raw_fd(), command.as_ptr().cast(), command.len()) };
        match usize::try_from(written) {
            Ok(n) if n == command.len() => Ok(()),
            // The kernel takes a command as a whole. This is no connection manager.
            Ok(_) => Err(Errno::EPROTO),
            Err(_) => Err(Errno::last()),
        }
    }

    fn let_wait(&self, wait: bool) -> Result<(), Errno> {
        let flags = if wait { OFlag::empty() } else { OFlag::O_NONBLOCK };
        Ok(fcntl(&self.file, FcntlArg::F_SETFL(flags)).map(drop)?)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(sys: &LinuxCm) -> String {
        sys.open().err().expect("there is no connection manager there").to_string()
    }

    #[test]
    fn says_what_to_do_where_there_is_none() {
        let why = why(&LinuxCm::at("/dev/infiniband/no-such-file"));
        assert!(why.contains("modprobe rdma_ucm"), "{why}");
    }

    #[test]
    fn says_whose_limit_there_is() {
        let text = |errno| open_error(Path::new("/dev/x"), &std::io::Error::from_raw_os_error(errno)).to_string();
        let (own, host) = (text(libc::EMFILE), text(libc::ENFILE));
        let soft = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap().0;
        assert!(own.contains("each connection takes one file, and one more while a task waits"), "{own}");
        assert!(own.contains(&format!("its limit is {soft} (RLIMIT_NOFILE")) && own.contains("ulimit -n"), "{own}");
        assert!(host.contains("each connection takes one file") && host.contains("fs.file-max"), "{host}");
        assert!(text(libc::EIO).ends_with(": /dev/x"));
    }

    #[test]
    fn is_not_any_file() {
        assert!(why(&LinuxCm::at("/etc/passwd")).contains("is no character device"));
    }

    #[test]
    fn another_version_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("abi_version");
        std::fs::write(&path, "5\n").unwrap();
        let why = check_version(&path).unwrap_err().to_string();
        assert!(why.contains("version 5") && why.contains("version 4"), "{why}");
        std::fs::write(&path, "4\n").unwrap();
        check_version(&path).unwrap();
        check_version(Path::new("/no/such/file")).unwrap();
    }
}
