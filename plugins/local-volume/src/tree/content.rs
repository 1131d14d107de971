//! Copies the content of a file to another: shared if the filesystem supports it, otherwise copied,
//! with holes preserved.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{SeekFrom, copy_file_range, ftruncate, ioctl_ficlone, seek};
use rustix::io::Errno;

use crate::stop_signal::StopSignal;

/// Bytes copied between two checks of the stop signal.
const COPY_CHUNK: usize = 16 * 1024 * 1024;
/// Bytes copied at a time where the kernel cannot do it alone.
const BUFFER_SIZE: usize = 256 * 1024;
/// Size of the blocks that are omitted where they are zero.
const ZERO_BLOCK: usize = 4096;

/// Outcome of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentOutcome {
    /// Shared with the original until one of them is changed.
    Shared,
    Copied,
    /// No content.
    Empty,
}

/// True while the filesystem may support sharing.
#[derive(Debug)]
pub(crate) struct ReflinkSupport(AtomicBool);

impl Default for ReflinkSupport {
    fn default() -> Self {
        Self(AtomicBool::new(true))
    }
}

/// Reaction to a failure of sharing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReflinkFallback {
    /// Copy this file and all others.
    CopyAll,
    /// Copy this file: it is special in some way.
    CopyThis,
    /// The failure has nothing to do with sharing.
    Fail,
}

fn reflink_fallback(errno: Errno) -> ReflinkFallback {
    match errno {
        Errno::OPNOTSUPP | Errno::XDEV | Errno::NOSYS | Errno::NOTTY => ReflinkFallback::CopyAll,
        Errno::INVAL | Errno::PERM | Errno::TXTBSY | Errno::ACCESS => ReflinkFallback::CopyThis,
        _ => ReflinkFallback::Fail,
    }
}

/// Copies `size` bytes of a file into an empty one.
pub(crate) fn clone_content(
    from: &File,
    to: &File,
    size: u64,
    sharing: &ReflinkSupport,
    stop: &StopSignal,
) -> io::Result<ContentOutcome> {
    if size == 0 {
        return Ok(ContentOutcome::Empty);
    }
    if sharing.0.load(Ordering::Relaxed) {
        match ioctl_ficlone(to, from) {
            Ok(()) => return Ok(ContentOutcome::Shared),
            Err(errno) => match reflink_fallback(errno) {
                ReflinkFallback::CopyAll => sharing.0.store(false, Ordering::Relaxed),
                ReflinkFallback::CopyThis => {}
                ReflinkFallback::Fail => return Err(errno.into()),
            },
        }
    }
    copy_data(from, to, size, stop)?;
    Ok(ContentOutcome::Copied)
}

fn copy_data(from: &File, to: &File, size: u64, stop: &StopSignal) -> io::Result<()> {
    let mut at = 0;
    while at < size {
        let begin = match seek(from, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            // Nothing but a hole to the end.
            Err(Errno::NXIO) => break,
            // The filesystem does not report holes: all is data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(errno.into()),
        };
        let end = seek(from, SeekFrom::Hole(begin)).unwrap_or(size).min(size);
        if begin < end && !copy_range(from, to, begin, end, stop)? {
            break;
        }
        // The file has shrunk, so that the hole is before the data.
        if end <= at {
            break;
        }
        at = end;
    }
    Ok(ftruncate(to, size)?)
}

/// Copies a range; false if the file ends before it.
fn copy_range(from: &File, to: &File, begin: u64, end: u64, stop: &StopSignal) -> io::Result<bool> {
    let mut at = begin;
    while at < end {
        if let Some(reason) = stop.reason() {
            return Err(io::Error::other(reason.to_owned()));
        }
        let most = usize::try_from(end - at).unwrap_or(COPY_CHUNK).min(COPY_CHUNK);
        let (mut read, mut written) = (at, at);
        match copy_file_range(from, Some(&mut read), to, Some(&mut written), most) {
            Ok(0) => return Ok(false),
            Ok(_) => at = read,
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                return copy_through_buffer(from, to, at, end, stop);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(true)
}

fn copy_through_buffer(
    from: &File,
    to: &File,
    begin: u64,
    end: u64,
    stop: &StopSignal,
) -> io::Result<bool> {
    let mut buffer = vec![0; BUFFER_SIZE];
    let mut at = begin;
    while at < end {
        if let Some(reason) = stop.reason() {
            return Err(io::Error::other(reason.to_owned()));
        }
        let most = usize::try_from(end - at).unwrap_or(BUFFER_SIZE).min(BUFFER_SIZE);
        let length = match from.read_at(&mut buffer[..most], at) {
            Ok(0) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            length => length?,
        };
        to.write_all_at(&buffer[..length], at)?;
        at += length as u64;
    }
    Ok(true)
}

/// Writes a file from start to end, omitting blocks of zeros.
pub(crate) struct SparseWriter<'a> {
    file: &'a File,
    at: u64,
}

impl<'a> SparseWriter<'a> {
    pub(crate) fn new(file: &'a File) -> Self {
        Self { file, at: 0 }
    }

    /// Sets the length, which the last write may not have done, and returns it.
    pub(crate) fn finish(self) -> io::Result<u64> {
        ftruncate(self.file, self.at)?;
        Ok(self.at)
    }
}

impl io::Write for SparseWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            // To the end of the block of the file that we are in.
            let in_block = usize::try_from(self.at % ZERO_BLOCK as u64).unwrap_or(0);
            let (block, after) = rest.split_at((ZERO_BLOCK - in_block).min(rest.len()));
            if block.iter().any(|&byte| byte != 0) {
                // As much as follows without a block of zeros, in one go.
                let more = after.chunks(ZERO_BLOCK).take_while(|next| next.iter().any(|&b| b != 0));
                let length = block.len() + more.map(<[u8]>::len).sum::<usize>();
                self.file.write_all_at(&rest[..length], self.at)?;
                self.at += length as u64;
                rest = &rest[length..];
            } else {
                self.at += block.len() as u64;
                rest = after;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
