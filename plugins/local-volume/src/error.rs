//! All errors, with the code by which servers decide whether to retry.

use bowline_plugin_sdk::{Code, Error as PluginError, error_chain};

use crate::id::{Id, InvalidId};
use crate::{config, repository, roots, state, tree};

/// The error of a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Config(#[from] config::InvalidConfig),
    #[error(transparent)]
    Id(#[from] InvalidId),
    #[error(transparent)]
    Volume(#[from] roots::VolumeRefusal),
    #[error(transparent)]
    Tree(#[from] tree::TreeError),
    #[error(transparent)]
    State(#[from] state::StateError),
    #[error(transparent)]
    Repository(#[from] repository::RepositoryError),
    #[error("Init has not been called")]
    NotInitialised,
    #[error("invalid PersistentVolume: {0}")]
    PersistentVolume(String),
    #[error("the PersistentVolume is a block device, which has no files to clone")]
    Block,
    #[error("the PersistentVolume is neither of type local nor of type hostPath")]
    OtherType,
    #[error("snapshot {0} does not exist")]
    NoSnapshot(Id),
    #[error("the request id already belongs to a snapshot of volume {0}")]
    OtherVolume(String),
    #[error("the clone of snapshot {0} is lost: the node failed before the clone was flushed")]
    Lost(Id),
    #[error("another process uploads snapshot {0}")]
    Busy(Id),
    #[error("a volume is being created from snapshot {0}")]
    InUse(Id),
    #[error("snapshot {0} was uploaded, and no \"repository\" is configured to remove it from")]
    NoRepository(Id),
    #[error("the work was aborted by a bug in the plugin; see the log of the plugin")]
    Panicked,
}

impl Error {
    fn code(&self) -> Code {
        match self {
            Self::Config(_) | Self::Id(_) | Self::PersistentVolume(_) | Self::OtherType => {
                Code::InvalidArgument
            }
            Self::Volume(refused) => volume_error_code(refused),
            Self::Tree(failed) => tree_error_code(failed),
            Self::State(failed) if failed.is_disk_full() => Code::ResourceExhausted,
            Self::State(state::StateError::NotPrivate { .. }) => Code::FailedPrecondition,
            Self::State(_) => Code::Unknown,
            Self::Repository(failed) => repository_error_code(failed),
            Self::NoSnapshot(_) => Code::NotFound,
            Self::NotInitialised | Self::Block | Self::OtherVolume(_) | Self::NoRepository(_) => {
                Code::FailedPrecondition
            }
            Self::Lost(_) => Code::DataLoss,
            Self::Busy(_) | Self::InUse(_) => Code::Unavailable,
            Self::Panicked => Code::Internal,
        }
    }
}

fn volume_error_code(refused: &roots::VolumeRefusal) -> Code {
    use roots::VolumeRefusal as R;
    match refused {
        R::Path(_) => Code::InvalidArgument,
        R::Outside(_) | R::IsRoot(_) | R::LeadsOut(_) | R::Reserved { .. } => {
            Code::PermissionDenied
        }
        R::Missing(_) => Code::NotFound,
        R::NoFolder(_) => Code::FailedPrecondition,
        R::Root { .. } | R::Open { .. } => Code::Unknown,
    }
}

fn tree_error_code(failed: &tree::TreeError) -> Code {
    use tree::TreeError as F;
    match failed {
        failed if failed.is_disk_full() => Code::ResourceExhausted,
        F::Mount { .. } | F::Type { .. } => Code::FailedPrecondition,
        F::KeepsChanging { .. } => Code::Unavailable,
        F::Io { .. } | F::Stopped(_) => Code::Unknown,
    }
}

fn repository_error_code(failed: &repository::RepositoryError) -> Code {
    use repository::RepositoryError as F;
    match failed {
        F::Password(_) => Code::Unauthenticated,
        F::HalfInitialized(_) => Code::Unavailable,
        F::NoSnapshot(_) => Code::NotFound,
        F::Entry { .. } | F::Incomplete { .. } => Code::DataLoss,
        F::Tree(failed) => tree_error_code(failed),
        F::Folder { .. } | F::Store { .. } | F::Library { .. } | F::Stopped(_) => Code::Unknown,
    }
}

impl From<Error> for PluginError {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error_chain(&error))
    }
}
