//! All that can go wrong, with the code that tells servers whether to try again.

use bowline_plugin_sdk::{Code, Error as PluginError, one_line};

use crate::id::{Id, InvalidId};
use crate::{config, repository, roots, state, tree};

/// What went wrong in a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Config(#[from] config::Invalid),
    #[error(transparent)]
    Id(#[from] InvalidId),
    #[error(transparent)]
    Volume(#[from] roots::Refused),
    #[error(transparent)]
    Tree(#[from] tree::Failed),
    #[error(transparent)]
    State(#[from] state::Failed),
    #[error(transparent)]
    Repository(#[from] repository::Failed),
    #[error("Init has not been called")]
    NotInitialised,
    #[error("the PersistentVolume cannot be understood: {0}")]
    PersistentVolume(String),
    #[error("the PersistentVolume is a block device, which has no files to clone")]
    Block,
    #[error("the PersistentVolume is neither of type local nor of type hostPath")]
    OtherType,
    #[error("snapshot {0} does not exist")]
    NoSnapshot(Id),
    #[error("the snapshot of the same request is of volume {0}")]
    OtherVolume(String),
    #[error("the clone of snapshot {0} is lost: the node went down before it was on disk")]
    Lost(Id),
    #[error("another process uploads snapshot {0}")]
    Busy(Id),
    #[error("a volume is just being made from snapshot {0}")]
    InUse(Id),
    #[error("snapshot {0} was uploaded, and no \"repository\" is configured to remove it from")]
    NoRepository(Id),
    #[error("the work was broken off by a mistake in the plugin; its log has more")]
    Panicked,
}

impl Error {
    fn code(&self) -> Code {
        match self {
            Self::Config(_) | Self::Id(_) | Self::PersistentVolume(_) | Self::OtherType => {
                Code::InvalidArgument
            }
            Self::Volume(refused) => of_volume(refused),
            Self::Tree(failed) => of_tree(failed),
            Self::State(failed) if failed.is_disk_full() => Code::ResourceExhausted,
            Self::State(state::Failed::NotPrivate { .. }) => Code::FailedPrecondition,
            Self::State(_) => Code::Unknown,
            Self::Repository(failed) => of_repository(failed),
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

fn of_volume(refused: &roots::Refused) -> Code {
    use roots::Refused as R;
    match refused {
        R::Path(_) => Code::InvalidArgument,
        R::Outside(_) | R::IsRoot(_) | R::LeadsOut(_) | R::Taken { .. } => Code::PermissionDenied,
        R::Missing(_) => Code::NotFound,
        R::NoFolder(_) => Code::FailedPrecondition,
        R::Root { .. } | R::Open { .. } => Code::Unknown,
    }
}

fn of_tree(failed: &tree::Failed) -> Code {
    use tree::Failed as F;
    match failed {
        failed if failed.is_disk_full() => Code::ResourceExhausted,
        F::Mount { .. } | F::Type { .. } => Code::FailedPrecondition,
        F::Restless { .. } => Code::Unavailable,
        F::Io { .. } | F::Stopped(_) => Code::Unknown,
    }
}

fn of_repository(failed: &repository::Failed) -> Code {
    use repository::Failed as F;
    match failed {
        F::Password(_) => Code::Unauthenticated,
        F::HalfMade(_) => Code::Unavailable,
        F::NoSnapshot(_) => Code::NotFound,
        F::Entry { .. } | F::Incomplete { .. } => Code::DataLoss,
        F::Tree(failed) => of_tree(failed),
        F::Folder { .. } | F::Store { .. } | F::Library { .. } | F::Stopped(_) => Code::Unknown,
    }
}

impl From<Error> for PluginError {
    fn from(error: Error) -> Self {
        Self::new(error.code(), one_line(&error))
    }
}
