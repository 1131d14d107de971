//! Helpers for tests of backups and restores.

pub(crate) mod backup;
pub(crate) mod csi;
pub(crate) mod objects;
pub(crate) mod restore;
pub(crate) mod restore_csi;
