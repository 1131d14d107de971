//! Writes a snapshot of the repository into an empty folder.
//!
//! The library could do it, but leaves out owners, attributes and times that cannot be set, and goes
//! wherever a name leads. Here any of that is an error.

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustic_core::repofile::Node;
use rustic_core::{IndexedFull, LsOptions, Repository};
use rustix::fs::{AtFlags, linkat};

use super::node::{Entry, from_node};
use super::{Failed, library};
use crate::stop::Stop;
use crate::tree::content::Sparse;
use crate::tree::dir::{Dir, release};
use crate::tree::meta::{Kind, Meta};
use crate::tree::write::Place;
use crate::tree::xattr::Xattrs;
use crate::tree::{Failed as TreeFailed, beneath, join, threads};

/// A file that is to be written.
struct File {
    dir: Arc<Dir>,
    name: CString,
    meta: Meta,
    xattrs: Xattrs,
    node: Node,
}

/// A further name of a file.
struct Link {
    dir: Arc<Dir>,
    name: CString,
    first: PathBuf,
}

/// What the threads share.
struct Work<'a, S> {
    repository: &'a Repository<S>,
    to: BorrowedFd<'a>,
    stop: &'a Stop,
    failed: Mutex<Option<Failed>>,
}

/// Writes a node, which is a folder, with all below it.
pub(super) fn tree<S: IndexedFull + Sync>(
    repository: &Repository<S>,
    top: &Node,
    to: BorrowedFd<'_>,
    stop: &Stop,
) -> Result<(), Failed> {
    let work = Work { repository, to, stop, failed: Mutex::default() };
    let (files, waiting) = sync_channel(2 * threads());
    let waiting = Mutex::new(waiting);
    let walked = std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| work.help(&waiting));
        }
        let walked = work.walk(top, &files);
        // Ends the channel, and by that the threads.
        drop(files);
        walked
    });
    if let Some(failed) = lock(&work.failed).take() {
        return Err(failed);
    }
    for Link { dir, name, first } in walked? {
        work.link(&dir, &name, &first)?;
        release(dir, to)?;
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: IndexedFull> Work<'_, S> {
    fn help(&self, waiting: &Mutex<Receiver<File>>) {
        loop {
            let next = lock(waiting).recv();
            let Ok(file) = next else { return };
            // The rest is taken and left alone, so that nobody waits to hand it over.
            if lock(&self.failed).is_some() {
                continue;
            }
            if let Err(failed) = self.write(file) {
                lock(&self.failed).get_or_insert(failed);
            }
        }
    }

    /// Makes folders and what has no content, and hands out the files.
    fn walk(&self, top: &Node, files: &SyncSender<File>) -> Result<Vec<Link>, Failed> {
        let unfit = |path: &Path| {
            let path = path.to_owned();
            move |source| Failed::Entry { path, source }
        };
        let Entry { meta, xattrs, .. } = from_node(top).map_err(unfit(Path::new("")))?;
        if meta.kind != Kind::Dir || top.subtree.is_none() {
            return Err(TreeFailed::Type { path: PathBuf::from(".") }.into());
        }
        let path = PathBuf::new();
        let mut open = vec![Arc::new(Dir { path, meta, xattrs, parent: None })];
        let mut first_names: HashMap<(u64, u64), PathBuf> = HashMap::new();
        let mut links = Vec::new();
        let listed = self.repository.ls(top, &LsOptions::default());
        for item in listed.map_err(library("read a tree of", self.stop))? {
            let (path, node) = item.map_err(library("read a tree of", self.stop))?;
            if let Some(reason) = self.stop.reason() {
                return Err(Failed::Stopped(reason.to_owned()));
            }
            if lock(&self.failed).is_some() {
                break;
            }
            let entry = from_node(&node).map_err(unfit(&path))?;
            let Entry { name, meta, xattrs, target } = entry;
            let above = path.parent().unwrap_or(Path::new(""));
            while open.len() > 1 && open.last().is_some_and(|dir| dir.path != above) {
                if let Some(done) = open.pop() {
                    release(done, self.to)?;
                }
            }
            let Some(dir) = open.last().filter(|dir| dir.path == above).map(Arc::clone) else {
                return Err(TreeFailed::Type { path }.into());
            };
            if let Some(key) = meta.link_key().filter(|_| meta.kind == Kind::File) {
                if let Some(first) = first_names.get(&key) {
                    links.push(Link { dir, name, first: first.clone() });
                    continue;
                }
                first_names.insert(key, path.clone());
            }
            if meta.kind == Kind::File {
                // Fails only if all threads are gone, which their failure tells.
                if files.send(File { dir, name, meta, xattrs, node }).is_err() {
                    break;
                }
                continue;
            }
            let folder = self.folder(&dir.path)?;
            let place = Place { folder: folder.as_fd(), path: &dir.path, name: &name };
            match (meta.kind, target) {
                (Kind::Dir, _) => {
                    place.dir()?;
                    open.push(Arc::new(Dir { path, meta, xattrs, parent: Some(dir) }));
                }
                (_, Some(target)) => place.symlink(&target, &meta, &xattrs)?,
                (_, None) => place.special(&meta, &xattrs)?,
            }
        }
        while let Some(done) = open.pop() {
            release(done, self.to)?;
        }
        Ok(links)
    }

    fn folder(&self, path: &Path) -> Result<std::os::fd::OwnedFd, Failed> {
        Ok(beneath::folder(self.to, path).map_err(TreeFailed::io("open", path))?)
    }

    fn write(&self, file: File) -> Result<(), Failed> {
        let File { dir, name, meta, xattrs, node } = file;
        let path = join(&dir.path, &name);
        let folder = self.folder(&dir.path)?;
        let place = Place { folder: folder.as_fd(), path: &dir.path, name: &name };
        let target = place.file()?;
        let mut content =
            Content { file: Sparse::new(&target), left: meta.size, stop: self.stop, failed: None };
        let dumped = self.repository.dump(&node, &mut content);
        let Content { file, left, failed, .. } = content;
        if let Some(error) = failed {
            return Err(TreeFailed::io("write", &path)(error).into());
        }
        dumped.map_err(library("read a file of", self.stop))?;
        file.finish().map_err(TreeFailed::io("write", &path))?;
        if left > 0 {
            let short = io::Error::other(format!("{left} bytes of it are not in the repository"));
            return Err(TreeFailed::io("restore", &path)(short).into());
        }
        place.dress(&meta, &xattrs)?;
        drop(folder);
        Ok(release(dir, self.to)?)
    }

    fn link(&self, dir: &Dir, name: &CString, first: &Path) -> Result<(), Failed> {
        let above = first.parent().unwrap_or(Path::new(""));
        let (from, to) = (self.folder(above)?, self.folder(&dir.path)?);
        let first_name = first.file_name().unwrap_or_default();
        linkat(&from, first_name, &to, name.as_c_str(), AtFlags::empty())
            .map_err(TreeFailed::io("link", &join(&dir.path, name)))?;
        Ok(())
    }
}

/// The content of a file on its way: no longer than it should be, and not when all is to stop.
struct Content<'a> {
    file: Sparse<'a>,
    left: u64,
    stop: &'a Stop,
    /// The library hides what failed.
    failed: Option<io::Error>,
}

impl io::Write for Content<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left.checked_sub(bytes.len() as u64);
        let written = match (self.stop.reason(), left) {
            (Some(reason), _) => Err(io::Error::other(reason.to_owned())),
            (None, None) => Err(io::Error::other("the repository has more of it than it says")),
            (None, Some(left)) => self.file.write_all(bytes).map(|()| self.left = left),
        };
        if let Err(error) = written {
            let told = io::Error::from(error.kind());
            self.failed = Some(error);
            return Err(told);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
