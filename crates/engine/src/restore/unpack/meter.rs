//! Counts what is read of an archive, before and after it is unpacked, and ends it at its limits.
//!
//! Whatever is unpacked counts, kept or not: the entries that are refused, the headers, and what
//! comes after the end.

use std::cell::{Cell, RefCell};
use std::io::{self, Read};

use super::{UnpackError, UnpackLimits};

/// What the headers of one entry may take, its long names among them. They are read into memory.
const HEADERS: u64 = 1 << 20;

/// The counts of one archive.
pub(super) struct Meter {
    limits: UnpackLimits,
    packed: Cell<u64>,
    unpacked: Cell<u64>,
    /// What may be unpacked until the next entry.
    allowed: Cell<u64>,
    is_at_end: Cell<bool>,
    failure: RefCell<Option<UnpackError>>,
}

impl Meter {
    pub(super) fn new(limits: UnpackLimits) -> Self {
        Self {
            limits,
            packed: Cell::new(0),
            unpacked: Cell::new(0),
            allowed: Cell::new(HEADERS),
            is_at_end: Cell::new(false),
            failure: RefCell::new(None),
        }
    }

    /// Lets as much be unpacked as an entry says that it has, and the headers of the next.
    pub(super) fn allow(&self, bytes: u64) {
        self.allowed.set(bytes.saturating_add(HEADERS));
    }

    /// Whether nothing is left to unpack, as the last read has found out.
    pub(super) fn is_at_end(&self) -> bool {
        self.is_at_end.get()
    }

    /// Why the archive cannot be used at all, if it was that which ended it.
    pub(super) fn failure(&self) -> Result<(), UnpackError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    fn fail(&self, failure: UnpackError) -> io::Error {
        let error = io::Error::other(failure.to_string());
        // What comes after the first is its consequence.
        self.failure.borrow_mut().get_or_insert(failure);
        error
    }

    fn count(&self, bytes: u64) -> io::Result<()> {
        let unpacked = self.unpacked.get() + bytes;
        self.unpacked.set(unpacked);
        let UnpackLimits { total, ratio, free_expansion: free, .. } = self.limits;
        let excess = if unpacked > total {
            Some(format!("it holds more than {total} bytes"))
        } else if unpacked > free && unpacked / ratio > self.packed.get() {
            Some(format!("it expands to more than {ratio} times its size"))
        } else {
            None
        };
        if let Some(excess) = excess {
            return Err(self.fail(UnpackError::TooLarge(excess)));
        }
        let Some(allowed) = self.allowed.get().checked_sub(bytes) else {
            let text = format!("its headers are longer than {HEADERS} bytes");
            return Err(io::Error::other(text));
        };
        self.allowed.set(allowed);
        Ok(())
    }
}

/// The archive as it comes.
pub(super) struct PackedReader<'a, R> {
    pub(super) inner: R,
    pub(super) meter: &'a Meter,
}

impl<R: Read> Read for PackedReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.inner.read(buffer) {
            Ok(count) => {
                self.meter.packed.set(self.meter.packed.get() + count as u64);
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => Err(self.meter.fail(UnpackError::Source(error))),
        }
    }
}

/// The archive as it is unpacked.
pub(super) struct UnpackedReader<'a, R> {
    pub(super) inner: R,
    pub(super) meter: &'a Meter,
}

impl<R: Read> Read for UnpackedReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.meter.is_at_end.set(count == 0);
        self.meter.count(count as u64)?;
        Ok(count)
    }
}
