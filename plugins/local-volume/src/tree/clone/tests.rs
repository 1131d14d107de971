use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};

use bowline_plugin_sdk::error_chain;
use tempfile::TempDir;

use super::*;

/// A folder `from` with something in it and an empty folder `to`.
fn source_and_target() -> (TempDir, File, File) {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path();
    fs::create_dir_all(base.join("from/a/b")).unwrap();
    fs::create_dir_all(base.join("to")).unwrap();
    fs::write(base.join("from/a/b/file"), "content").unwrap();
    fs::write(base.join("from/empty"), "").unwrap();
    symlink("/etc/passwd", base.join("from/link")).unwrap();
    let open = |name: &str| File::open(base.join(name)).unwrap();
    let (from, to) = (open("from"), open("to"));
    (folder, from, to)
}

#[test]
fn hard_links_stay_hard_links() {
    let (folder, from, to) = source_and_target();
    let base = folder.path();
    for name in ["from/other", "from/a/other", "from/a/b/other"] {
        fs::hard_link(base.join("from/a/b/file"), base.join(name)).unwrap();
    }
    let cloned =
        clone_tree(from.as_fd(), to.as_fd(), CloneSource::Static, &StopSignal::default()).unwrap();
    assert_eq!((cloned.files, cloned.bytes), (1, 7));
    let inode = |name: &str| fs::metadata(base.join(name)).unwrap().ino();
    let first = inode("to/a/b/file");
    for name in ["to/other", "to/a/other", "to/a/b/other"] {
        assert_eq!(inode(name), first, "{name}");
    }
    assert_ne!(first, inode("from/other"));
    // Folders have their time though links were made in them last.
    for name in ["", "a", "a/b"] {
        let modified = |top: &str| fs::metadata(base.join(top).join(name)).unwrap().modified();
        assert_eq!(modified("from").unwrap(), modified("to").unwrap(), "{name}");
    }
}

#[test]
fn clone_stops_when_cancelled() {
    let (folder, from, to) = source_and_target();
    let stop = StopSignal::default();
    stop.cancel();
    let error = clone_tree(from.as_fd(), to.as_fd(), CloneSource::Live, &stop).unwrap_err();
    assert_eq!(error.to_string(), "canceled");
    assert_eq!(fs::read_dir(folder.path().join("to")).unwrap().count(), 0);
}

#[test]
fn existing_target_is_an_error_naming_it() {
    let (folder, from, to) = source_and_target();
    fs::write(folder.path().join("to/empty"), "").unwrap();
    let error = clone_tree(from.as_fd(), to.as_fd(), CloneSource::Static, &StopSignal::default())
        .unwrap_err();
    assert!(error_chain(&error).contains("cannot create \"empty\": File exists"), "{error}");
}

#[test]
fn changing_tree_is_cloned_without_vanished_entries() {
    let (folder, from, _) = source_and_target();
    let base = folder.path();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                if done.load(Relaxed) {
                    break;
                }
                let name = base.join(format!("from/a/{}", round % 50));
                let _ = fs::remove_file(&name);
                let _ = fs::remove_dir(&name);
                let _ = match round % 4 {
                    0 => fs::write(&name, "x"),
                    1 => fs::create_dir(&name),
                    2 => symlink("/etc/passwd", &name),
                    _ => fs::hard_link(base.join("from/a/b/file"), &name),
                };
            }
        });
        for round in 0..40 {
            let to = base.join(format!("to-{round}"));
            fs::create_dir(&to).unwrap();
            let to = File::open(&to).unwrap();
            let cloned =
                clone_tree(from.as_fd(), to.as_fd(), CloneSource::Live, &StopSignal::default());
            done.store(cloned.is_err() || round == 39, Relaxed);
            cloned.unwrap();
        }
    });
    assert_eq!(fs::read(base.join("to-39/a/b/file")).unwrap(), b"content");
}

#[test]
fn summary_describes_the_clone_method() {
    let cloned = |method, copied| CloneSummary { method, files: 2, copied, bytes: 3 };
    for (cloned, expected) in [
        (cloned(CloneMethod::Subvolume, 0), "cloned as a btrfs snapshot"),
        (cloned(CloneMethod::Reflink, 0), "cloned by copy-on-write: 2 files, 3 bytes"),
        (
            cloned(CloneMethod::Reflink, 1),
            "cloned by copy-on-write: 2 files, 3 bytes; 1 of the files could not be cloned and were \
             copied",
        ),
        (cloned(CloneMethod::Copy, 0), "copied: 2 files, 3 bytes"),
    ] {
        assert_eq!(cloned.describe(), expected);
    }
}
