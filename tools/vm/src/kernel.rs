//! The kernel to boot: Debian's, unpacked into the cache, or the caller's own.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::args::{Args, Stock};
use crate::cache::Cache;
use crate::modules::{Modules, contents};
use crate::packages::{self, Run};

/// A kernel and its modules.
pub struct Kernel {
    /// What QEMU boots.
    pub image: PathBuf,
    /// The directory with `modules.dep`, a path from the root.
    pub modules: PathBuf,
}

/// Modules that are kept unpacked in the cache, so that no boot spends emulated time on that.
const UNPACKED: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "ib_umad",
    "dummy",
    "veth",
    "sch_netem",
];

/// The kernel these arguments ask for, fetched if it is one of Debian's and not there yet.
pub fn find(cache: &Cache, args: &Args) -> Result<Kernel> {
    match (&args.kernel_image, &args.modules) {
        (Some(image), Some(modules)) => {
            if !image.is_file() {
                bail!("--kernel-image {}: no such file", image.display());
            }
            Ok(Kernel { image: image.clone(), modules: modules_under(modules)? })
        }
        _ => stock(cache, args.kernel),
    }
}

fn stock(cache: &Cache, stock: Stock) -> Result<Kernel> {
    let version = stock.version();
    let name = format!("linux-{version}");
    if !cache.has(&name) {
        packages::ensure(cache, packages::FOR_KERNELS)?;
    }
    let dir = cache.entry(&name, |dir| fetch(version, dir))?;
    Ok(Kernel { image: dir.join("vmlinux"), modules: modules_under(&dir)? })
}

/// `dir` itself if it holds `modules.dep`, or the one directory that does in `dir/lib/modules` or `dir/usr/lib/modules`.
fn modules_under(dir: &Path) -> Result<PathBuf> {
    let roots = [dir.to_owned(), dir.join("lib/modules"), dir.join("usr/lib/modules")];
    let inner = roots[1..].iter().flat_map(|root| fs::read_dir(root).into_iter().flatten().flatten());
    let candidates = std::iter::once(dir.to_owned()).chain(inner.map(|entry| entry.path()));
    let found: Vec<_> = candidates.filter(|path| path.join("modules.dep").is_file()).collect();
    match &found[..] {
        [one] => one.canonicalize().with_context(|| format!("cannot resolve {}", one.display())),
        [] => bail!("no modules.dep in {0}, nor in a directory of {0}/lib/modules (depmod makes it)", dir.display()),
        _ => bail!("several kernels' modules in {}: name one of {found:?}", dir.display()),
    }
}

/// Downloads and unpacks Debian's kernel `version` into `dir`: `vmlinux` and `lib/modules/VERSION`.
fn fetch(version: &str, dir: &Path) -> Result<()> {
    // The general meta package stands for one version only, which depends on the release of Debian.
    let metas = [&format!("linux-image-{version}-amd64"), "linux-image-amd64"];
    let package = packages::behind(&metas, &format!("linux-image-{version}.")).with_context(|| {
        format!(
            "cannot fetch Linux {version}: add a release of Debian that has it to apt's sources, or give a kernel of \
             your own with --kernel-image and --modules"
        )
    })?;
    packages::unpack(&package, dir)?;

    let image = fs::read_dir(dir.join("boot"))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"vmlinuz-")))
        .with_context(|| format!("{package} holds no boot/vmlinuz-*"))?;
    let packed = fs::read(&image)?;
    fs::write(dir.join("vmlinux"), vmlinux(&packed)?)?;
    fs::remove_dir_all(dir.join("boot"))?;

    let root = if dir.join("usr/lib/modules").is_dir() { dir.join("usr") } else { dir.to_owned() };
    let release = fs::read_dir(root.join("lib/modules"))?
        .next()
        .with_context(|| format!("{package} holds no lib/modules"))??
        .file_name();
    let modules = root.join("lib/modules").join(&release);
    let depmod =
        || Command::new(packages::find("depmod").unwrap_or("depmod".into())).arg("-b").arg(&root).arg(&release).run();
    depmod()?;
    for file in Modules::read(&modules)?.in_order(UNPACKED) {
        if file.extension().is_some_and(|extension| extension != "ko") {
            fs::write(file.with_extension(""), contents(&file)?)?;
            fs::remove_file(&file)?;
        }
    }
    depmod()?;
    Ok(())
}

/// Takes the ELF kernel out of a bzImage. QEMU boots it as well, by its PVH entry, and the guest need not unpack it:
/// under emulation that takes seconds.
///
/// Offsets: Documentation/arch/x86/boot.rst, fields setup_sects, header, payload_offset and payload_length.
fn vmlinux(image: &[u8]) -> Result<Vec<u8>> {
    let field = |at: usize| image.get(at..at + 4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()) as usize);
    if image.get(0x202..0x206) != Some(b"HdrS") {
        bail!("the kernel image is no bzImage");
    }
    let setup_sectors = match image[0x1f1] {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let payload = field(0x248).zip(field(0x24c)).and_then(|(offset, length)| {
        let start = (setup_sectors + 1) * 512 + offset;
        // The last four bytes are the unpacked size.
        image.get(start..(start + length).checked_sub(4)?)
    });
    let payload = payload.context("the kernel image is cut short")?;
    let unpacker = match payload {
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "xz",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        [0x1f, 0x8b, ..] => "gzip",
        _ => bail!("the kernel image is packed in a way unknown here: {:02x?}", &payload[..payload.len().min(8)]),
    };
    let elf = unpack(unpacker, payload)?;
    if !elf.starts_with(b"\x7fELF") {
        bail!("the kernel image holds no ELF file");
    }
    Ok(elf)
}

fn unpack(unpacker: &str, packed: &[u8]) -> Result<Vec<u8>> {
    let mut child = Command::new(unpacker)
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {unpacker}"))?;
    let mut input = child.stdin.take().expect("stdin is piped");
    let output = std::thread::scope(|scope| {
        // A failure to write shows in the exit status.
        scope.spawn(move || input.write_all(packed));
        child.wait_with_output()
    })?;
    if !output.status.success() {
        bail!("{unpacker} cannot unpack the kernel image");
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bzImage of one setup sector whose payload is `packed`.
    fn bzimage(packed: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x24c..0x250].copy_from_slice(&(packed.len() as u32 + 4).to_le_bytes());
        image.extend_from_slice(packed);
        image.extend_from_slice(&[0; 4]);
        image
    }

    fn gzip(data: &[u8]) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("data");
        fs::write(&file, data).unwrap();
        Command::new("gzip").arg("-c").arg(file).output().unwrap().stdout
    }

    #[test]
    fn the_elf_file_comes_out_of_a_bzimage() {
        assert_eq!(vmlinux(&bzimage(&gzip(b"\x7fELF and more"))).unwrap(), b"\x7fELF and more");
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        for (image, reason) in [
            (vec![], "no bzImage"),
            (vec![0; 4096], "no bzImage"),
            (bzimage(b"payload")[..1028].to_vec(), "cut short"),
            (bzimage(b"unknown"), "unknown here"),
            (bzimage(&gzip(b"text")), "no ELF"),
        ] {
            let error = vmlinux(&image).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn modules_are_found_in_the_directory_or_under_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        assert!(modules_under(&path).unwrap_err().to_string().contains("no modules.dep"));
        let inner = path.join("lib/modules/6.6.6");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("modules.dep"), "").unwrap();
        assert_eq!(modules_under(&path).unwrap(), inner);
        assert_eq!(modules_under(&inner).unwrap(), inner);
        let other = path.join("lib/modules/6.6.7");
        fs::create_dir_all(&other).unwrap();
        fs::write(other.join("modules.dep"), "").unwrap();
        assert!(modules_under(&path).unwrap_err().to_string().contains("several"));
    }
}
