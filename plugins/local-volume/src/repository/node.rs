//! Entries of a tree in the repository's format, which is that of restic.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bowline_plugin_sdk::jiff::Timestamp;
use bowline_plugin_sdk::serde_json::{self, json};
use rustic_core::repofile::{Metadata, Node, NodeType};

use crate::tree::meta::{Kind, Meta};
use crate::tree::xattr::Xattrs;

/// Modes are stored in Go's format: its own type bits, and three bits at other places than in Unix.
const GO_DIR: u32 = 1 << 31;
const GO_SYMLINK: u32 = 1 << 27;
const GO_DEVICE: u32 = 1 << 26;
const GO_FIFO: u32 = 1 << 25;
const GO_SOCKET: u32 = 1 << 24;
const GO_CHAR: u32 = 1 << 21;
/// The Unix bit, and the Go bit.
const GO_BITS: [(u32, u32); 3] = [(0o4000, 1 << 23), (0o2000, 1 << 22), (0o1000, 1 << 20)];

/// Reasons why an entry cannot be converted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnsupportedEntry {
    #[error("the modification time is out of range")]
    Time,
    #[error(
        "the name of extended attribute {0:?} is not valid UTF-8 and cannot be stored in the \
         repository"
    )]
    Attribute(CString),
    #[error("the entry has no {0} in the repository")]
    MissingField(&'static str),
    #[error("the name, the target or the name of an extended attribute contains a NUL")]
    Nul,
    #[error("the name is not a valid file name")]
    Name,
    #[error("an entry that is not a directory has entries")]
    Subtree,
}

/// An entry of a tree.
pub(super) struct TreeEntry {
    pub name: CString,
    pub meta: Meta,
    pub xattrs: Xattrs,
    /// The target of a symbolic link.
    pub target: Option<CString>,
}

/// Converts an entry to a node.
///
/// Change time and inode number are omitted: they are those of a clone, and differ each time. Only
/// files with several names keep the inode number, which identifies them.
pub(super) fn to_node(entry: &TreeEntry) -> Result<Node, UnsupportedEntry> {
    let TreeEntry { name, meta, xattrs, target } = entry;
    let (kind, bits) = match meta.kind {
        Kind::File => (NodeType::File, 0),
        Kind::Dir => (NodeType::Dir, GO_DIR),
        Kind::Symlink => {
            let target = target.as_ref().map(|target| target.to_bytes()).unwrap_or_default();
            (NodeType::from_link(OsStr::from_bytes(target).as_ref()), GO_SYMLINK)
        }
        Kind::Fifo => (NodeType::Fifo, GO_FIFO),
        Kind::Socket => (NodeType::Socket, GO_SOCKET),
        Kind::Block(device) => (NodeType::Dev { device }, GO_DEVICE),
        Kind::Char(device) => (NodeType::Chardev { device }, GO_DEVICE | GO_CHAR),
    };
    let (seconds, nanoseconds) = meta.modified;
    let nanoseconds = i32::try_from(nanoseconds).map_err(|_| UnsupportedEntry::Time)?;
    let modified = Timestamp::new(seconds, nanoseconds).map_err(|_| UnsupportedEntry::Time)?;
    let link = meta.link_key();
    let mut metadata = Metadata {
        mode: Some(to_go_mode(meta.mode) | bits),
        mtime: Some(modified),
        atime: Some(modified),
        uid: Some(meta.uid),
        gid: Some(meta.gid),
        size: if meta.kind == Kind::Dir { 0 } else { meta.size },
        links: link.map_or(u64::from(meta.kind != Kind::Dir), |_| u64::from(meta.links)),
        device_id: link.map_or(0, |(device, _)| device),
        inode: link.map_or(0, |(_, inode)| inode),
        ..Metadata::default()
    };
    if !xattrs.is_empty() {
        let attribute = |(name, value): &(CString, Vec<u8>)| {
            let name = name.to_str().map_err(|_| UnsupportedEntry::Attribute(name.clone()))?;
            Ok(json!({"name": name, "value": STANDARD.encode(value)}))
        };
        let list: Result<Vec<_>, UnsupportedEntry> = xattrs.iter().map(attribute).collect();
        // The library does not export the type of an attribute, only its serialized form.
        metadata.extended_attributes = serde_json::from_value(list?.into())
            .map_err(|_| UnsupportedEntry::MissingField("attributes"))?;
    }
    Ok(Node::new_node(OsStr::from_bytes(name.to_bytes()), kind, metadata))
}

/// Converts a node to an entry. The node is not trusted: its content is written to our filesystem.
pub(super) fn from_node(node: &Node) -> Result<TreeEntry, UnsupportedEntry> {
    let name = node.name();
    let name = name.as_bytes();
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') {
        return Err(UnsupportedEntry::Name);
    }
    let kind = match &node.node_type {
        NodeType::File => Kind::File,
        NodeType::Dir => Kind::Dir,
        NodeType::Symlink { .. } => Kind::Symlink,
        NodeType::Fifo => Kind::Fifo,
        NodeType::Socket => Kind::Socket,
        NodeType::Dev { device } => Kind::Block(*device),
        NodeType::Chardev { device } => Kind::Char(*device),
    };
    if kind != Kind::Dir && node.subtree.is_some() {
        return Err(UnsupportedEntry::Subtree);
    }
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| UnsupportedEntry::Nul);
    let target = match kind {
        Kind::Symlink => Some(text(node.node_type.to_link().as_os_str().as_bytes())?),
        _ => None,
    };
    let meta = &node.meta;
    let modified = meta.mtime.ok_or(UnsupportedEntry::MissingField("time"))?;
    // Nanoseconds count from the preceding second, also before 1970.
    let nanoseconds = modified.as_nanosecond();
    let (seconds, rest) = (nanoseconds.div_euclid(BILLION), nanoseconds.rem_euclid(BILLION));
    let xattrs: Result<Xattrs, UnsupportedEntry> = meta
        .extended_attributes
        .iter()
        .map(|attribute| {
            Ok((text(attribute.name.as_bytes())?, attribute.value.clone().unwrap_or_default()))
        })
        .collect();
    Ok(TreeEntry {
        name: text(name)?,
        meta: Meta {
            kind,
            mode: from_go_mode(meta.mode.ok_or(UnsupportedEntry::MissingField("mode"))?),
            uid: meta.uid.ok_or(UnsupportedEntry::MissingField("owner"))?,
            gid: meta.gid.ok_or(UnsupportedEntry::MissingField("group"))?,
            modified: (
                i64::try_from(seconds).map_err(|_| UnsupportedEntry::Time)?,
                u32::try_from(rest).map_err(|_| UnsupportedEntry::Time)?,
            ),
            size: meta.size,
            links: u32::try_from(meta.links).unwrap_or(u32::MAX),
            device: meta.device_id,
            inode: meta.inode,
            is_mount: false,
        },
        xattrs: xattrs?,
        target,
    })
}

const BILLION: i128 = 1_000_000_000;

fn to_go_mode(mode: u32) -> u32 {
    let special = GO_BITS.iter().filter(|(unix, _)| mode & unix != 0).map(|(_, go_bit)| go_bit);
    (mode & 0o777) | special.sum::<u32>()
}

fn from_go_mode(mode: u32) -> u32 {
    let special = GO_BITS.iter().filter(|(_, go_bit)| mode & go_bit != 0).map(|(unix, _)| unix);
    (mode & 0o777) | special.sum::<u32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: Kind, name: &[u8]) -> TreeEntry {
        TreeEntry {
            name: CString::new(name).unwrap(),
            meta: Meta {
                kind,
                mode: 0o6755,
                uid: 1000,
                gid: 4_000_000_000,
                modified: (-1, 999_999_999),
                size: 0,
                links: 1,
                device: 0,
                inode: 0,
                is_mount: false,
            },
            xattrs: Vec::new(),
            target: None,
        }
    }

    fn round_trip(entry: &TreeEntry) -> TreeEntry {
        // As the repository does.
        let json = serde_json::to_string(&to_node(entry).unwrap()).unwrap();
        from_node(&serde_json::from_str(&json).unwrap()).unwrap()
    }

    #[test]
    fn entry_round_trips() {
        let kinds = [
            Kind::File,
            Kind::Dir,
            Kind::Fifo,
            Kind::Socket,
            Kind::Block(0x802),
            Kind::Char(0x103),
        ];
        for kind in kinds {
            for name in
                [&b"plain"[..], "\u{1f4a9}ü".as_bytes(), b"new\nline\\\"'", b"no\xffutf8\x80"]
            {
                for mode in [0o0, 0o644, 0o1777, 0o2750, 0o4711, 0o7777] {
                    let mut before = entry(kind, name);
                    before.meta.mode = mode;
                    before.xattrs = vec![
                        (c"user.text".to_owned(), b"value".to_vec()),
                        (c"user.empty".to_owned(), Vec::new()),
                        (c"security.capability".to_owned(), vec![0, 255, 10, 0]),
                    ];
                    let after = round_trip(&before);
                    assert_eq!(after.name, before.name);
                    assert_eq!(after.xattrs, before.xattrs);
                    assert_eq!(after.meta.mode, mode);
                    assert_eq!(after.meta.kind, kind);
                    assert_eq!(after.meta.modified, before.meta.modified);
                    assert_eq!((after.meta.uid, after.meta.gid), (1000, 4_000_000_000));
                }
            }
        }
        for target in [&b"../a b"[..], b"/etc/passwd", b"no\xffutf8", b"new\nline"] {
            let mut before = entry(Kind::Symlink, b"link");
            before.target = Some(CString::new(target).unwrap());
            assert_eq!(round_trip(&before).target, before.target);
        }
    }

    #[test]
    fn only_hard_linked_files_keep_their_inode() {
        let mut file = entry(Kind::File, b"a");
        (file.meta.device, file.meta.inode) = (5, 6);
        let node = to_node(&file).unwrap();
        assert_eq!((node.meta.device_id, node.meta.inode), (0, 0));
        file.meta.links = 2;
        assert_eq!(round_trip(&file).meta.link_key(), Some((5, 6)));
    }

    #[test]
    fn nodes_that_escape_the_tree_are_refused() {
        let node = |name: &str| Node {
            name: name.to_owned(),
            ..to_node(&entry(Kind::File, b"a")).unwrap()
        };
        for name in ["", ".", "..", "/etc/passwd", "a/b", "../a", "a/", "\\x2fetc", "\\x2e\\x2e"] {
            assert_eq!(from_node(&node(name)).map(drop), Err(UnsupportedEntry::Name), "{name}");
        }
        assert_eq!(from_node(&node("a\0b")).map(drop), Err(UnsupportedEntry::Nul));
        assert_eq!(
            from_node(&Node { subtree: Some(rustic_core::TreeId::default()), ..node("a") })
                .map(drop),
            Err(UnsupportedEntry::Subtree)
        );
        let mut bare = node("a");
        bare.meta.uid = None;
        assert_eq!(from_node(&bare).map(drop), Err(UnsupportedEntry::MissingField("owner")));
    }

    #[test]
    fn entry_the_repository_cannot_store_is_an_error() {
        let mut file = entry(Kind::File, b"a");
        file.xattrs = vec![(CString::new(b"user.\xff".as_slice()).unwrap(), Vec::new())];
        assert!(matches!(to_node(&file), Err(UnsupportedEntry::Attribute(_))));
        let mut file = entry(Kind::File, b"a");
        file.meta.modified = (i64::MAX, 0);
        assert!(matches!(to_node(&file), Err(UnsupportedEntry::Time)));
    }
}
