//! The directory that keeps what was fetched, between runs and shared by them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Names the temporary directories that an interrupted run may leave.
const UNFINISHED: &str = "unfinished-";

/// The cache, which exists.
pub struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// Opens the caller's cache, creating it where there is none.
    pub fn open() -> Result<Cache> {
        let dir =
            location(|name| std::env::var_os(name).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty()))?;
        fs::create_dir_all(&dir).with_context(|| {
            format!("cannot create the cache directory {} (IRONVERBS_VM_CACHE names another)", dir.display())
        })?;
        // The guest finds the modules by this path, so it must be one from the root.
        let dir = dir.canonicalize().with_context(|| format!("cannot resolve {}", dir.display()))?;
        Ok(Cache { dir })
    }

    /// Whether the entry `name` is there.
    pub fn has(&self, name: &str) -> bool {
        self.dir.join(name).exists()
    }

    /// The entry `name`, made by `make` in an empty directory if it is not there yet.
    ///
    /// An entry appears whole or not at all. Of several runs that want it at once one makes it, and the others wait.
    pub fn entry(&self, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let entry = self.dir.join(name);
        if entry.exists() {
            return Ok(entry);
        }
        let _lock = self.lock()?;
        if entry.exists() {
            return Ok(entry);
        }
        self.remove_unfinished();
        let unfinished = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .tempdir_in(&self.dir)
            .with_context(|| format!("cannot create a directory in {}", self.dir.display()))?;
        make(unfinished.path())?;
        let unfinished = unfinished.keep();
        // A user the command runs as must get at the modules, too.
        fs::set_permissions(&unfinished, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        fs::rename(&unfinished, &entry).with_context(|| format!("cannot create {}", entry.display()))?;
        Ok(entry)
    }

    /// Holds off every other run that would change the cache, or install packages, until the file is dropped.
    pub fn lock(&self) -> Result<File> {
        let path = self.dir.join("lock");
        let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(file)
    }

    /// Under the lock nobody is at work in these.
    fn remove_unfinished(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn location(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    if let Some(dir) = variable("IRONVERBS_VM_CACHE") {
        return Ok(dir);
    }
    if let Some(dir) = variable("XDG_CACHE_HOME") {
        return Ok(dir.join("ironverbs-vm"));
    }
    match variable("HOME") {
        Some(home) => Ok(home.join(".cache/ironverbs-vm")),
        None => bail!("no place for the cache: set IRONVERBS_VM_CACHE, XDG_CACHE_HOME or HOME"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn located(variables: &[(&str, &str)]) -> Option<PathBuf> {
        location(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into())).ok()
    }

    #[test]
    fn the_own_variable_wins_over_xdg_and_home() {
        let all = [("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("IRONVERBS_VM_CACHE", "/v")];
        assert_eq!(located(&all), Some("/v".into()));
        assert_eq!(located(&all[..2]), Some("/x/ironverbs-vm".into()));
        assert_eq!(located(&all[..1]), Some("/h/.cache/ironverbs-vm".into()));
        assert_eq!(located(&[]), None);
    }

    #[test]
    fn one_of_many_makes_an_entry() {
        let dir = tempfile::tempdir().unwrap();
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let cache = Cache { dir: dir.path().to_owned() };
                    let entry = cache.entry("kernel", |dir| {
                        made.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        Ok(fs::write(dir.join("vmlinux"), "x")?)
                    });
                    assert_eq!(fs::read(entry.unwrap().join("vmlinux")).unwrap(), b"x");
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }

    #[test]
    fn a_failed_entry_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache { dir: dir.path().to_owned() };
        assert!(cache.entry("kernel", |_| bail!("no")).is_err());
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["lock"]);
    }
}
