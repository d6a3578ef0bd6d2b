//! Writes that happen whole or not at all.
//!
//! The content goes to a temporary file beside the target, is flushed to the disk, and takes the
//! target's name by `rename`. A reader sees the old file or the new one, also after a crash. An
//! interrupt removes the temporary file before the process ends. [`StagedFolder`] does the same for a
//! whole folder.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::FileError;

/// Temporary files and folders that exist now. Whoever holds the lock may rename or remove them.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    // A list of paths has no state that a panic could have left half-changed.
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes `path` with what `content` produces, replacing an existing file only once the new content
/// is on the disk. A symbolic link is followed. Missing parent folders are made.
///
/// # Errors
/// [`FileError::NotAFile`] if `path` is a folder, device or pipe; [`FileError::Write`] for anything
/// that the operating system, or `content`, reports. `path` is then what it was before.
pub fn write_atomically(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), FileError> {
    let failed = |source| FileError::Write {
        path: path.to_owned(),
        source,
    };
    let target = match fs::metadata(path) {
        Ok(existing) if !existing.is_file() => {
            return Err(FileError::NotAFile {
                path: path.to_owned(),
            });
        }
        Ok(_) => fs::canonicalize(path).map_err(failed)?,
        Err(_) => path.to_owned(),
    };
    let folder = match target.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder).map_err(failed)?;

    let mut temporary = Temporary::new(folder, &target).map_err(failed)?;
    temporary.fill(content).map_err(failed)?;
    temporary.rename_to(&target).map_err(failed)?;
    // The rename itself lives in the folder.
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(failed)
}

/// A temporary file that is registered in [`UNFINISHED`] for as long as it exists.
struct Temporary {
    file: Option<tempfile::NamedTempFile>,
}

impl Temporary {
    fn new(folder: &Path, target: &Path) -> io::Result<Self> {
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(target.file_name().unwrap_or_default());
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".partial");
        #[cfg(unix)]
        {
            // As for any other new file, the umask decides; the default of `tempfile` is 0o600.
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        // Under the lock, so that an interrupt cannot come between making and registering.
        let mut unfinished = unfinished();
        let file = builder.tempfile_in(folder)?;
        unfinished.push(file.path().to_owned());
        Ok(Self { file: Some(file) })
    }

    fn fill(&mut self, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let mut writer = BufWriter::with_capacity(1 << 20, file.as_file());
        content(&mut writer)?;
        writer.flush()?;
        file.as_file().sync_all()
    }

    fn rename_to(mut self, target: &Path) -> io::Result<()> {
        let mut unfinished = unfinished();
        let Some(file) = self.file.take() else {
            return Ok(());
        };
        unfinished.retain(|path| path != file.path());
        file.persist(target).map_err(|error| error.error)?;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            unfinished().retain(|path| path != file.path());
        }
    }
}

/// A folder that is filled beside its target and takes the target's name at the end.
pub struct StagedFolder {
    folder: Option<tempfile::TempDir>,
    target: PathBuf,
}

impl StagedFolder {
    /// Makes an empty folder beside `target`, and missing parents of it.
    ///
    /// # Errors
    /// [`FileError::Write`]
    pub fn new(target: &Path) -> Result<Self, FileError> {
        let make = || {
            let target = std::path::absolute(target)?;
            let parent = target.parent().unwrap_or(&target);
            fs::create_dir_all(parent)?;
            let mut unfinished = unfinished();
            let folder = tempfile::Builder::new()
                .prefix(".partial-")
                .tempdir_in(parent)?;
            unfinished.push(folder.path().to_owned());
            Ok(Self {
                folder: Some(folder),
                target: target.clone(),
            })
        };
        make().map_err(|source| FileError::Write {
            path: target.to_owned(),
            source,
        })
    }

    /// Where to put things.
    pub fn path(&self) -> &Path {
        match &self.folder {
            Some(folder) => folder.path(),
            None => &self.target,
        }
    }

    /// Takes the target's name, in place of a folder that has it.
    ///
    /// # Errors
    /// [`FileError::Write`]
    pub fn finish(mut self) -> Result<(), FileError> {
        let Some(folder) = self.folder.take() else {
            return Ok(());
        };
        let mut unfinished = unfinished();
        unfinished.retain(|path| path != folder.path());
        let place = || {
            if self.target.is_dir() {
                fs::remove_dir_all(&self.target)?;
            }
            #[cfg(unix)]
            {
                // Temporary folders are for their owner alone; this one no longer is.
                use std::os::unix::fs::PermissionsExt;
                fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
            }
            fs::rename(folder.path(), &self.target)
        };
        place().map_err(|source| FileError::Write {
            path: self.target.clone(),
            source,
        })?;
        // The folder is not temporary any more.
        let _ = folder.keep();
        Ok(())
    }
}

impl Drop for StagedFolder {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take() {
            unfinished().retain(|path| path != folder.path());
        }
    }
}

/// Ends the process with `code` after removing the temporary files of writes in progress. For the
/// interrupt handler: a write that has not renamed its file yet will not do so any more.
pub fn remove_unfinished_and_exit(code: i32) -> ! {
    // Held until the end, so that no other thread can rename or make a file meanwhile.
    let unfinished = unfinished();
    for path in unfinished.iter() {
        // Nothing more can be done about what cannot be removed.
        let _ = if path.is_dir() {
            fs::remove_dir_all(path)
        } else {
            fs::remove_file(path)
        };
    }
    std::process::exit(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn replaces_the_file_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result");
        write_atomically(&path, |out| out.write_all(b"first")).unwrap();
        write_atomically(&path, |out| out.write_all(b"second")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(entries(folder.path()), ["result"]);
    }

    #[test]
    fn a_failure_halfway_keeps_the_old_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result");
        fs::write(&path, "old").unwrap();
        let error = write_atomically(&path, |out| {
            out.write_all(&[0; 4 << 20])?;
            Err(io::Error::other("the disk is full"))
        })
        .unwrap_err();
        assert!(matches!(error, FileError::Write { .. }));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(entries(folder.path()), ["result"]);
    }

    #[test]
    fn a_panic_halfway_keeps_the_old_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result");
        fs::write(&path, "old").unwrap();
        let outcome = std::panic::catch_unwind(|| {
            let _ = write_atomically(&path, |_| panic!("halfway"));
        });
        assert!(outcome.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(entries(folder.path()), ["result"]);
    }

    #[test]
    fn makes_missing_folders() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/result");
        write_atomically(&path, |out| out.write_all(b"x")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"x");
    }

    #[cfg(unix)]
    #[test]
    fn writes_through_a_link_and_never_replaces_a_device() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_atomically(&link, |out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());

        let error = write_atomically(Path::new("/dev/null"), |_| Ok(())).unwrap_err();
        assert!(matches!(error, FileError::NotAFile { .. }), "{error}");
        let error = write_atomically(folder.path(), |_| Ok(())).unwrap_err();
        assert!(matches!(error, FileError::NotAFile { .. }), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn permissions_are_those_of_any_new_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (plain, ours) = (folder.path().join("plain"), folder.path().join("ours"));
        fs::write(&plain, "").unwrap();
        write_atomically(&ours, |_| Ok(())).unwrap();
        let mode = |path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&ours), mode(&plain));
    }

    #[test]
    fn a_staged_folder_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a/bundle");
        for content in ["first", "second"] {
            let staged = StagedFolder::new(&target).unwrap();
            fs::write(staged.path().join("file"), content).unwrap();
            staged.finish().unwrap();
            assert_eq!(fs::read_to_string(target.join("file")).unwrap(), content);
        }
        let staged = StagedFolder::new(&target).unwrap();
        fs::write(staged.path().join("other"), "").unwrap();
        drop(staged);
        assert_eq!(entries(&target), ["file"]);
        assert_eq!(entries(target.parent().unwrap()), ["bundle"]);
    }
}
