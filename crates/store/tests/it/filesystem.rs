//! A folder as a bucket.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bowline_plugin::{Code, Config, ObjectStore as _};
use bowline_store::backend::filesystem::{Downloads, Options};
use bowline_store::backend::{Filesystem, Permit, PermitDenied};
use bowline_store::download::{SigningKey, verify};
use bowline_store::{Backend as _, Guarantee};
use bytes::Bytes;
use tempfile::TempDir;

use crate::conformance::{Subject, assert_conforms, body};

pub(crate) const BUCKET: &str = "bucket";

pub(crate) async fn open(root: &Path) -> Filesystem {
    let options = Options { root: root.to_owned(), downloads: None };
    Filesystem::open(&Config::new(), options).await.unwrap()
}

fn root() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join(BUCKET)).unwrap();
    root
}

async fn conformance_subject(root: &Path) -> Subject {
    let backend = Arc::new(open(root).await);
    Subject { backend, bucket: BUCKET, guarantee: Guarantee::Atomic }
}

#[tokio::test]
async fn filesystem_backend_conforms() {
    let root = root();
    assert_conforms(&conformance_subject(root.path()).await).await;
    let leftovers: Vec<_> = fs::read_dir(root.path().join(BUCKET)).unwrap().collect();
    assert!(leftovers.iter().all(|entry| entry.as_ref().unwrap().path().is_dir()), "{leftovers:?}");
}

#[tokio::test]
async fn keys_and_buckets_cannot_leave_the_root() {
    let root = root();
    let outside = root.path().parent().unwrap().join("outside");
    let store = open(root.path()).await;
    for key in ["../x", "a/../../x", "/etc/passwd", "a//b", ".", "..", "", "a/", "./a", "a\0b"] {
        let errors = [
            store.put_object(BUCKET, key, body("x")).await.unwrap_err(),
            store.get_object(BUCKET, key).await.map(drop).unwrap_err(),
            store.delete_object(BUCKET, key).await.unwrap_err(),
            store.object_exists(BUCKET, key).await.unwrap_err(),
            store.create_object(BUCKET, key, Bytes::new()).await.unwrap_err(),
            store.create_signed_url(BUCKET, key, Duration::ZERO).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.code(), Code::InvalidArgument, "{key:?}: {error}");
        }
    }
    assert!(store.list_objects(BUCKET, "../").await.is_err());
    for bucket in ["..", ".", "", "a/b", "/etc", "bucket/../.."] {
        let error = store.list_objects(bucket, "").await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{bucket:?}: {error}");
    }
    assert!(!outside.exists());
}

#[tokio::test]
async fn folders_nested_too_deep_are_refused_in_lists_and_count_as_content() {
    let root = root();
    let store = open(root.path()).await;
    store.put_object(BUCKET, "backups/b/x", body("x")).await.unwrap();
    let deep = format!("backups/deep/{}", "d/".repeat(40));
    fs::create_dir_all(root.path().join(BUCKET).join(deep)).unwrap();
    // A list without these folders would be wrong: they may hold files.
    let error = store.list_objects(BUCKET, "backups/deep/").await.unwrap_err();
    assert!(error.to_string().contains("nested too deep"), "{error}");
    let backups = store.list_common_prefixes(BUCKET, "backups/", "/").await.unwrap();
    assert_eq!(backups, ["backups/b/", "backups/deep/"]);
    let keys = store.list_objects(BUCKET, "backups/b/").await.unwrap();
    assert_eq!(keys, ["backups/b/x"], "other folders are not affected");
}

#[tokio::test]
async fn symbolic_links_are_never_followed() {
    let root = root();
    let bucket = root.path().join(BUCKET);
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("secret"), "s").unwrap();
    symlink(elsewhere.path(), bucket.join("folder")).unwrap();
    symlink(elsewhere.path().join("secret"), bucket.join("file")).unwrap();
    symlink(elsewhere.path(), root.path().join("linked-bucket")).unwrap();
    let store = open(root.path()).await;
    for key in ["folder/secret", "file"] {
        let error = store.get_object(BUCKET, key).await.map(drop).unwrap_err();
        assert_eq!(error.code(), Code::PermissionDenied, "{error}");
        assert!(error.message().contains("symbolic link"), "{error}");
    }
    assert!(store.put_object(BUCKET, "folder/new", body("x")).await.is_err());
    assert!(store.delete_object(BUCKET, "folder/secret").await.is_err());
    assert!(store.list_objects("linked-bucket", "").await.is_err());
    assert_eq!(store.list_objects(BUCKET, "").await.unwrap(), Vec::<String>::new());
    assert_eq!(store.list_common_prefixes(BUCKET, "", "/").await.unwrap(), Vec::<String>::new());
    // A link in the place of an object is replaced, not followed.
    store.put_object(BUCKET, "file", body("ours")).await.unwrap();
    assert_eq!(fs::read_to_string(elsewhere.path().join("secret")).unwrap(), "s");
    assert_eq!(fs::read_to_string(bucket.join("file")).unwrap(), "ours");
}

#[tokio::test]
async fn temporary_files_are_not_listed_and_old_ones_are_deleted() {
    let root = root();
    let folder = root.path().join(BUCKET).join("backups/b");
    fs::create_dir_all(&folder).unwrap();
    let (fresh, old) = (folder.join(".bowline-tmp-1-0-a"), folder.join(".bowline-tmp-1-1-b"));
    for file in [&fresh, &old] {
        fs::write(file, "half").unwrap();
    }
    let long_ago = SystemTime::now() - Duration::from_hours(2);
    fs::File::options().write(true).open(&old).unwrap().set_modified(long_ago).unwrap();
    let store = open(root.path()).await;
    assert_eq!(store.list_objects(BUCKET, "").await.unwrap(), Vec::<String>::new());
    assert_eq!(
        store.list_common_prefixes(BUCKET, "backups/", "/").await.unwrap(),
        Vec::<String>::new()
    );
    assert!(fresh.exists(), "somebody may be writing it");
    assert!(!old.exists());
    let error = store.get_object(BUCKET, "backups/b/.bowline-tmp-1-0-a").await.map(drop);
    assert_eq!(error.unwrap_err().code(), Code::InvalidArgument);
}

/// The file that is being written in a folder.
fn temporary(folder: &Path) -> Option<std::path::PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let mut paths = entries.map(|entry| entry.path());
    paths.find(|path| path.file_name().unwrap().to_string_lossy().starts_with(".bowline-tmp-"))
}

#[tokio::test]
async fn file_being_written_is_not_deleted_as_abandoned() {
    let root = root();
    let folder = root.path().join(BUCKET).join("backups/b");
    let store = open(root.path()).await;
    let (send, receive) = tokio::sync::mpsc::channel::<std::io::Result<bytes::Bytes>>(1);
    let stream = futures::stream::unfold(receive, |mut receive| async move {
        Some((receive.recv().await?, receive))
    });
    let writer = open(root.path()).await;
    let upload = tokio::spawn(async move {
        writer.put_object(BUCKET, "backups/b/b.tar.gz", Box::pin(stream)).await
    });
    send.send(Ok(bytes::Bytes::from("a"))).await.unwrap();
    let file = loop {
        if let Some(file) = temporary(&folder) {
            break file;
        }
        tokio::task::yield_now().await;
    };
    let long_ago = SystemTime::now() - Duration::from_hours(5);
    fs::File::options().write(true).open(&file).unwrap().set_modified(long_ago).unwrap();
    store.list_common_prefixes(BUCKET, "backups/", "/").await.unwrap();
    store.list_objects(BUCKET, "").await.unwrap();
    assert!(file.exists(), "the archive of a long backup is gone");
    drop(send);
    upload.await.unwrap().unwrap();
    assert_eq!(fs::read_to_string(folder.join("b.tar.gz")).unwrap(), "a");
}

#[tokio::test]
async fn file_locked_by_another_process_is_not_deleted() {
    let root = root();
    let folder = root.path().join(BUCKET).join("backups/b");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(".bowline-tmp-1-1-b");
    fs::write(&path, "half").unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_hours(5)).unwrap();
    file.lock().unwrap();
    let store = open(root.path()).await;
    store.list_objects(BUCKET, "").await.unwrap();
    assert!(path.exists(), "its owner lives");
    file.unlock().unwrap();
    store.list_objects(BUCKET, "").await.unwrap();
    assert!(!path.exists(), "its owner is gone");
}

#[tokio::test]
async fn leftovers_of_a_killed_server_are_deleted_with_the_last_object() {
    let root = root();
    let folder = root.path().join(BUCKET).join("backups/b");
    let store = open(root.path()).await;
    store.put_object(BUCKET, "backups/b/velero-backup.json", body("{}")).await.unwrap();
    let leftover = folder.join(".bowline-tmp-1-1-b");
    fs::write(&leftover, "half").unwrap();
    let file = fs::File::options().write(true).open(&leftover).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_mins(10)).unwrap();
    drop(file);
    store.delete_object(BUCKET, "backups/b/velero-backup.json").await.unwrap();
    assert!(!folder.exists(), "{:?} is left", temporary(&folder));
}

#[tokio::test]
async fn files_are_private_and_empty_folders_are_removed() {
    use std::os::unix::fs::PermissionsExt as _;
    let root = root();
    let store = open(root.path()).await;
    store.put_object(BUCKET, "backups/b/x", body("secret")).await.unwrap();
    let mode = |path: &str| {
        let path = root.path().join(BUCKET).join(path);
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    };
    assert_eq!((mode("backups"), mode("backups/b"), mode("backups/b/x")), (0o700, 0o700, 0o600));
    let deep = root.path().join(BUCKET).join("backups/deep").join("d/".repeat(500));
    fs::create_dir_all(&deep).unwrap();
    let folders = store.list_common_prefixes(BUCKET, "backups/", "/").await.unwrap();
    assert_eq!(folders, ["backups/b/", "backups/deep/"]);
    let error = store.list_objects(BUCKET, "backups/deep/").await.unwrap_err();
    assert!(error.message().contains("too deep"), "{error}");
}

#[tokio::test]
async fn failed_write_is_reported_with_its_reason() {
    let root = root();
    let store = open(root.path()).await;
    store.put_object(BUCKET, "a", body("x")).await.unwrap();
    let error = store.put_object(BUCKET, "a/b", body("x")).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    let error = store.put_object(BUCKET, &"x".repeat(300), body("x")).await.unwrap_err();
    assert!(error.message().contains("too long"), "{error}");
    let missing_root = open(Path::new("/nowhere/at/all")).await;
    let error = missing_root.put_object(BUCKET, "a", body("x")).await.unwrap_err();
    assert!(error.message().contains("--filesystem-root"), "{error}");
    // A folder in which no user can create files, including root.
    let read_only = open(Path::new("/proc")).await;
    let error = read_only.put_object("self", "a", body("x")).await.unwrap_err();
    assert!(error.message().contains("symbolic link"), "{error}");
    let error =
        open(Path::new("/sys")).await.put_object("kernel", "a", body("x")).await.unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    let known = [("bucket", "b"), ("prefix", "p"), ("caCert", "c")];
    let config: Config = known.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    store.init(&config).await.unwrap();
    let config: Config = [("region".to_owned(), "x".to_owned())].into();
    assert!(store.init(&config).await.unwrap_err().message().contains("invalid keys"));
}

#[tokio::test]
async fn download_url_is_signed_and_expires() {
    let root = root();
    let key = SigningKey::new(&[7; 32]).unwrap();
    let store = open(root.path()).await;
    let error = store.create_signed_url(BUCKET, "a", Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    let downloads = Downloads { base_url: "https://host/download/".to_owned(), key: key.clone() };
    let options = Options { root: root.path().to_owned(), downloads: Some(downloads) };
    let store = Filesystem::open(&Config::new(), options).await.unwrap();
    let url = store.create_signed_url(BUCKET, "a/b", Duration::from_mins(10)).await.unwrap();
    let token = url.strip_prefix("https://host/download/").unwrap();
    let now = jiff::Timestamp::now();
    let grant = verify(&key, token, now).unwrap();
    assert_eq!((grant.bucket.as_str(), grant.key.as_str()), (BUCKET, "a/b"));
    let remaining_secs = grant.expires.duration_since(now).as_secs();
    assert!((590..=600).contains(&remaining_secs), "{remaining_secs}");
}

#[tokio::test]
async fn without_a_permit_the_old_object_is_kept() {
    let root = root();
    let store = open(root.path()).await;
    store.put_object(BUCKET, "a", body("old")).await.unwrap();
    let store = store.with_permit(Permit::new(|| Err(PermitDenied("its time is over".to_owned()))));
    let error = store.put_object(BUCKET, "a", body("new")).await.unwrap_err();
    assert!(error.message().contains("its time is over"), "{error}");
    store.create_object(BUCKET, "b", Bytes::from("new")).await.unwrap_err();
    let error = store.delete_object(BUCKET, "a").await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert_eq!(store.list_objects(BUCKET, "").await.unwrap(), ["a"]);
    assert_eq!(fs::read(root.path().join(BUCKET).join("a")).unwrap(), b"old");
}

#[test]
fn delete_waiting_for_a_slow_disk_is_dropped_when_the_permit_ends() {
    // The only thread for access to files is busy.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().max_blocking_threads(1).build().unwrap();
    let root = root();
    let file = root.path().join(BUCKET).join("a");
    fs::write(&file, "old").unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let permit_over = Arc::clone(&is_over);
    let permit = Permit::new(move || {
        let is_over = permit_over.load(Ordering::SeqCst);
        if is_over { Err(PermitDenied("its time is over".to_owned())) } else { Ok(()) }
    });
    runtime.block_on(async {
        let store = open(root.path()).await.with_permit(permit);
        let (resume, wait) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || wait.recv_timeout(Duration::from_mins(2)));
        let mut deletion = store.delete_object(BUCKET, "a");
        // Now it stands in the queue.
        assert!(futures::poll!(&mut deletion).is_pending());
        is_over.store(true, Ordering::SeqCst);
        resume.send(()).unwrap();
        let error = deletion.await.unwrap_err();
        assert!(error.message().contains("its time is over"), "{error}");
        busy.await.unwrap().unwrap();
        assert!(file.exists());
        is_over.store(false, Ordering::SeqCst);
        store.delete_object(BUCKET, "a").await.unwrap();
        assert!(!file.exists());
    });
}
