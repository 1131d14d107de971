use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};

use bowline_plugin_sdk::one_line;
use tempfile::TempDir;

use super::*;

/// A folder `from` with something in it and an empty folder `to`.
fn place() -> (TempDir, File, File) {
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
fn names_of_one_file_stay_names_of_one_file() {
    let (folder, from, to) = place();
    let base = folder.path();
    for name in ["from/other", "from/a/other", "from/a/b/other"] {
        fs::hard_link(base.join("from/a/b/file"), base.join(name)).unwrap();
    }
    let cloned = tree(from.as_fd(), to.as_fd(), Source::Still, &Stop::default()).unwrap();
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
fn a_clone_stops_when_it_is_told_to() {
    let (folder, from, to) = place();
    let stop = Stop::default();
    stop.cancel();
    let error = tree(from.as_fd(), to.as_fd(), Source::Live, &stop).unwrap_err();
    assert_eq!(error.to_string(), "canceled");
    assert_eq!(fs::read_dir(folder.path().join("to")).unwrap().count(), 0);
}

#[test]
fn what_is_already_there_is_an_error_that_names_it() {
    let (folder, from, to) = place();
    fs::write(folder.path().join("to/empty"), "").unwrap();
    let error = tree(from.as_fd(), to.as_fd(), Source::Still, &Stop::default()).unwrap_err();
    assert!(one_line(&error).contains("cannot create \"empty\": File exists"), "{error}");
}

#[test]
fn a_tree_that_changes_all_the_time_is_cloned_as_far_as_it_is_there() {
    let (folder, from, _) = place();
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
            let cloned = tree(from.as_fd(), to.as_fd(), Source::Live, &Stop::default());
            done.store(cloned.is_err() || round == 39, Relaxed);
            cloned.unwrap();
        }
    });
    assert_eq!(fs::read(base.join("to-39/a/b/file")).unwrap(), b"content");
}

#[test]
fn how_it_was_done_is_told() {
    let cloned = |method, copied| Cloned { method, files: 2, copied, bytes: 3 };
    for (cloned, expected) in [
        (cloned(Method::Subvolume, 0), "cloned as a btrfs snapshot"),
        (cloned(Method::Reflink, 0), "cloned by copy-on-write: 2 files, 3 bytes"),
        (
            cloned(Method::Reflink, 1),
            "cloned by copy-on-write: 2 files, 3 bytes; 1 of the files could not be cloned and were \
             copied",
        ),
        (cloned(Method::Copy, 0), "copied plainly: 2 files, 3 bytes"),
    ] {
        assert_eq!(cloned.describe(), expected);
    }
}
