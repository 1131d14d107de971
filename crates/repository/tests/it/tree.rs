//! Trees of files: how tests make and compare them.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use bowline_repository::Repository;
use bowline_repository::directory::{DirectoryEntry, EntryKind};

/// What a file, directory or link is, without where it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Node {
    kind: &'static str,
    permissions: Option<u32>,
    owner: (u32, u32),
    /// Time of the last change in nanoseconds since 1970.
    modified: Option<i128>,
    /// Content of a file, target of a link.
    data: Vec<u8>,
}

/// Nodes by path.
pub(crate) type Tree = BTreeMap<String, Node>;

/// Bytes that do not compress, the same each time.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Makes a tree with everything that a repository of Velero can store.
pub(crate) fn make(root: &Path) {
    let write = |path: &str, data: &[u8]| std::fs::write(root.join(path), data).unwrap();
    std::fs::create_dir_all(root.join("folder/deeper/deepest")).unwrap();
    std::fs::create_dir(root.join("empty")).unwrap();
    std::fs::create_dir(root.join("many")).unwrap();
    write("empty-file", b"");
    write("small", b"hello\n");
    write("text", &b"all work and no play ".repeat(10_000));
    write("zeros", &vec![0; 9 << 20]);
    write("large", &noise(1, 21 << 20));
    write("folder/deeper/deepest/file", b"deep");
    write("name with <&>, \u{fc}ml\u{e4}ut and \u{2028}", b"odd");
    for number in 0..300 {
        write(&format!("many/{number}"), format!("file {number}").as_bytes());
    }
    symlink("small", root.join("link")).unwrap();
    symlink("../nowhere", root.join("folder/broken")).unwrap();
    let set = |path: &str, mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(root.join(path), permissions).unwrap();
    };
    set("small", 0o600);
    set("text", 0o4755);
    set("folder", 0o2770);
    set("empty", 0o1777);
}

/// The tree below a folder on the disk.
pub(crate) fn of_disk(root: &Path) -> Tree {
    let mut tree = Tree::new();
    add_disk(root, "", &mut tree);
    tree
}

fn add_disk(path: &Path, name: &str, tree: &mut Tree) {
    let metadata = path.symlink_metadata().unwrap();
    let (kind, data) = if metadata.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{name}/{}", entry.file_name().to_str().unwrap());
            add_disk(&entry.path(), &name, tree);
        }
        ("directory", Vec::new())
    } else if metadata.is_symlink() {
        ("link", path.read_link().unwrap().into_os_string().into_encoded_bytes())
    } else {
        ("file", std::fs::read(path).unwrap())
    };
    let modified = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
    let node = Node {
        kind,
        // Those of a link mean nothing.
        permissions: (kind != "link").then_some(metadata.mode() & 0o7777),
        owner: (metadata.uid(), metadata.gid()),
        modified: Some(modified),
        data,
    };
    tree.insert(name.to_owned(), node);
}

/// The tree below an entry of a repository.
pub(crate) async fn of_repository(repository: &Repository, root: &DirectoryEntry) -> Tree {
    let mut tree = Tree::new();
    let mut pending = vec![(String::new(), root.clone())];
    while let Some((name, entry)) = pending.pop() {
        let object = entry.object.unwrap();
        let (kind, data) = match &entry.kind {
            EntryKind::Directory => {
                let directory = repository.read_directory(object).await.unwrap();
                pending.extend(
                    directory
                        .entries
                        .into_iter()
                        .map(|inner| (format!("{name}/{}", inner.file_name().unwrap()), inner)),
                );
                ("directory", Vec::new())
            }
            EntryKind::File => {
                let data = repository.read_object(object, 1 << 30).await.unwrap();
                assert_eq!(i64::try_from(data.len()).unwrap(), entry.size, "{name}");
                ("file", data)
            }
            EntryKind::Symlink => ("link", repository.read_object(object, 4096).await.unwrap()),
            EntryKind::Unknown(kind) => panic!("{name} is {kind}"),
        };
        let node = Node {
            kind,
            permissions: (kind != "link").then(|| entry.permissions.unix()),
            owner: (entry.uid, entry.gid),
            modified: entry.modified.map(jiff::Timestamp::as_nanosecond),
            data,
        };
        tree.insert(name, node);
    }
    tree
}

/// The tree without the times that kopia restores otherwise: those of links to the microsecond, those of directories as
/// the latest time of anything in them.
pub(crate) fn with_times_of_files(mut tree: Tree) -> Tree {
    for node in tree.values_mut().filter(|node| node.kind != "file") {
        node.modified = None;
    }
    tree
}

/// Compares trees without printing megabytes.
pub(crate) fn assert_equal(found: &Tree, expected: &Tree) {
    let names = |tree: &Tree| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(expected));
    for (name, node) in expected {
        let other = &found[name];
        assert!(other.data == node.data, "the data of {name:?} differs");
        assert_eq!(
            (other.kind, other.permissions, other.owner, other.modified),
            (node.kind, node.permissions, node.owner, node.modified),
            "{name:?}"
        );
    }
}
