//! The server that is killed: the real one, in a process that kills itself at a failpoint.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use bowline_engine::failpoint::{self, Failpoint, FailpointAction};
use bowline_server::{Options, log};
use bowline_testbed::kubeconfig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::plan;

/// Identity of the server. Each one takes over the lease of the previous one at once.
const IDENTITY: &str = "killed";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    kubeconfig: PathBuf,
    #[arg(long)]
    namespace: String,
    #[arg(long)]
    plugins: PathBuf,
    #[arg(long)]
    scratch: PathBuf,
    /// Failpoint at which the server ends
    #[arg(long, value_parser = plan::point)]
    die_at: Option<Failpoint>,
    /// Passing of the failpoint at which the server ends
    #[arg(long, default_value_t = 1)]
    passing: u32,
    /// Failpoint after which a step is skipped
    #[arg(long, value_parser = plan::point)]
    leave_out: Option<Failpoint>,
}

/// Serves until killed.
pub(crate) async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    log::init(log::Options { level: "debug".parse()?, ..log::Options::default() })
        .context("cannot log")?;
    let (die_at, passing, leave_out) = (args.die_at, args.passing, args.leave_out);
    let passed = AtomicU32::new(0);
    failpoint::set_handler(move |point| {
        if die_at == Some(point) && passed.fetch_add(1, Ordering::SeqCst) + 1 == passing {
            // This does not return: as with a real kill, there is no request and no cleanup.
            let _ = kill(Pid::this(), Signal::SIGKILL);
        }
        if leave_out == Some(point) { FailpointAction::Skip } else { FailpointAction::Continue }
    });
    let client = kubeconfig::client(&args.kubeconfig).await?;
    let options = Options {
        namespace: args.namespace.clone(),
        plugin_dir: args.plugins.clone(),
        scratch_dir: args.scratch.clone(),
        identity: IDENTITY.to_owned(),
        item_operation_sync_frequency: Duration::from_secs(1),
        store_validation_frequency: Duration::from_secs(5),
        // Parallel runs can fail in more ways.
        concurrent_backups: 4,
        concurrent_restores: 4,
        item_block_worker_count: 4,
        ..Options::default()
    };
    bowline_server::run(client, options, std::future::pending()).await?;
    Ok(ExitCode::SUCCESS)
}
