//! Writes a snapshot of the repository into an empty folder.
//!
//! The library could do it, but ignores owners, attributes and times that cannot be set, and
//! follows names wherever they lead. Here any of that is an error.

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::Mutex;
use rustic_core::repofile::Node;
use rustic_core::{IndexedFull, LsOptions, Repository};
use rustix::fs::{AtFlags, linkat};

use super::node::{TreeEntry, from_node};
use super::{RepositoryError, library_error};
use crate::stop_signal::StopSignal;
use crate::tree::content::SparseWriter;
use crate::tree::dir::{Dir, finish_if_last};
use crate::tree::meta::{Kind, Meta};
use crate::tree::write::EntryDestination;
use crate::tree::xattr::Xattrs;
use crate::tree::{TreeError as TreeFailed, beneath, join, threads};

/// A file that is to be written.
struct PendingFile {
    dir: Arc<Dir>,
    name: CString,
    meta: Meta,
    xattrs: Xattrs,
    node: Node,
}

/// An additional name of a file.
struct PendingLink {
    dir: Arc<Dir>,
    name: CString,
    first: PathBuf,
}

/// State shared by the threads.
struct RestoreWork<'a, S> {
    repository: &'a Repository<S>,
    to: BorrowedFd<'a>,
    stop: &'a StopSignal,
    failed: Mutex<Option<RepositoryError>>,
}

/// Writes a folder node with everything below it.
pub(super) fn restore_tree<S: IndexedFull + Sync>(
    repository: &Repository<S>,
    top: &Node,
    to: BorrowedFd<'_>,
    stop: &StopSignal,
) -> Result<(), RepositoryError> {
    let work = RestoreWork { repository, to, stop, failed: Mutex::default() };
    let (files, waiting) = sync_channel(2 * threads());
    let waiting = Mutex::new(waiting);
    let walked = std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| work.write_files(&waiting));
        }
        let walked = work.create_entries(top, &files);
        // Closes the channel, which ends the threads.
        drop(files);
        walked
    });
    if let Some(failed) = work.failed.lock().take() {
        return Err(failed);
    }
    for PendingLink { dir, name, first } in walked? {
        work.link(&dir, &name, &first)?;
        finish_if_last(dir, to)?;
    }
    Ok(())
}

impl<S: IndexedFull> RestoreWork<'_, S> {
    fn write_files(&self, waiting: &Mutex<Receiver<PendingFile>>) {
        loop {
            let next = waiting.lock().recv();
            let Ok(file) = next else { return };
            // After a failure the remaining files are received and dropped, so that the sender does
            // not block.
            if self.failed.lock().is_some() {
                continue;
            }
            if let Err(failed) = self.write(file) {
                self.failed.lock().get_or_insert(failed);
            }
        }
    }

    /// Creates folders and entries without content, and sends the files to the threads.
    fn create_entries(
        &self,
        top: &Node,
        files: &SyncSender<PendingFile>,
    ) -> Result<Vec<PendingLink>, RepositoryError> {
        let unfit = |path: &Path| {
            let path = path.to_owned();
            move |source| RepositoryError::Entry { path, source }
        };
        let TreeEntry { meta, xattrs, .. } = from_node(top).map_err(unfit(Path::new("")))?;
        if meta.kind != Kind::Dir || top.subtree.is_none() {
            return Err(TreeFailed::Type { path: PathBuf::from(".") }.into());
        }
        let path = PathBuf::new();
        let mut open = vec![Arc::new(Dir { path, meta, xattrs, parent: None })];
        let mut first_names: HashMap<(u64, u64), PathBuf> = HashMap::new();
        let mut links = Vec::new();
        let listed = self.repository.ls(top, &LsOptions::default());
        for item in listed.map_err(library_error("read a tree of", self.stop))? {
            let (path, node) = item.map_err(library_error("read a tree of", self.stop))?;
            if let Some(reason) = self.stop.reason() {
                return Err(RepositoryError::Stopped(reason.to_owned()));
            }
            if self.failed.lock().is_some() {
                break;
            }
            let entry = from_node(&node).map_err(unfit(&path))?;
            let TreeEntry { name, meta, xattrs, target } = entry;
            let above = path.parent().unwrap_or(Path::new(""));
            while open.len() > 1 && open.last().is_some_and(|dir| dir.path != above) {
                if let Some(done) = open.pop() {
                    finish_if_last(done, self.to)?;
                }
            }
            let Some(dir) = open.last().filter(|dir| dir.path == above).map(Arc::clone) else {
                return Err(TreeFailed::Type { path }.into());
            };
            if let Some(key) = meta.link_key().filter(|_| meta.kind == Kind::File) {
                if let Some(first) = first_names.get(&key) {
                    links.push(PendingLink { dir, name, first: first.clone() });
                    continue;
                }
                first_names.insert(key, path.clone());
            }
            if meta.kind == Kind::File {
                // Fails only if all threads have ended, whose failure is reported.
                if files.send(PendingFile { dir, name, meta, xattrs, node }).is_err() {
                    break;
                }
                continue;
            }
            let folder = self.open_folder(&dir.path)?;
            let destination =
                EntryDestination { folder: folder.as_fd(), path: &dir.path, name: &name };
            match (meta.kind, target) {
                (Kind::Dir, _) => {
                    destination.create_dir()?;
                    open.push(Arc::new(Dir { path, meta, xattrs, parent: Some(dir) }));
                }
                (_, Some(target)) => destination.create_symlink(&target, &meta, &xattrs)?,
                (_, None) => destination.create_special(&meta, &xattrs)?,
            }
        }
        while let Some(done) = open.pop() {
            finish_if_last(done, self.to)?;
        }
        Ok(links)
    }

    fn open_folder(&self, path: &Path) -> Result<std::os::fd::OwnedFd, RepositoryError> {
        Ok(beneath::open_folder(self.to, path).map_err(TreeFailed::io("open", path))?)
    }

    fn write(&self, file: PendingFile) -> Result<(), RepositoryError> {
        let PendingFile { dir, name, meta, xattrs, node } = file;
        let path = join(&dir.path, &name);
        let folder = self.open_folder(&dir.path)?;
        let destination = EntryDestination { folder: folder.as_fd(), path: &dir.path, name: &name };
        let target = destination.create_file()?;
        let mut content = ContentWriter {
            file: SparseWriter::new(&target),
            remaining: meta.size,
            stop: self.stop,
            failed: None,
        };
        let dumped = self.repository.dump(&node, &mut content);
        let ContentWriter { file, remaining, failed, .. } = content;
        if let Some(error) = failed {
            return Err(TreeFailed::io("write", &path)(error).into());
        }
        dumped.map_err(library_error("read a file of", self.stop))?;
        file.finish().map_err(TreeFailed::io("write", &path))?;
        if remaining > 0 {
            let short = io::Error::other(format!(
                "{remaining} bytes of the file are not in the repository"
            ));
            return Err(TreeFailed::io("restore", &path)(short).into());
        }
        destination.set_metadata(&meta, &xattrs)?;
        drop(folder);
        Ok(finish_if_last(dir, self.to)?)
    }

    fn link(&self, dir: &Dir, name: &CString, first: &Path) -> Result<(), RepositoryError> {
        let above = first.parent().unwrap_or(Path::new(""));
        let (from, to) = (self.open_folder(above)?, self.open_folder(&dir.path)?);
        let first_name = first.file_name().unwrap_or_default();
        linkat(&from, first_name, &to, name.as_c_str(), AtFlags::empty())
            .map_err(TreeFailed::io("link", &join(&dir.path, name)))?;
        Ok(())
    }
}

/// Writes the content of a file: no longer than expected, and not after a stop.
struct ContentWriter<'a> {
    file: SparseWriter<'a>,
    remaining: u64,
    stop: &'a StopSignal,
    /// Kept here, since the library hides the error.
    failed: Option<io::Error>,
}

impl io::Write for ContentWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let remaining = self.remaining.checked_sub(bytes.len() as u64);
        let written = match (self.stop.reason(), remaining) {
            (Some(reason), _) => Err(io::Error::other(reason.to_owned())),
            (None, None) => {
                Err(io::Error::other("the repository has more bytes of the file than recorded"))
            }
            (None, Some(remaining)) => {
                self.file.write_all(bytes).map(|()| self.remaining = remaining)
            }
        };
        if let Err(error) = written {
            let visible_error = io::Error::from(error.kind());
            self.failed = Some(error);
            return Err(visible_error);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
