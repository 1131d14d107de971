//! Kopia reads, checks, continues and maintains what this crate wrote.

use std::path::Path;
use std::sync::Arc;

use bowline_repository::create::create;
use bowline_repository::directory::{Directory, DirectoryEntry, EntryKind, Permissions};
use bowline_repository::snapshot::{Snapshot, SnapshotSource};
use bowline_repository::writer::{Clock, SessionOwner};
use bowline_repository::{ManifestId, Repository, Writer};
use jiff::Timestamp;

use crate::kopia::{Kopia, password};
use crate::tree;

fn clock() -> Clock {
    Arc::new(Timestamp::now)
}

/// Kopia with a repository that this crate made.
async fn kopia_with_our_repository() -> Kopia {
    let kopia = Kopia::new().await;
    let blobs = kopia.blobs().await;
    create(blobs, &password(), SessionOwner::velero(), clock()).await.unwrap();
    kopia.connect().await;
    kopia
}

/// Makes a snapshot of a folder with this crate.
async fn snapshot(repository: &Repository, folder: &Path) -> ManifestId {
    let mut writer = Writer::new(repository, SessionOwner::velero(), clock()).await.unwrap();
    let start_time = Timestamp::now();
    let root = Box::pin(write_entry(&mut writer, folder)).await;
    let snapshot = Snapshot {
        id: None,
        source: SnapshotSource {
            host: "default".to_owned(),
            user_name: "default".to_owned(),
            path: folder.display().to_string(),
        },
        description: "Kopia Uploader".to_owned(),
        start_time,
        end_time: Timestamp::now(),
        stats: bowline_repository::snapshot::SnapshotStats::default(),
        incomplete_reason: String::new(),
        root_entry: Some(root),
        tags: [("tag:snapshot-uploader".to_owned(), "kopia".to_owned())].into(),
        pins: vec!["velero-pin".to_owned()],
    };
    let id = writer.add_snapshot(&snapshot).unwrap();
    writer.flush().await.unwrap();
    id
}

async fn write_entry(writer: &mut Writer<'_>, path: &Path) -> DirectoryEntry {
    use std::os::unix::fs::MetadataExt as _;

    let metadata = path.symlink_metadata().unwrap();
    let nanosecond = i32::try_from(metadata.mtime_nsec()).unwrap();
    let modified = Timestamp::new(metadata.mtime(), nanosecond).unwrap();
    let mut entry = DirectoryEntry {
        name: path.file_name().unwrap().to_str().unwrap().to_owned(),
        permissions: Permissions::from_unix(metadata.mode()),
        modified: Some(modified),
        uid: metadata.uid(),
        gid: metadata.gid(),
        ..DirectoryEntry::default()
    };
    if metadata.is_dir() {
        let mut entries = Vec::new();
        for inner in std::fs::read_dir(path).unwrap() {
            entries.push(Box::pin(write_entry(writer, &inner.unwrap().path())).await);
        }
        let directory = Directory::new(entries, modified);
        entry.kind = EntryKind::Directory;
        entry.object = Some(writer.write_directory(&directory).await.unwrap());
        entry.summary = directory.summary;
    } else if metadata.is_symlink() {
        let target = path.read_link().unwrap().into_os_string().into_encoded_bytes();
        entry.kind = EntryKind::Symlink;
        entry.size = i64::try_from(target.len()).unwrap();
        entry.object = Some(writer.write_object(None, &target).await.unwrap());
    } else {
        let data = std::fs::read(path).unwrap();
        let mut object = writer.begin_object(None);
        for piece in data.chunks(1 << 20) {
            object.write(writer, piece).await.unwrap();
        }
        entry.size = i64::try_from(data.len()).unwrap();
        entry.object = Some(object.finish(writer).await.unwrap().object);
    }
    entry
}

/// Kopia's own checks, over all data.
async fn verify(kopia: &Kopia) {
    kopia.run(&["snapshot", "verify", "--verify-files-percent=100"]).await;
    kopia.run(&["content", "verify", "--full"]).await;
    kopia.run(&["index", "inspect", "--all"]).await;
}

/// Restores a snapshot with kopia and compares it with the folder that it was taken of.
async fn check_restore(kopia: &Kopia, snapshot: &str, source: &Path) {
    let target = kopia.path(&format!("restored-{snapshot}"));
    kopia.run(&["restore", snapshot, &target.display().to_string()]).await;
    let [restored, expected] =
        [&*target, source].map(|root| tree::with_times_of_files(tree::of_disk(root)));
    tree::assert_equal(&restored, &expected);
}

/// The sum of the lengths of all packs with data.
async fn data_length(kopia: &Kopia) -> u64 {
    use bowline_repository::blobs::Blobs as _;
    kopia.blobs().await.list("p").await.unwrap().iter().map(|blob| blob.length).sum()
}

fn make_source(kopia: &Kopia) -> std::path::PathBuf {
    let source = kopia.path("source");
    std::fs::create_dir(&source).unwrap();
    tree::make(&source);
    source
}

#[tokio::test(flavor = "multi_thread")]
async fn kopia_verifies_and_restores_our_snapshot() {
    let kopia = kopia_with_our_repository().await;
    let source = make_source(&kopia);
    let id = snapshot(&kopia.open().await, &source).await;
    let listed = kopia.run(&["snapshot", "list", "--all"]).await;
    assert!(listed.contains("default@default:"), "{listed}");
    verify(&kopia).await;
    check_restore(&kopia, &id.to_string(), &source).await;
    let status = kopia.run(&["repository", "status"]).await;
    assert!(status.contains("DYNAMIC-4M-BUZHASH"), "{status}");
    let maintenance = kopia.run(&["maintenance", "info"]).await;
    assert!(maintenance.contains("default@default"), "{maintenance}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kopia_stores_nothing_twice_after_us_and_we_nothing_after_kopia() {
    let kopia = kopia_with_our_repository().await;
    let source = make_source(&kopia);
    let first = snapshot(&kopia.open().await, &source).await;
    let ours = data_length(&kopia).await;
    // Kopia finds our snapshot of the same source, and reads what changed alone.
    std::fs::write(source.join("new"), b"one more file").unwrap();
    let second = kopia.snapshot(&source).await;
    let grown = data_length(&kopia).await - ours;
    assert!(grown < 20_000, "kopia added {grown} bytes");
    assert_eq!(second["rootEntry"]["summ"]["files"], 308);
    // The same tree gives the same directories, whoever writes them.
    let before = data_length(&kopia).await;
    let third = snapshot(&kopia.open().await, &source).await;
    assert_eq!(data_length(&kopia).await, before);
    let repository = kopia.open().await;
    let snapshots = repository.snapshots().await.unwrap();
    assert_eq!(snapshots.len(), 3);
    let root = |number: usize| snapshots[number].root_entry.as_ref().unwrap().object;
    assert_eq!(root(1), root(2));
    assert_ne!(root(0), root(1));
    verify(&kopia).await;
    for id in [second["id"].as_str().unwrap(), &third.to_string()] {
        check_restore(&kopia, id, &source).await;
    }
    assert_ne!(first, third);
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_that_we_delete_is_gone_for_kopia_and_its_data_after_maintenance() {
    let kopia = kopia_with_our_repository().await;
    let source = make_source(&kopia);
    snapshot(&kopia.open().await, &source).await;
    let remaining = kopia.path("remaining");
    std::fs::create_dir(&remaining).unwrap();
    std::fs::write(remaining.join("file"), tree::noise(9, 3 << 20)).unwrap();
    let remaining_id = snapshot(&kopia.open().await, &remaining).await;

    let repository = kopia.open().await;
    let manifests = repository.manifests().await.unwrap();
    let snapshots = repository.snapshots().await.unwrap();
    let mut writer = Writer::new(&repository, SessionOwner::velero(), clock()).await.unwrap();
    writer.delete_manifest(&manifests[&snapshots[0].id.unwrap()]);
    writer.flush().await.unwrap();
    let listed = kopia.run(&["snapshot", "list", "--all", "--json"]).await;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");

    let before = data_length(&kopia).await;
    kopia.run(&["maintenance", "run", "--full", "--safety=none"]).await;
    kopia.run(&["maintenance", "run", "--full", "--safety=none"]).await;
    let after = data_length(&kopia).await;
    assert!(after < before / 2, "{before} bytes before, {after} after");
    verify(&kopia).await;
    check_restore(&kopia, &remaining_id.to_string(), &remaining).await;
    let found = kopia.open().await;
    let snapshots = found.snapshots().await.unwrap();
    let root = snapshots[0].root_entry.as_ref().unwrap();
    tree::assert_equal(&tree::of_repository(&found, root).await, &tree::of_disk(&remaining));
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_can_be_recovered_from_our_packs() {
    let kopia = kopia_with_our_repository().await;
    let source = make_source(&kopia);
    let id = snapshot(&kopia.open().await, &source).await;
    kopia.run(&["index", "recover", "--commit", "--dangerous-commands=enabled"]).await;
    verify(&kopia).await;
    check_restore(&kopia, &id.to_string(), &source).await;
}

/// Makes the first index blob of an epoch an hour older, so that the epoch has lasted long enough to end.
fn age_epoch(kopia: &Kopia, epoch: usize) {
    let folder = kopia.repository_folder().join(format!("x/n{epoch}_"));
    let first = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_hours(1);
    std::fs::File::options().write(true).open(first).unwrap().set_modified(hour_ago).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn both_go_on_through_epochs_and_their_compaction() {
    use bowline_repository::blobs::Blobs as _;

    let kopia = kopia_with_our_repository().await;
    kopia
        .run(&[
            "repository",
            "set-parameters",
            "--epoch-refresh-frequency=3m",
            "--epoch-min-duration=10m",
            "--epoch-cleanup-safety-margin=9m",
            "--epoch-advance-on-count=10",
            "--epoch-checkpoint-frequency=2",
        ])
        .await;
    let mut expected = Vec::new();
    for epoch in 0..6 {
        for number in 0..10 {
            let folder = kopia.path(&format!("source-{epoch}-{number}"));
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("file"), format!("{epoch} {number}")).unwrap();
            let id = snapshot(&kopia.open().await, &folder).await;
            expected.push((folder, id));
        }
        age_epoch(&kopia, epoch);
        kopia.run(&["maintenance", "run"]).await;
    }
    // Ranges of epochs are merged by full maintenance alone.
    kopia.run(&["maintenance", "run", "--full"]).await;
    let folder = kopia.path("source-last");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("file"), b"last").unwrap();
    let id = snapshot(&kopia.open().await, &folder).await;
    expected.push((folder, id));
    let listed = kopia.blobs().await.list("x").await.unwrap();
    let has = |prefix: &str| listed.iter().any(|blob| blob.id.as_str().starts_with(prefix));
    for prefix in ["xe6", "xn6_", "xs", "xr0_"] {
        assert!(has(prefix), "no {prefix} in {listed:?}");
    }
    let repository = kopia.open().await;
    let found = repository.snapshots().await.unwrap();
    assert_eq!(found.len(), expected.len());
    for (snapshot, (folder, id)) in found.iter().zip(&expected) {
        assert_eq!(snapshot.id.as_ref(), Some(id));
        let root = snapshot.root_entry.as_ref().unwrap();
        let tree = tree::of_repository(&repository, root).await;
        tree::assert_equal(&tree, &tree::of_disk(folder));
    }
    verify(&kopia).await;
    let (folder, id) = expected.last().unwrap();
    check_restore(&kopia, &id.to_string(), folder).await;
}
