//! What can go wrong while a test bed is made.

use std::io;
use std::path::{Path, PathBuf};

/// Any failure of the test bed. Each message says what to do where something can be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The private folder or the namespaces.
    #[error(transparent)]
    Bed(#[from] crate::bed::Error),
    /// A program that could not be had.
    #[error(transparent)]
    Program(#[from] crate::gobuild::Error),
    /// A program that does not run.
    #[error(transparent)]
    Process(#[from] crate::process::Error),
    /// The container runtime of the real node.
    #[error(transparent)]
    Runtime(#[from] crate::node::RuntimeError),
    /// Certificates.
    #[error(transparent)]
    Pki(#[from] crate::pki::Error),
    /// A kubeconfig or the client made from it.
    #[error(transparent)]
    Kubeconfig(#[from] crate::kubeconfig::Error),
    /// The wanted port cannot be had.
    #[error(
        "cannot listen on port {port} of 127.0.0.1: {reason}; choose another one, or none to get a free one"
    )]
    WantedPort {
        /// The port.
        port: u16,
        /// What the system said.
        reason: io::Error,
    },
    /// No port can be had.
    #[error("cannot listen on 127.0.0.1")]
    Port(#[source] io::Error),
    /// A program that runs to its end failed.
    #[error("{program} failed: {reason}")]
    Failed {
        /// The program.
        program: &'static str,
        /// What it said.
        reason: String,
    },
    /// It must run on the machine itself.
    #[error("{0} cannot run in a bed with namespaces of its own; use one without")]
    Isolated(&'static str),
    /// A file of the bed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        #[source]
        /// What the system said.
        source: io::Error,
    },
    /// A request to the API server.
    #[error("cannot {action}")]
    Api {
        /// What was tried.
        action: String,
        #[source]
        /// What the API server said.
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
