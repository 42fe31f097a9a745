//! Kernel modules: in which order they load, and their plain contents.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The modules of one kernel: a directory with depmod's `modules.dep`.
pub struct Modules {
    dir: PathBuf,
    /// File (relative to `dir`) of each module by its name.
    files: HashMap<String, String>,
    /// The files that each file needs first.
    needs: HashMap<String, Vec<String>>,
}

impl Modules {
    /// Reads `dir/modules.dep`.
    pub fn read(dir: &Path) -> Result<Modules> {
        let path = dir.join("modules.dep");
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {} (depmod makes it)", path.display()))?;
        Ok(Modules::parse(dir, &text))
    }

    fn parse(dir: &Path, text: &str) -> Modules {
        let mut files = HashMap::new();
        let mut needs = HashMap::new();
        for (file, dependencies) in text.lines().filter_map(|line| line.split_once(':')) {
            files.insert(name_of(file), file.to_owned());
            needs.insert(file.to_owned(), dependencies.split_whitespace().map(str::to_owned).collect());
        }
        Modules { dir: dir.to_owned(), files, needs }
    }

    /// The files that make `names` work, each after those it needs. A name without a file is taken as built in.
    pub fn in_order(&self, names: &[&str]) -> Vec<PathBuf> {
        let mut order = Vec::new();
        let mut seen = HashSet::new();
        for name in names {
            if let Some(file) = self.files.get(*name) {
                self.visit(file, &mut seen, &mut order);
            }
        }
        order
    }

    fn visit(&self, file: &str, seen: &mut HashSet<String>, order: &mut Vec<PathBuf>) {
        if !seen.insert(file.to_owned()) {
            return;
        }
        for needed in self.needs.get(file).into_iter().flatten() {
            self.visit(needed, seen, order);
        }
        order.push(self.dir.join(file));
    }
}

/// The name modprobe knows a module file by.
pub fn name_of(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.split('.').next().unwrap_or(base).replace('-', "_")
}

/// The module's ELF file, unpacked if need be.
pub fn contents(file: &Path) -> Result<Vec<u8>> {
    let unpacker = match file.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => return fs::read(file).with_context(|| format!("cannot read {}", file.display())),
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => bail!("{} is no kernel module that can be read (.ko, .ko.xz, .ko.zst, .ko.gz)", file.display()),
    };
    let output = Command::new(unpacker)
        .arg("-dc")
        .arg(file)
        .output()
        .with_context(|| format!("cannot run {unpacker}, which {} needs", file.display()))?;
    if !output.status.success() {
        bail!("{unpacker} cannot unpack {}: {}", file.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz
kernel/net/9p/9pnet_virtio.ko.xz: kernel/net/9p/9pnet.ko.xz
kernel/net/9p/9pnet.ko.xz:
kernel/fs/netfs/netfs.ko.xz:
kernel/crypto/crc32-pclmul.ko:
";

    #[test]
    fn a_module_comes_once_and_after_those_it_needs() {
        let modules = Modules::parse(Path::new("/m"), DEP);
        let order: Vec<_> = modules
            .in_order(&["9pnet_virtio", "virtio_pci", "9p", "crc32_pclmul"])
            .iter()
            .map(|file| name_of(file.to_str().unwrap()))
            .collect();
        assert_eq!(order, ["9pnet", "9pnet_virtio", "netfs", "9p", "crc32_pclmul"]);
    }

    #[test]
    fn a_file_that_is_no_module_is_refused() {
        assert!(contents(Path::new("/m/9p.txt")).unwrap_err().to_string().contains("/m/9p.txt"));
    }
}
