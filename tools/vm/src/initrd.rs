//! The initial RAM disk: busybox, the modules that reach the host's root, and the job.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use cpio::newc;

use crate::args::{Device, Seat};
use crate::cache::Cache;
use crate::job::Job;
use crate::kernel::Kernel;
use crate::modules::{self, Modules};
use crate::packages;

/// What reaches the host's root. In the order in which the guest inserts them, each after those it needs.
const FOR_ROOT: &[&str] = &["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"];
/// What the devices are made of. rxe creates no link before there is a crc32, with which it computes its ICRC.
const FOR_RXE: &[&str] = &["crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm"];

/// The driver of softcx. It finds the adapters when it is inserted.
const FOR_SOFTCX: &[&str] = &["ib_uverbs", "rdma_ucm", "mlx5_ib"];

/// The applets of busybox that `guest/init.sh` calls.
const APPLETS: &[&str] = &[
    "cat", "chmod", "chown", "chroot", "cp", "hostname", "insmod", "ip", "ln", "mkdir", "mkfifo", "mount", "poweroff",
    "setsid", "sh", "sync", "tac", "umount", "uname", "usleep",
];

const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;
const PLAIN: u32 = 0o100_644;
const LINK: u32 = 0o120_777;

/// Writes the RAM disk to a file that has no name, so that nothing of it outlives this run.
pub fn build(cache: &Cache, kernel: &Kernel, job: &Job) -> Result<File> {
    let mut disk = Archive::new();
    for dir in ["bin", "proc", "sys", "dev", "mnt", "mnt/host", "mnt/layer", "mnt/root", "job", "modules"] {
        disk.add(dir, DIRECTORY, b"")?;
    }
    disk.add("init", EXECUTABLE, include_bytes!("guest/init.sh"))?;
    disk.add("bin/modprobe", EXECUTABLE, include_bytes!("guest/modprobe.sh"))?;
    let busybox = busybox(cache)?;
    disk.add(
        "bin/busybox",
        EXECUTABLE,
        &fs::read(&busybox).with_context(|| format!("cannot read {}", busybox.display()))?,
    )?;
    for applet in APPLETS {
        disk.add(&format!("bin/{applet}"), LINK, b"busybox")?;
    }

    let mut early = String::new();
    let link: &[_] = if job.seat == Seat::Alone { &[] } else { &["virtio_net"] };
    let wanted = [FOR_ROOT, link, &for_device(job.device)].concat();
    for file in Modules::read(&kernel.modules)?.in_order(&wanted) {
        let name = format!("modules/{}.ko", modules::name_of(&file.to_string_lossy()));
        disk.add(&name, PLAIN, &modules::contents(&file)?)?;
        early += &format!("/{name}\n");
    }
    disk.add("job/early", PLAIN, early.as_bytes())?;
    for (name, contents) in &job.files {
        disk.add(&format!("job/{name}"), PLAIN, contents)?;
    }

    let mut file = tempfile::tempfile().context("cannot create a temporary file")?;
    file.write_all(&disk.finish()?)?;
    file.rewind()?;
    Ok(file)
}

/// The modules inserted at once for a device, which is faster than to have the guest look for them.
fn for_device(device: Device) -> Vec<&'static str> {
    match device {
        Device::None => Vec::new(),
        Device::Rxe => [FOR_RXE, &["dummy"]].concat(),
        Device::RxePair => [FOR_RXE, &["veth"]].concat(),
        Device::Softcx(_) => FOR_SOFTCX.to_vec(),
    }
}

/// A statically linked busybox: this machine's, or the one of Debian's package in the cache.
fn busybox(cache: &Cache) -> Result<PathBuf> {
    if let Some(path) = packages::find("busybox")
        && fs::read(&path).is_ok_and(|elf| is_static(&elf))
    {
        return Ok(path);
    }
    let dir = cache.entry("busybox", |dir| packages::unpack("busybox-static", dir))?;
    let candidates = [dir.join("bin/busybox"), dir.join("usr/bin/busybox")];
    candidates.into_iter().find(|path| path.is_file()).with_context(|| format!("no busybox in {}", dir.display()))
}

/// Whether a 64-bit ELF file runs without a dynamic linker: it has no program header of type PT_INTERP.
fn is_static(elf: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let u16_at = |at: usize| elf.get(at..at + 2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]) as usize);
    let u32_at =
        |at: usize| elf.get(at..at + 4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return false;
    }
    // e_phoff, e_phentsize and e_phnum of Elf64_Ehdr (elf.h). Programs keep their headers in the first 4 GiB.
    let (Some(start), Some(size), Some(count)) = (u32_at(0x20), u16_at(0x36), u16_at(0x38)) else { return false };
    (0..count).all(|index| u32_at(start as usize + index * size).is_some_and(|kind| kind != PT_INTERP))
}

/// A cpio archive in the making, in the format that the kernel reads ("newc").
struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    fn new() -> Archive {
        Archive { bytes: Vec::new(), inode: 0 }
    }

    fn add(&mut self, name: &str, mode: u32, contents: &[u8]) -> Result<()> {
        self.inode += 1;
        let entry = newc::Builder::new(name).ino(self.inode).mode(mode).nlink(1);
        let size = u32::try_from(contents.len()).with_context(|| format!("{name} is too long for a cpio archive"))?;
        let mut writer = entry.write(&mut self.bytes, size);
        writer.write_all(contents)?;
        writer.finish()?;
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<u8>> {
        newc::trailer(&mut self.bytes)?;
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn the_archive_reads_back() {
        let mut archive = Archive::new();
        archive.add("bin", DIRECTORY, b"").unwrap();
        archive.add("bin/sh", LINK, b"busybox").unwrap();
        archive.add("odd", PLAIN, b"12345").unwrap();
        let mut input = Cursor::new(archive.finish().unwrap());
        let mut seen = Vec::new();
        loop {
            let mut reader = newc::Reader::new(input).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut contents = String::new();
            std::io::Read::read_to_string(&mut reader, &mut contents).unwrap();
            seen.push((name, mode, contents));
            input = reader.finish().unwrap();
        }
        let expected = [("bin", DIRECTORY, ""), ("bin/sh", LINK, "busybox"), ("odd", PLAIN, "12345")];
        assert_eq!(seen, expected.map(|(name, mode, contents)| (name.to_owned(), mode, contents.to_owned())));
    }

    #[test]
    fn every_applet_the_script_calls_is_linked() {
        let script = include_str!("guest/init.sh");
        for applet in APPLETS {
            assert!(script.contains(applet), "{applet} is linked but not called");
        }
    }

    #[test]
    fn a_program_with_an_interpreter_is_not_static() {
        let mut elf = vec![0; 64 + 2 * 56];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (elf[0x20], elf[0x36], elf[0x38]) = (64, 56, 2);
        assert!(is_static(&elf));
        elf[64 + 56] = 3;
        assert!(!is_static(&elf));
        assert!(!is_static(b"#!/bin/sh"));
        assert!(!is_static(&elf[..70]));
    }
}
