//! Life of a plugin process that a host has started.
//!
//! # Guarantees
//! - The first line on standard output is the handshake, printed when calls can be answered.
//! - All other output to standard output goes to standard error, where it does no harm.
//! - The process ends within two seconds of `Shutdown` or SIGTERM, and its socket is removed.
//! - SIGINT is ignored: a terminal sends it to all processes of the server that is interrupted
//!   there, and the server stops its plugins itself when it no longer needs them.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;

use bowline_plugin_wire::handshake;
use bowline_plugin_wire::server::Plugins;
use tokio::signal::unix::{SignalKind, signal};

use crate::socket::{self, Socket};

/// Reasons why a plugin could not serve.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot start the runtime: {0}")]
    Runtime(io::Error),
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
    #[error(transparent)]
    Socket(#[from] socket::Error),
    #[error("cannot write the handshake to standard output: {0}")]
    Handshake(io::Error),
    #[error("serving: {0}")]
    Serve(io::Error),
}

/// Serves until a host or a signal stops the process.
pub(crate) fn run(plugins: Plugins) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(Error::Runtime)?;
    let result = runtime.block_on(serve(plugins));
    // Work that blocks a thread must not delay the exit.
    runtime.shutdown_background();
    result
}

async fn serve(plugins: Plugins) -> Result<(), Error> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let _ignored = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    let (socket, listener) = Socket::listen(&socket::folder(|name| std::env::var_os(name)))?;
    let mut output = claim_stdout().map_err(Error::Handshake)?;
    writeln!(output, "{}", handshake::format(socket.path())).map_err(Error::Handshake)?;
    let terminated = async {
        terminate.recv().await;
    };
    // `output` stays open to the end: a host may take its end for the end of the process.
    plugins.serve(listener, terminated).await.map_err(Error::Serve)
}

/// Standard output, for the handshake alone: all other output goes to standard error from now on.
fn claim_stdout() -> io::Result<File> {
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    nix::unistd::dup2_stdout(io::stderr())?;
    Ok(output.into())
}
