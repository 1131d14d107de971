//! Counts the bytes of an archive, compressed and uncompressed, and stops at the limits.
//!
//! All uncompressed bytes count, kept or not: refused entries, headers, and the data after the end.

use std::cell::{Cell, RefCell};
use std::io::{self, Read};

use super::{ExceededLimit, UnpackError, UnpackLimits};

/// Maximum size of the headers of one entry, including long names. They are read into memory.
const HEADERS: u64 = 1 << 20;

/// Byte counts of one archive.
pub(super) struct Meter {
    limits: UnpackLimits,
    packed: Cell<u64>,
    unpacked: Cell<u64>,
    /// Bytes that may be unpacked until the next entry.
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

    /// Allows the declared size of an entry, and the headers of the next one.
    pub(super) fn allow(&self, bytes: u64) {
        self.allowed.set(bytes.saturating_add(HEADERS));
    }

    /// True if the last read found the end of the data.
    pub(super) fn is_at_end(&self) -> bool {
        self.is_at_end.get()
    }

    /// The failure that ended the archive, if it makes the archive unusable.
    pub(super) fn failure(&self) -> Result<(), UnpackError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    fn fail(&self, failure: UnpackError) -> io::Error {
        let error = io::Error::other(failure.to_string());
        // Later failures are consequences of the first.
        self.failure.borrow_mut().get_or_insert(failure);
        error
    }

    fn count(&self, bytes: u64) -> io::Result<()> {
        let unpacked = self.unpacked.get() + bytes;
        self.unpacked.set(unpacked);
        let UnpackLimits { total, ratio, free_expansion: free, .. } = self.limits;
        let excess = if unpacked > total {
            Some(ExceededLimit::Total(total))
        } else if unpacked > free && unpacked / ratio > self.packed.get() {
            Some(ExceededLimit::Ratio(ratio))
        } else {
            None
        };
        if let Some(excess) = excess {
            return Err(self.fail(UnpackError::TooLarge(excess)));
        }
        let Some(allowed) = self.allowed.get().checked_sub(bytes) else {
            let text = format!("the headers are longer than {HEADERS} bytes");
            return Err(io::Error::other(text));
        };
        self.allowed.set(allowed);
        Ok(())
    }
}

/// The compressed archive.
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

/// The uncompressed archive.
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
