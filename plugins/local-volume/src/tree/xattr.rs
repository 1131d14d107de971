//! Extended attributes, including access control lists and capabilities.
//!
//! No system call takes a folder and a name. So the folder is named by its entry in `/proc`, and
//! the last name is never followed.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::fs::{XattrFlags, lgetxattr, lgetxattr_query, llistxattr, llistxattr_query, lsetxattr};
use rustix::io::{Errno, Result};

/// Names with their values.
pub(crate) type Xattrs = Vec<(CString, Vec<u8>)>;

/// Number of times that a list or a value may grow while it is read.
const MAX_ATTEMPTS: usize = 16;

/// All attributes of an entry. Filesystems without any have none.
pub(crate) fn read(folder: BorrowedFd<'_>, name: &CStr) -> Result<Xattrs> {
    let path = proc_path(folder, name);
    let names = match read_sized(|| llistxattr_query(&path), |buffer| llistxattr(&path, buffer)) {
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        names => names?,
    };
    let mut found = Vec::new();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let value =
            read_sized(|| lgetxattr_query(&path, name), |buffer| lgetxattr(&path, name, buffer));
        match value {
            // Removed since the listing.
            Err(Errno::NODATA) => {}
            value => found.push((CString::new(name).map_err(|_| Errno::INVAL)?, value?)),
        }
    }
    Ok(found)
}

/// Sets attributes of an entry; the name of one that cannot be set is in the error.
pub(crate) fn write(
    folder: BorrowedFd<'_>,
    name: &CStr,
    xattrs: &Xattrs,
) -> std::result::Result<(), (CString, Errno)> {
    if xattrs.is_empty() {
        return Ok(());
    }
    let path = proc_path(folder, name);
    for (key, value) in xattrs {
        lsetxattr(&path, key.as_c_str(), value, XattrFlags::empty())
            .map_err(|errno| (key.clone(), errno))?;
    }
    Ok(())
}

fn proc_path(folder: BorrowedFd<'_>, name: &CStr) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", folder.as_raw_fd()).into_bytes();
    path.extend(name.to_bytes());
    path
}

/// Reads data whose size must be queried first. Both are limited to 64 KiB by the kernel.
fn read_sized(
    query: impl Fn() -> Result<usize>,
    read: impl Fn(&mut [u8]) -> Result<usize>,
) -> Result<Vec<u8>> {
    let mut tries = 0;
    loop {
        tries += 1;
        let size = query()?;
        if size == 0 {
            return Ok(Vec::new());
        }
        let mut buffer = vec![0; size];
        match read(&mut buffer) {
            Err(Errno::RANGE) if tries < MAX_ATTEMPTS => {}
            length => {
                buffer.truncate(length?);
                return Ok(buffer);
            }
        }
    }
}
