//! Filesystems with and without reflinks.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_plugin_sdk::VolumeSnapshotter as _;

use crate::listing::{self, assert_same};
use crate::sample;
use crate::test_env::TestEnv;

/// Something mounted; unmounted when this is dropped.
pub(crate) struct MountedFilesystem(PathBuf);

impl MountedFilesystem {
    pub(crate) fn tmpfs(at: &Path, size: &str) -> Self {
        run("mount", &["-t", "tmpfs", "-o", &format!("size={size},mode=0755"), "tmpfs"], at);
        Self(at.to_owned())
    }

    pub(crate) fn resize(&self, size: &str) {
        run("mount", &["-o", &format!("remount,size={size}")], &self.0);
    }

    /// A filesystem in a file; none if there is no program that makes it.
    fn create_with(program: &str, arguments: &[&str], folder: &Path, at: &Path) -> Option<Self> {
        let image = folder.join("image");
        File::create(&image).unwrap().set_len(400 * 1024 * 1024).unwrap();
        match Command::new(program).args(arguments).arg(&image).output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            output => assert!(output.as_ref().unwrap().status.success(), "{output:?}"),
        }
        run("mount", &["-o", "loop", image.to_str().unwrap()], at);
        Some(Self(at.to_owned()))
    }
}

impl Drop for MountedFilesystem {
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
fn root_on(
    program: &str,
    arguments: &[&str],
) -> Option<(MountedFilesystem, tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap().join("root");
    fs::create_dir(&root).unwrap();
    let Some(mounted) = MountedFilesystem::create_with(program, arguments, folder.path(), &root)
    else {
        eprintln!("SKIPPED: {program} is not installed, so this filesystem is not tried");
        return None;
    };
    Some((mounted, folder, root))
}

async fn test_env_on(root: &Path) -> TestEnv {
    TestEnv::with(&[
        ("roots", root.to_str().unwrap()),
        ("stateDir", &format!("{}/.bowline-s", root.display())),
    ])
    .await
}

/// Clones a volume, and tells how.
async fn assert_volume_survives(env: &TestEnv, volume: &Path) -> String {
    let before = listing::of(volume);
    let snapshot = env.snapshot_of(volume, "").await.unwrap();
    let method = env.record_of(&snapshot)["cloned"]["method"].as_str().unwrap().to_owned();
    fs::write(volume.join("file"), "changed afterwards").unwrap();
    assert_same(&listing::of(&env.clone_of(&snapshot)), &before);
    let of_clone = env.restore(&snapshot).await.unwrap();
    assert_same(&listing::of(&of_clone), &before);
    env.plugin.upload_snapshot(&snapshot).await.unwrap();
    let restored = env.restore(&snapshot).await.unwrap();
    assert_same(&listing::of(&restored), &before);
    env.plugin.delete_snapshot(&snapshot).await.unwrap();
    assert_eq!(listing::names(&env.state()), [""; 0]);
    method
}

#[tokio::test]
async fn xfs_files_are_reflinked() {
    let Some((_mounted, _folder, root)) = root_on("mkfs.xfs", &["-q", "-m", "reflink=1"]) else {
        return;
    };
    let env = test_env_on(&root).await;
    let volume = root.join("vol");
    sample::fill_volume(&volume);
    assert_eq!(assert_volume_survives(&env, &volume).await, "reflink");
}

#[tokio::test]
async fn btrfs_files_are_reflinked_and_subvolumes_are_snapshotted() {
    let Some((_mounted, _folder, root)) = root_on("mkfs.btrfs", &["-q"]) else { return };
    let env = test_env_on(&root).await;
    let volume = root.join("folder");
    sample::fill_volume(&volume);
    assert_eq!(assert_volume_survives(&env, &volume).await, "reflink");

    let volume = root.join("subvolume");
    run("btrfs", &["-q", "subvolume", "create"], &volume);
    sample::fill_volume(&volume);
    assert_eq!(assert_volume_survives(&env, &volume).await, "subvolume");

    // A snapshot would leave the inner one out.
    let inner = volume.join("inner");
    run("btrfs", &["-q", "subvolume", "create"], &inner);
    fs::write(inner.join("file"), "in the inner one").unwrap();
    assert_eq!(assert_volume_survives(&env, &volume).await, "reflink");
}

#[tokio::test]
async fn content_is_copied_without_reflink_support() {
    let Some((_mounted, _folder, root)) = root_on("mkfs.ext4", &["-q", "-b", "4096"]) else {
        return;
    };
    let env = test_env_on(&root).await;
    let volume = root.join("vol");
    sample::fill_volume(&volume);
    assert_eq!(assert_volume_survives(&env, &volume).await, "copy");
}
