//! `bowline demo`: a cluster of its own, with an application in it, to try things on.
//!
//! The acts of the demo are steps of [`perform`], in order. Each adds what it shows to the story.

mod backup;
mod restore;
mod sample;

use std::path::PathBuf;

use bowline_testbed::program::{self, Program};
use bowline_testbed::{Bed, ControlPlane, Error, Kwok, Options, port};
use kube::Client;

use super::install;
use crate::exit::{Exit, until_asked_to_end};
use crate::output::{self, Step};

/// Back up, destroy and restore a sample application, in a private Kubernetes control plane
///
/// What was restored is compared with what there was. Exits with 1 unless all objects are equal.
///
/// Everything runs on this machine, listens on the loopback address only and goes away with this
/// command, on Ctrl-C at the latest. The first run builds the programs it needs with Go, which
/// takes minutes; they are kept in the user's cache.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Take everything down as soon as it has been shown
    #[arg(long)]
    exit: bool,

    /// Put the private folder of the demo below this one [default: the system's temporary folder]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,

    /// The port of the API server on 127.0.0.1 [default: a free one]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
}

/// What is up while the demo lasts.
struct Stage {
    // In the order in which they end.
    _kwok: Kwok,
    plane: ControlPlane,
    client: Client,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let asked_to_end = until_asked_to_end()?;
    tokio::pin!(asked_to_end);

    let (up, exit) = tokio::select! {
        performed = perform(&args) => performed?,
        exit = &mut asked_to_end => return Ok(exit),
    };
    if !args.exit {
        output::say("Press Ctrl-C to take it all down.");
        asked_to_end.await;
    }
    let step = Step::start("taking everything down");
    drop(up);
    step.done();
    Ok(exit)
}

/// The acts, in order. What is up at the end comes back in the order in which it ends, and with it how
/// the acts turned out.
async fn perform(args: &Args) -> anyhow::Result<((backup::Server, Stage), Exit)> {
    let stage = set_up(args).await?;

    let step = Step::start("installing the resource definitions");
    install::apply(&stage.client, &bowline_api::crds::all(), false).await?;
    step.done();

    let step = Step::start("creating the sample application");
    sample::create(&stage.client).await?;
    step.done();

    output::data(sample::show(&stage.client).await?)?;

    let step = Step::start("starting a server with a folder for backups");
    let server = backup::Server::start(&stage.plane, &stage.client).await?;
    step.done();

    let step = Step::start("backing up the sample application");
    let taken = server.back_up(&stage.client).await?;
    step.done();
    output::data(backup::show(&stage.plane, &taken)?)?;

    let exit = restore::perform(&stage.plane, &stage.client, &server).await?;
    if !args.exit {
        output::data(how_to_reach(&stage.plane).await?)?;
    }
    Ok(((server, stage), exit))
}

async fn set_up(args: &Args) -> anyhow::Result<Stage> {
    let bed = match &args.dir {
        Some(dir) => Bed::below(dir)?,
        None => Bed::new()?,
    };
    if let Some(port) = args.port {
        port::check(port).map_err(|reason| Error::WantedPort { port, reason })?;
    }
    // First what takes minutes the first time, and tells its own progress.
    program::locate([
        Program::Etcd,
        Program::ApiServer,
        Program::ControllerManager,
        Program::Scheduler,
        Program::Kubectl,
        Program::Kwok,
    ])
    .await?;
    let step = Step::start("starting a control plane");
    let plane = ControlPlane::start(&bed, Options { port: args.port }).await?;
    let kwok = Kwok::start(&plane).await?;
    let client = plane.client().await?;
    step.done();
    Ok(Stage { _kwok: kwok, plane, client })
}

async fn how_to_reach(plane: &ControlPlane) -> anyhow::Result<String> {
    let [kubectl] = program::locate([Program::Kubectl]).await?;
    Ok(format!(
        "\nTo look around from another terminal:\n\n  \
         export KUBECONFIG='{}'\n  \
         alias kubectl='{}'\n  \
         kubectl get pods -A\n  \
         alias bowline='{}'\n  \
         bowline backup describe demo --details\n  \
         bowline backup logs demo\n  \
         bowline restore describe demo --details\n  \
         bowline backup create mine --include-namespaces shop --wait\n  \
         kubectl get backups.velero.io -A\n\n\
         The pods run in name only, on a node that is not there: they have no logs.\n",
        plane.kubeconfig().display(),
        kubectl.display(),
        std::env::current_exe().unwrap_or_else(|_| "bowline".into()).display(),
    ))
}
