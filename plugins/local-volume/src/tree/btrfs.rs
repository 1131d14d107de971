//! Snapshots of btrfs, which are instantaneous and consistent however large the volume is.

use std::ffi::CStr;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::fs::fstatfs;
use rustix::io::{Errno, Result};
use rustix::ioctl::{self, Setter, Updater, opcode};

use super::meta::Meta;

/// The `statfs` type of btrfs.
const MAGIC: u64 = 0x9123_683E;
/// The inode number of the root folder of every subvolume.
const ROOT_INODE: u64 = 256;
/// The group of its ioctls.
const GROUP: u8 = 0x94;
const NAME_MAX: usize = 4039;

/// `struct btrfs_ioctl_vol_args_v2`
#[repr(C)]
struct SnapshotArguments {
    fd: i64,
    transaction: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; NAME_MAX + 1],
}

/// `struct btrfs_ioctl_get_subvol_rootref_args`
#[repr(C)]
struct References {
    first: u64,
    found: [[u64; 2]; 255],
    count: u8,
    align: [u8; 7],
}

const SNAP_CREATE_V2: ioctl::Opcode = opcode::write::<SnapshotArguments>(GROUP, 23);
const GET_SUBVOL_ROOTREF: ioctl::Opcode = opcode::read_write::<References>(GROUP, 61);

/// Creates a snapshot of a volume as `name` in a folder, if the volume is a whole subvolume. False
/// if it is not, or contains others, which a snapshot would omit.
pub(super) fn snapshot(
    volume: BorrowedFd<'_>,
    folder: BorrowedFd<'_>,
    name: &CStr,
) -> Result<bool> {
    if !is_subvolume(volume)? || holds_subvolumes(volume)? {
        return Ok(false);
    }
    let text = name.to_bytes();
    if text.len() > NAME_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    let mut arguments = SnapshotArguments {
        fd: volume.as_raw_fd().into(),
        transaction: 0,
        flags: 0,
        unused: [0; 4],
        name: [0; NAME_MAX + 1],
    };
    arguments.name[..text.len()].copy_from_slice(text);
    // SAFETY: the structure is the one that this call takes, and lives as long as it.
    #[expect(unsafe_code, reason = "there is no safe call for snapshots of btrfs")]
    unsafe {
        ioctl::ioctl(folder, Setter::<SNAP_CREATE_V2, _>::new(arguments))?;
    }
    Ok(true)
}

fn is_subvolume(volume: BorrowedFd<'_>) -> Result<bool> {
    let magic = u64::try_from(fstatfs(volume)?.f_type).unwrap_or(0);
    Ok(magic == MAGIC && Meta::of(volume)?.is_some_and(|meta| meta.inode == ROOT_INODE))
}

fn holds_subvolumes(volume: BorrowedFd<'_>) -> Result<bool> {
    let mut references = References { first: 0, found: [[0; 2]; 255], count: 0, align: [0; 7] };
    // SAFETY: the structure is the one that this call takes and fills, and lives as long as it.
    #[expect(unsafe_code, reason = "there is no safe call that lists subvolumes of btrfs")]
    let result = unsafe {
        ioctl::ioctl(volume, Updater::<GET_SUBVOL_ROOTREF, References>::new(&mut references))
    };
    match result {
        // More than fits.
        Err(Errno::OVERFLOW) => Ok(true),
        asked => asked.map(|()| references.count > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_size_that_the_kernel_expects() {
        assert_eq!(size_of::<SnapshotArguments>(), 4096);
        assert_eq!(size_of::<References>(), 4096);
    }
}
