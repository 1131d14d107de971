//! Helpers that several test files share.

pub(crate) mod csi;
pub(crate) mod metrics;
pub(crate) mod operations;
pub(crate) mod raw_tar;
pub(crate) mod runs;
