//! Errors of a test bed.

use std::io;
use std::path::{Path, PathBuf};

/// Failure of the test bed. Each message has a hint if there is a remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The private folder or the namespaces failed.
    #[error(transparent)]
    Bed(#[from] crate::bed::Error),
    /// A program is not available.
    #[error(transparent)]
    Program(#[from] crate::gobuild::Error),
    /// A program does not run.
    #[error(transparent)]
    Process(#[from] crate::process::Error),
    /// The container runtime of the real node failed.
    #[error(transparent)]
    Runtime(#[from] crate::node::RuntimeError),
    /// Certificates could not be made.
    #[error(transparent)]
    Pki(#[from] crate::pki::Error),
    /// A kubeconfig, or the client made from it, is not usable.
    #[error(transparent)]
    Kubeconfig(#[from] crate::kubeconfig::Error),
    /// The requested port is not available.
    #[error(
        "cannot listen on port {port} of 127.0.0.1: {reason}; choose another one, or none to get a free one"
    )]
    WantedPort {
        /// Requested port.
        port: u16,
        /// Reason given by the system.
        reason: io::Error,
    },
    /// No port is available.
    #[error("cannot listen on 127.0.0.1")]
    Port(#[source] io::Error),
    /// A program that runs to its end failed.
    #[error("{program} failed: {reason}")]
    Failed {
        /// Name of the program.
        program: &'static str,
        /// Reason given by the program.
        reason: String,
    },
    /// The program must run outside of namespaces of its own.
    #[error("{0} cannot run in a bed with namespaces of its own; use one without")]
    Isolated(&'static str),
    /// A file of the bed could not be used.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Attempted action.
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        #[source]
        /// Reason given by the system.
        source: io::Error,
    },
    /// A request to the API server failed.
    #[error("cannot {action}")]
    Api {
        /// Attempted action.
        action: String,
        #[source]
        /// Error of the API server.
        source: Box<kube::Error>,
    },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    pub(crate) fn api(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let action = action.into();
        move |source| Self::Api { action, source: Box::new(source) }
    }
}
