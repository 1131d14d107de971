//! An object while it is written.

use std::fs::File;
use std::sync::Arc;

use nix::errno::Errno;
use tokio::io::AsyncWriteExt as _;

use super::folder::{Folder, Result};
use super::gate::{BucketGate, CallerToken};
use super::temporary::TemporaryFile;
use super::{Creation, Mode, Permit};

/// A file that is being written. Dropping it deletes the file, on a thread for blocking calls: a
/// mount that hangs must not block the thread that gives the upload up.
pub(super) struct Upload {
    gate: BucketGate,
    /// Set until the upload is published or dropped.
    open: Option<OpenFile>,
}

/// All handles of the file: even closing one may hang.
struct OpenFile {
    temporary: TemporaryFile,
    file: tokio::fs::File,
    copy: Arc<File>,
}

impl Upload {
    /// Creates the file. Blocks.
    pub(super) fn create(gate: BucketGate, bucket: &Folder, segments: &[String]) -> Result<Self> {
        let (temporary, file) = TemporaryFile::create(bucket, segments)?;
        let copy = Arc::new(file.try_clone()?);
        let open = OpenFile { temporary, file: tokio::fs::File::from_std(file), copy };
        Ok(Self { gate, open: Some(open) })
    }

    fn open(&mut self) -> Result<&mut OpenFile> {
        Ok(self.open.as_mut().ok_or(Errno::EBADF)?)
    }

    pub(super) async fn write(&mut self, piece: &[u8]) -> Result<()> {
        Ok(self.open()?.file.write_all(piece).await?)
    }

    /// Marks the file as still being written, although it does not grow.
    pub(super) async fn touch(&mut self, key: &str) {
        let Ok(open) = self.open() else { return };
        let copy = Arc::clone(&open.copy);
        // If this fails, the lock still keeps the file.
        let _ = self.gate.run_blocking(key, move || TemporaryFile::touch(&copy)).await;
    }

    /// Flushes the content to disk.
    pub(super) async fn flush(&mut self) -> Result<()> {
        let file = &mut self.open()?.file;
        file.flush().await?;
        Ok(file.sync_all().await?)
    }

    /// Deletes the file, and waits until it is gone.
    pub(super) async fn delete(mut self, key: &str) {
        let gate = self.gate.clone();
        // If the file system hangs, the file is deleted when that ends.
        let _ = gate.run_blocking(key, move || drop(self.open.take())).await;
    }

    /// Gives the file its final name, unless the caller has gone. Blocks.
    pub(super) fn publish(
        mut self,
        mode: Mode,
        permit: &Permit,
        caller: &CallerToken,
    ) -> Result<Creation> {
        let OpenFile { temporary, .. } = self.open.take().ok_or(Errno::EBADF)?;
        let check = || {
            permit.check()?;
            if caller.has_gone() { Err(Errno::ECANCELED.into()) } else { Ok(()) }
        };
        match mode {
            Mode::Replace => temporary.publish_replacing(&check),
            Mode::Create => temporary.publish_if_absent(&check),
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            self.gate.discard(open);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const BUCKET: &str = "bucket";

    #[test]
    fn upload_whose_caller_has_gone_is_not_published() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join(BUCKET)).unwrap();
        let object = root.path().join(BUCKET).join("key");
        for mode in [Mode::Create, Mode::Replace] {
            let publish = |is_waiting: bool| {
                let gate = BucketGate::for_bucket(root.path(), BUCKET);
                let bucket = Folder::bucket(root.path(), BUCKET).unwrap();
                let upload = Upload::create(gate, &bucket, &["key".to_owned()]).unwrap();
                let (token, caller) = CallerToken::new();
                let caller = is_waiting.then_some(caller);
                let published = upload.publish(mode, &Permit::default(), &token);
                drop(caller);
                published
            };
            publish(false).unwrap_err();
            assert!(!object.exists());
            publish(true).unwrap();
            assert!(object.exists());
            std::fs::remove_file(&object).unwrap();
        }
    }

    #[test]
    fn upload_that_is_given_up_is_deleted_by_a_blocking_thread() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(BUCKET);
        std::fs::create_dir(&folder).unwrap();
        let file_count = || std::fs::read_dir(&folder).unwrap().count();
        let gate = BucketGate::for_bucket(root.path(), BUCKET);
        let bucket = Folder::bucket(root.path(), BUCKET).unwrap();
        let upload = Upload::create(gate, &bucket, &["key".to_owned()]).unwrap();
        assert_eq!(file_count(), 1);
        // The only blocking thread hangs.
        let runtime =
            tokio::runtime::Builder::new_multi_thread().max_blocking_threads(1).build().unwrap();
        let (release, hang) = mpsc::channel::<()>();
        runtime.spawn_blocking(move || hang.recv_timeout(Duration::from_mins(2)));
        runtime.block_on(async { drop(upload) });
        assert_eq!(file_count(), 1, "the file was deleted by a thread of the runtime");
        drop(release);
        drop(runtime);
        assert_eq!(file_count(), 0);
    }
}
