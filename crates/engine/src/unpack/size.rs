//! Size of an archive when it is unpacked: counted while it is read, and while it is written.

use super::{ExceededLimit, UnpackLimits};

/// Approximate memory per index entry, without its names.
const INDEX_ENTRY_BYTES: usize = 128;

/// What the items so far need.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UnpackedSize {
    /// Bytes of the archive, uncompressed. A reader counts them as they arrive, and leaves this at 0.
    total: u64,
    /// Bytes kept on disk.
    spool: u64,
    /// Approximate memory for the index.
    index: u64,
}

impl UnpackedSize {
    /// Adds an item with this content, and with a namespace and a name of this length together.
    pub(crate) fn add_item(&mut self, name_bytes: usize, content: &[u8]) {
        self.index += (INDEX_ENTRY_BYTES + name_bytes) as u64;
        self.spool += content.len() as u64;
    }

    /// Adds to the size of the archive.
    pub(crate) fn add_archive_bytes(&mut self, bytes: usize) {
        self.total += bytes as u64;
    }

    /// Bytes kept on disk: the place of the next item.
    pub(super) fn spool(&self) -> u64 {
        self.spool
    }

    /// A limit that the items so far exceed.
    pub(crate) fn exceeded_limit(&self, limits: &UnpackLimits) -> Option<ExceededLimit> {
        if self.index > limits.index {
            Some(ExceededLimit::Index(limits.index))
        } else if self.spool > limits.spool {
            Some(ExceededLimit::Spool(limits.spool))
        } else if self.total > limits.total {
            Some(ExceededLimit::Total(limits.total))
        } else {
            None
        }
    }
}
