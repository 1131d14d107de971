//! Filesystems that can share the content of files, and others.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_plugin_sdk::VolumeSnapshotter as _;

use crate::listing::{self, assert_same};
use crate::place::Place;
use crate::sample;

/// Something mounted; unmounted when this is dropped.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    pub(crate) fn tmpfs(at: &Path, size: &str) -> Self {
        run("mount", &["-t", "tmpfs", "-o", &format!("size={size},mode=0755"), "tmpfs"], at);
        Self(at.to_owned())
    }

    pub(crate) fn resize(&self, size: &str) {
        run("mount", &["-o", &format!("remount,size={size}")], &self.0);
    }

    /// A filesystem in a file; none if there is no program that makes it.
    fn made_by(program: &str, arguments: &[&str], folder: &Path, at: &Path) -> Option<Self> {
        let image = folder.join("image");
        File::create(&image).unwrap().set_len(400 * 1024 * 1024).unwrap();
        match Command::new(program).args(arguments).arg(&image).output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            made => assert!(made.as_ref().unwrap().status.success(), "{made:?}"),
        }
        run("mount", &["-o", "loop", image.to_str().unwrap()], at);
        Some(Self(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily: the plugin may still have something open.
        run("umount", &["--lazy"], &self.0);
    }
}

fn run(program: &str, arguments: &[&str], last: &Path) {
    let output = Command::new(program).args(arguments).arg(last).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// A root on a filesystem of its own, with the settings for it.
fn root_on(program: &str, arguments: &[&str]) -> Option<(Mounted, tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap().join("root");
    fs::create_dir(&root).unwrap();
    let Some(mounted) = Mounted::made_by(program, arguments, folder.path(), &root) else {
        eprintln!("SKIPPED: {program} is not installed, so this filesystem is not tried");
        return None;
    };
    Some((mounted, folder, root))
}

async fn place_on(root: &Path) -> Place {
    Place::with(&[
        ("roots", root.to_str().unwrap()),
        ("stateDir", &format!("{}/.bowline-s", root.display())),
    ])
    .await
}

/// Clones a volume, and tells how.
async fn survives(place: &Place, volume: &Path) -> String {
    let before = listing::of(volume);
    let snapshot = place.snapshot_of(volume, "").await.unwrap();
    let method = place.record_of(&snapshot)["cloned"]["method"].as_str().unwrap().to_owned();
    fs::write(volume.join("file"), "changed afterwards").unwrap();
    assert_same(&listing::of(&place.clone_of(&snapshot)), &before);
    let of_clone = place.restore(&snapshot).await.unwrap();
    assert_same(&listing::of(&of_clone), &before);
    place.plugin.upload_snapshot(&snapshot).await.unwrap();
    let made = place.restore(&snapshot).await.unwrap();
    assert_same(&listing::of(&made), &before);
    place.plugin.delete_snapshot(&snapshot).await.unwrap();
    assert_eq!(listing::names(&place.state()), [""; 0]);
    method
}

#[tokio::test]
async fn files_of_xfs_are_shared() {
    let Some((_mounted, _folder, root)) = root_on("mkfs.xfs", &["-q", "-m", "reflink=1"]) else {
        return;
    };
    let place = place_on(&root).await;
    let volume = root.join("vol");
    sample::make(&volume);
    assert_eq!(survives(&place, &volume).await, "reflink");
}

#[tokio::test]
async fn files_of_btrfs_are_shared_and_subvolumes_are_snapshotted_whole() {
    let Some((_mounted, _folder, root)) = root_on("mkfs.btrfs", &["-q"]) else { return };
    let place = place_on(&root).await;
    let volume = root.join("folder");
    sample::make(&volume);
    assert_eq!(survives(&place, &volume).await, "reflink");

    let volume = root.join("subvolume");
    run("btrfs", &["-q", "subvolume", "create"], &volume);
    sample::make(&volume);
    assert_eq!(survives(&place, &volume).await, "subvolume");

    // A snapshot would leave the inner one out.
    let inner = volume.join("inner");
    run("btrfs", &["-q", "subvolume", "create"], &inner);
    fs::write(inner.join("file"), "in the inner one").unwrap();
    assert_eq!(survives(&place, &volume).await, "reflink");
}

#[tokio::test]
async fn where_content_cannot_be_shared_it_is_copied() {
    let Some((_mounted, _folder, root)) = root_on("mkfs.ext4", &["-q", "-b", "4096"]) else {
        return;
    };
    let place = place_on(&root).await;
    let volume = root.join("vol");
    sample::make(&volume);
    assert_eq!(survives(&place, &volume).await, "copy");
}
