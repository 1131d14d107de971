//! Reasons why a backup or a restore cannot go on. Each is retried, until the run is bounded by its attempts or by the
//! time for which its bucket is away.

use bowline_engine::cluster;
use bowline_store::InvalidName;

use super::lifecycle::RunObject;
use crate::controllers::bucket_wait::BucketFailure;
use crate::controllers::lookup::OpenError;
use crate::journal;

/// Reason why a run could not be processed. It is retried.
#[derive(Debug, thiserror::Error)]
pub(in crate::controllers) enum RunError {
    #[error("the API server rejected the request")]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    #[error(transparent)]
    Journal(#[from] journal::Error),
    #[error(transparent)]
    Append(#[from] bowline_engine::journal::Error),
    #[error(transparent)]
    Bucket(#[from] BucketError),
    #[error("cannot open the storage location: {0}")]
    Open(OpenError),
    #[error("the bucket of the run is unavailable")]
    NoStore,
    #[error("the storage location has not been validated yet")]
    Unchecked,
    #[error("waiting for a slot, or for a running backup of the same namespaces")]
    NotAdmitted,
    #[error("the files of the restore cannot be deleted")]
    DeleteFiles(#[source] Box<BucketCause>),
}

impl RunError {
    /// Error for a failed use of the bucket.
    pub(in crate::controllers) fn of_bucket<K: RunObject>(
        failure: BucketFailure,
        cause: impl Into<BucketCause>,
    ) -> Self {
        let step = match failure {
            BucketFailure::Unreachable => K::BUCKET_UNREACHABLE,
            BucketFailure::Refused => K::FILE_REFUSED,
            BucketFailure::WriteRefused => "the bucket refuses writes; retrying",
        };
        Self::Bucket(BucketError { step, failure, source: Box::new(cause.into()) })
    }

    /// Error for a failed read from the bucket.
    pub(in crate::controllers) fn of_read<K: RunObject>(error: bowline_store::Error) -> Self {
        let failure = BucketFailure::of_read(&error).unwrap_or(BucketFailure::Unreachable);
        Self::of_bucket::<K>(failure, error)
    }

    /// Error for a failed write to the bucket.
    pub(in crate::controllers) fn of_write<K: RunObject>(error: bowline_store::Error) -> Self {
        let failure = BucketFailure::of_write(&error).unwrap_or(BucketFailure::Unreachable);
        Self::of_bucket::<K>(failure, error)
    }

    /// Failure of the bucket, if that is the only thing wrong.
    pub(in crate::controllers) fn bucket_failure(&self) -> Option<BucketFailure> {
        match self {
            Self::Bucket(error) => Some(error.failure),
            Self::Open(error) => Some(BucketFailure::of_open(error)),
            Self::Api(_)
            | Self::Cluster(_)
            | Self::Journal(_)
            | Self::Append(_)
            | Self::NoStore
            | Self::Unchecked
            | Self::NotAdmitted
            | Self::DeleteFiles(_) => None,
        }
    }
}

/// Failure to use the bucket of a run, which then waits for it.
#[derive(Debug, thiserror::Error)]
#[error("{step}")]
pub(in crate::controllers) struct BucketError {
    /// Failed step, in words: the failure reason of a run that ends without its bucket contains it.
    pub(in crate::controllers) step: &'static str,
    pub(in crate::controllers) failure: BucketFailure,
    pub(in crate::controllers) source: Box<BucketCause>,
}

/// Cause of a failure to use a bucket.
#[derive(Debug, thiserror::Error)]
pub(in crate::controllers) enum BucketCause {
    #[error(transparent)]
    Store(#[from] bowline_store::Error),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// Holds what was canceled, a backup or a restore.
    #[error("no answer since the {0} was canceled")]
    Canceled(&'static str),
    /// The API server does not say which bucket it is.
    #[error("{0}")]
    LocationUnknown(String),
}
