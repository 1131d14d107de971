//! This crate reads what kopia wrote.

use bowline_repository::blobs::Blobs;
use bowline_repository::format::Password;
use bowline_repository::id::BlobId;
use bowline_repository::repository::Error;
use bowline_repository::{Repository, format};
use jiff::Timestamp;

use crate::kopia::{Kopia, password};
use crate::tree;

/// Makes a snapshot with kopia and compares each file with what this crate reads.
async fn check_snapshot(kopia: &Kopia) {
    let source = kopia.path("source");
    std::fs::create_dir(&source).unwrap();
    tree::make(&source);
    let manifest = kopia.snapshot(&source).await;

    let repository = kopia.open().await;
    let snapshots = repository.snapshots().await.unwrap();
    let [snapshot] = snapshots.as_slice() else { panic!("{} snapshots", snapshots.len()) };
    assert_eq!(snapshot.id.unwrap().to_string(), manifest["id"].as_str().unwrap());
    assert_eq!(snapshot.source.host, "default");
    assert_eq!(snapshot.source.path, source.display().to_string());
    let root = snapshot.root_entry.as_ref().unwrap();
    let found = tree::of_repository(&repository, root).await;
    tree::assert_equal(&found, &tree::of_disk(&source));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_file_of_a_snapshot_is_read() {
    let kopia = Kopia::with_repository(&[]).await;
    check_snapshot(&kopia).await;

    let repository = kopia.open().await;
    let snapshots = repository.snapshots().await.unwrap();
    let root = snapshots[0].root_entry.as_ref().unwrap();
    let large = repository.find_entry(root, &["large"]).await.unwrap().unwrap();
    assert!(large.object.unwrap().depth() > 0, "the file is more than one content");
    let deep = ["folder", "deeper", "deepest", "file"];
    let deep = repository.find_entry(root, &deep).await.unwrap().unwrap();
    assert_eq!(repository.read_object(deep.object.unwrap(), 4).await.unwrap(), b"deep");
    assert!(repository.find_entry(root, &["folder", "nothing"]).await.unwrap().is_none());
    let short = repository.read_object(deep.object.unwrap(), 3).await;
    assert!(matches!(short, Err(Error::TooLong { .. })), "{short:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn older_format_with_other_algorithms_and_compression_is_read() {
    let kopia = Kopia::with_repository(&[
        "--format-version=2",
        "--format-block-key-derivation-algorithm=pbkdf2-sha256-600000",
        "--encryption=CHACHA20-POLY1305-HMAC-SHA256",
        "--block-hash=HMAC-SHA256",
        "--object-splitter=FIXED-1M",
    ])
    .await;
    kopia.run(&["policy", "set", "--global", "--compression=pgzip"]).await;
    check_snapshot(&kopia).await;
    assert_eq!(kopia.open().await.format().version, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn content_of_each_compressor_of_kopia_is_read() {
    let kopia = Kopia::with_repository(&[]).await;
    let compressors = ["gzip", "zstd", "zstd-fastest", "zstd-better-compression", "pgzip"];
    for (number, compressor) in compressors.into_iter().enumerate() {
        kopia.run(&["policy", "set", "--global", "--compression", compressor]).await;
        let folder = kopia.path(compressor);
        std::fs::create_dir(&folder).unwrap();
        let text = format!("compressed with {compressor} ").repeat(10_000);
        std::fs::write(folder.join("file"), text).unwrap();
        kopia.snapshot(&folder).await;
        let repository = kopia.open().await;
        let snapshots = repository.snapshots().await.unwrap();
        assert_eq!(snapshots.len(), number + 1);
        let root = snapshots[number].root_entry.as_ref().unwrap();
        let file = repository.find_entry(root, &["file"]).await.unwrap().unwrap();
        let content = repository.find_content(&file.object.unwrap().content()).unwrap();
        assert!(content.compressor.is_some(), "{compressor}");
        let found = tree::of_repository(&repository, root).await;
        tree::assert_equal(&found, &tree::of_disk(&folder));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_snapshot_is_gone_and_others_survive_maintenance() {
    let kopia = Kopia::with_repository(&[]).await;
    let mut snapshots = Vec::new();
    for number in 0..20 {
        let folder = kopia.path(&format!("source{number}"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("file"), tree::noise(number, 100_000)).unwrap();
        let manifest = kopia.snapshot(&folder).await;
        snapshots.push((folder, manifest["id"].as_str().unwrap().to_owned()));
    }
    let (_, deleted) = snapshots.remove(7);
    kopia.run(&["snapshot", "delete", "--delete", &deleted]).await;
    kopia.run(&["maintenance", "set", "--owner=me"]).await;
    kopia.run(&["maintenance", "run", "--full", "--safety=none"]).await;

    let repository = kopia.open().await;
    let found = repository.snapshots().await.unwrap();
    let ids: Vec<String> = found.iter().map(|it| it.id.unwrap().to_string()).collect();
    assert_eq!(ids, snapshots.iter().map(|(_, id)| id.clone()).collect::<Vec<_>>());
    for (snapshot, (folder, _)) in found.iter().zip(&snapshots) {
        let root = snapshot.root_entry.as_ref().unwrap();
        let found = tree::of_repository(&repository, root).await;
        tree::assert_equal(&found, &tree::of_disk(folder));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_damage_has_its_own_error() {
    let kopia = Kopia::with_repository(&[]).await;
    let source = kopia.path("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("file"), b"data of a file").unwrap();
    kopia.snapshot(&source).await;
    let blobs = kopia.blobs().await;
    let now = Timestamp::now();

    let other = Password::new("other".to_owned());
    let error = Repository::open(blobs.clone(), &other, now).await.unwrap_err();
    assert!(
        matches!(&error, Error::Format(error) if matches!(**error, format::Error::WrongPassword)),
        "{error}"
    );

    let snapshots = kopia.open().await.snapshots().await.unwrap();
    let root = snapshots[0].root_entry.clone().unwrap();
    let pack = damage_first_blob(&*blobs, "p", 40).await;
    let repository = kopia.open().await;
    let file = repository.find_entry(&root, &["file"]).await.unwrap().unwrap();
    let error = repository.read_object(file.object.unwrap(), 100).await.unwrap_err();
    assert_eq!(error.to_string(), format!("pack {pack} is damaged"));
    blobs.delete(&pack).await.unwrap();
    let error = repository.read_object(file.object.unwrap(), 100).await.unwrap_err();
    assert_eq!(error.to_string(), format!("blob {pack} does not exist"));

    let index = damage_first_blob(&*blobs, "xn", 40).await;
    let error = Repository::open(blobs.clone(), &password(), now).await.unwrap_err();
    assert_eq!(error.to_string(), format!("index blob {index} cannot be decrypted"));

    blobs.delete(&"kopia.repository".parse().unwrap()).await.unwrap();
    let error = Repository::open(blobs, &password(), now).await.unwrap_err();
    assert!(matches!(error, Error::NotInitialized), "{error}");
}

/// Changes a byte of the first blob with a prefix. Returns its name.
async fn damage_first_blob(blobs: &dyn Blobs, prefix: &str, position: usize) -> BlobId {
    let mut listed = blobs.list(prefix).await.unwrap();
    listed.sort_by(|a, b| a.id.cmp(&b.id));
    let blob = listed.swap_remove(0).id;
    let mut data = blobs.get(&blob, u64::MAX - 1).await.unwrap().to_vec();
    data[position] ^= 1;
    blobs.put(&blob, data.into()).await.unwrap();
    blob
}
