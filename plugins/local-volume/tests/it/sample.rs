//! A volume with all types of files.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FileType, Mode, XattrFlags, lsetxattr, makedev, mknodat};

/// The sparse file, and how much of it is data.
pub(crate) const SPARSE: &str = "sparse";
const SPARSE_SIZE: u64 = 16 * 1024 * 1024;

/// An access list that gives user 1234 the right to read.
const ACL: [u8; 44] = [
    2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 210, 4, 0, 0, 4, 0, 4, 0, 255, 255,
    255, 255, 16, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];
/// The capability to open ports below 1024.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Makes the folder and all that is in it.
pub(crate) fn fill_volume(volume: &Path) {
    let path = |name: &str| volume.join(name);
    fs::create_dir_all(path("folder/with/folders")).unwrap();
    for empty in ["empty", "folder/empty", "locked", "shared"] {
        fs::create_dir(path(empty)).unwrap();
    }
    fs::write(path("file"), "content").unwrap();
    fs::write(path("no content"), "").unwrap();
    fs::write(path("folder/with/folders/large"), pseudo_random_bytes(3_000_000, 1)).unwrap();
    for name in [
        "\u{1f4a9} ünï\u{301}".as_bytes(),
        b"new\nline and \\ and \" and '",
        b"not \xff utf8 \x80",
        b"-rf *",
        &[b'n'; 255],
    ] {
        fs::write(volume.join(OsStr::from_bytes(name)), name).unwrap();
    }
    for (link, target) in [
        ("to file", OsStr::new("file")),
        ("to nothing", OsStr::new("../../../none")),
        ("to elsewhere", OsStr::new("/etc/passwd")),
        ("to folder", OsStr::new("folder/with")),
        ("to strange", OsStr::from_bytes(b"not \xff utf8\n")),
    ] {
        symlink(target, path(link)).unwrap();
    }
    for name in ["second name", "folder/third name", "folder/with/folders/fourth name"] {
        fs::hard_link(path("file"), path(name)).unwrap();
    }
    let sparse = File::create(path(SPARSE)).unwrap();
    sparse.write_all_at(b"begin", 0).unwrap();
    sparse.write_all_at(&pseudo_random_bytes(10_000, 2), SPARSE_SIZE / 2).unwrap();
    sparse.set_len(SPARSE_SIZE).unwrap();

    mknodat(CWD, path("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let device = makedev(1, 3);
    mknodat(CWD, path("device"), FileType::CharacterDevice, Mode::from_raw_mode(0o600), device)
        .unwrap();
    let folder = volume.join("folder");
    let socket = folder.join("socket");
    UnixListener::bind(&socket).unwrap();

    let set = |name: &str, key: &str, value: &[u8]| {
        lsetxattr(path(name), key, value, XattrFlags::empty()).unwrap();
    };
    set("file", "user.text", b"value");
    set("file", "user.empty", b"");
    set("no content", "user.bytes", &pseudo_random_bytes(3000, 3));
    set("folder", "user.folder", b"yes");
    set("folder/with", "system.posix_acl_default", &ACL);
    set("to file", "trusted.link", b"of a link");
    set("", "user.top", b"of the volume");

    for (name, user, group) in [
        ("file", 1000, 1000),
        ("folder", 1001, 4_000_000_000),
        ("empty", 65534, 65534),
        ("to file", 1002, 1003),
        ("pipe", 1000, 0),
        ("device", 7, 8),
        ("", 999, 998),
    ] {
        std::os::unix::fs::lchown(path(name), Some(user), Some(group)).unwrap();
    }
    chown(path("no content"), Some(5), Some(6)).unwrap();
    set("no content", "security.capability", &CAPABILITY);
    set("second name", "system.posix_acl_access", &ACL);
    for (name, mode) in [
        ("folder/with/folders/large", 0o4755),
        ("no content", 0o2701),
        ("locked", 0o000),
        ("shared", 0o1777),
        ("folder/empty", 0o2770),
        ("pipe", 0o622),
        ("device", 0o666),
        ("folder", 0o510),
        ("", 0o2751),
    ] {
        fs::set_permissions(path(name), Permissions::from_mode(mode)).unwrap();
    }
    // Last, since all above changes times.
    let time = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::new(seconds, 123_456_789);
    for (name, seconds) in [
        ("file", 1_000_000_000),
        ("folder/with", 1),
        ("locked", 4_000_000_000),
        ("", 1_500_000_000),
    ] {
        let open = File::open(path(name)).unwrap();
        open.set_modified(time(seconds)).unwrap();
    }
}

/// Bytes that cannot be compressed, always the same.
pub(crate) fn pseudo_random_bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
