//! `bowline demo`: a cluster of its own, with an application in it, to try things on.
//!
//! The acts of the demo are steps of [`perform`], in order. Each adds what it shows to the story.

mod backup;
mod orders;
mod outcome;
mod plugin;
mod restore;
mod sample;
mod server;
mod volume;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bowline_api::DEFAULT_NAMESPACE;
use bowline_testbed::program::{self, Program};
use bowline_testbed::{Bed, ControlPlane, Error, Kwok, Options, port};
use kube::Client;

use self::orders::Orders;
use self::outcome::{Outcome, Target, milliseconds};
use self::restore::Before;
use self::sample::Sample;
use self::server::Server;
use self::volume::{Files, JOURNAL};
use super::{Command, install};
use crate::args::{self, ClusterArgs, InstallationArgs};
use crate::exit::{Exit, until_asked_to_end};
use crate::installation::Installation;
use crate::output::{self, Step};

/// Back up, destroy and restore a sample application in a private Kubernetes control plane
///
/// The application has a volume with real files and is frozen by hooks only while a snapshot is
/// taken; the upload runs afterwards. The restored objects and files are compared with the
/// originals. Exits with 1 unless all of them are equal.
///
/// Everything runs on this machine, listens on the loopback address only and is removed when the
/// command ends, on Ctrl-C at the latest. The first run builds the required programs with Go, which
/// takes minutes; they are kept in the user's cache.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Clean up and exit as soon as the demo is complete
    #[arg(long)]
    exit: bool,

    /// Kill the server with SIGKILL during the upload and let another one resume the backup
    #[arg(long)]
    kill_server: bool,

    /// File for the results: equality of files and objects, freeze time of the application, and
    /// duration of the upload
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Parent directory for the private files of the demo [default: the system's temporary
    /// directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Port of the API server on 127.0.0.1 [default: a free port]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
}

/// How often it is looked whether the server still runs.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// What is up while the demo lasts.
struct Stage {
    // In the order in which they end.
    _kwok: Kwok,
    plane: ControlPlane,
    client: Client,
}

/// What is up at the end, in the order in which it ends.
struct Up {
    _orders: Option<Orders>,
    server: Server,
    _stage: Stage,
}

/// Who the acts turn to.
struct Director<'a> {
    client: &'a Client,
    installation: Installation,
    sample: &'a Sample,
    kubeconfig: &'a Path,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let asked_to_end = until_asked_to_end()?;
    tokio::pin!(asked_to_end);
    let target = args.json.as_deref().map(Target::open).transpose()?;

    let (mut up, outcome) = tokio::select! {
        // Boxed, since all of the demo is in it.
        performed = Box::pin(perform(&args)) => performed?,
        exit = &mut asked_to_end => return Ok(exit),
    };
    if let Some(target) = target {
        target.write(&outcome)?;
    }
    if !args.exit {
        output::say("Press Ctrl-C to clean up.");
        loop {
            tokio::select! {
                _ = &mut asked_to_end => break,
                () = tokio::time::sleep(LOOK_PAUSE) => up.server.check()?,
            }
        }
    }
    let step = Step::start("cleaning up");
    drop(up);
    step.done();
    Ok(if outcome.is_equal() { Exit::Success } else { Exit::Failed })
}

/// The acts, in order.
async fn perform(args: &Args) -> anyhow::Result<(Up, Outcome)> {
    let bed = match &args.dir {
        Some(dir) => Bed::below(dir)?,
        None => Bed::new()?,
    };
    locate_programs(args).await?;
    let plugin = plugin::locate().await?;
    let sample = Sample::new(&bed)?;
    let stage = set_up(args, &bed, &sample).await?;
    let client = &stage.client;

    let step = Step::start("installing the resource definitions");
    install::apply(client, &bowline_api::crds::all(), false).await?;
    step.done();

    let step = Step::start("creating the sample application");
    sample.create(client).await?;
    let orders = Orders::start(&sample.volume().join(JOURNAL), sample.requests())?;
    step.done();
    output::data(sample.show(client).await?)?;

    let step = Step::start("starting a server with a backup directory and a volume plugin");
    let mut server = Server::start(&stage.plane, client, &sample, plugin).await?;
    step.done();

    let director = Director {
        client,
        installation: installation(&stage.plane).await?,
        sample: &sample,
        kubeconfig: stage.plane.kubeconfig(),
    };
    let taken = backup::take(&director, &mut server, args.kill_server).await?;
    output::data(backup::show(&server, &taken)?)?;

    let hold = orders.last_hold().context("the hooks did not freeze the database")?;
    orders.end()?;
    output::data(backup::show_orders(hold, &look_at(&sample.volume(), None).await?))?;
    let before = Before {
        objects: sample.read(client).await?,
        files: look_at(&sample.volume(), Some(hold.bytes)).await?,
        hold,
    };
    let verdict = restore::perform(&director, &mut server, &before).await?;
    let outcome = Outcome {
        files_equal: verdict.files_equal,
        objects_equal: verdict.objects_equal,
        freeze_window_ms: taken.freeze_window_ms(),
        upload_ms: milliseconds(taken.upload),
        held_ms: milliseconds(hold.lasted),
        files: before.files.count(),
        bytes: before.files.bytes(),
        objects: before.objects.len(),
        server_kills: taken.kills,
    };

    // The application goes on with what came back.
    let orders = if outcome.is_equal() {
        let journal = sample::where_volume_is(client).await?.join(JOURNAL);
        Some(Orders::start(&journal, sample.requests())?)
    } else {
        None
    };
    if !args.exit {
        output::data(how_to_reach(&stage.plane).await?)?;
    }
    drop(director);
    // It may have been killed since it was last needed.
    server.check()?;
    Ok((Up { _orders: orders, server, _stage: stage }, outcome))
}

/// First what takes minutes the first time, and tells its own progress.
async fn locate_programs(args: &Args) -> anyhow::Result<()> {
    if let Some(port) = args.port {
        port::check(port).map_err(|reason| Error::WantedPort { port, reason })?;
    }
    program::locate([
        Program::Etcd,
        Program::ApiServer,
        Program::ControllerManager,
        Program::Scheduler,
        Program::Kubectl,
        Program::Kwok,
    ])
    .await?;
    Ok(())
}

async fn set_up(args: &Args, bed: &Bed, sample: &Sample) -> anyhow::Result<Stage> {
    let step = Step::start("starting a control plane");
    let plane = ControlPlane::start(bed, Options { port: args.port }).await?;
    let kwok = Kwok::start_executing(&plane, sample.pod()).await?;
    let client = plane.client().await?;
    step.done();
    Ok(Stage { _kwok: kwok, plane, client })
}

/// The installation of the demo, whatever cluster and namespace are the user's own.
async fn installation(plane: &ControlPlane) -> anyhow::Result<Installation> {
    let kubeconfig = Some(plane.kubeconfig().to_owned());
    let cluster = ClusterArgs { kubeconfig, kubecontext: None };
    let namespace = Some(DEFAULT_NAMESPACE.to_owned());
    Installation::connect(&InstallationArgs { namespace, cluster }).await
}

/// Runs a command, as a user would.
async fn ask(director: &Director<'_>, words: &[&str]) -> anyhow::Result<()> {
    output::say(format_args!("running `bowline {}` …", words.join(" ")));
    let ours = ["--namespace", DEFAULT_NAMESPACE, "--kubeconfig"];
    let words = ["bowline"].iter().chain(words).chain(&ours);
    let mut words: Vec<OsString> = words.map(OsString::from).collect();
    words.push(director.kubeconfig.into());
    let exit = match args::parse(words) {
        // Boxed, since all that they need goes through here.
        Ok(args::Args { command: Command::Backup(command) }) => {
            Box::pin(super::backup::run(command)).await?
        }
        Ok(args::Args { command: Command::Restore(command) }) => {
            Box::pin(super::restore::run(command)).await?
        }
        _ => bail!("no such command"),
    };
    if exit != Exit::Success {
        bail!("the command failed");
    }
    Ok(())
}

/// Looks at all files of a volume, which takes a moment.
async fn look_at(volume: &Path, journal: Option<u64>) -> anyhow::Result<Files> {
    let volume = volume.to_owned();
    tokio::task::spawn_blocking(move || Files::of(&volume, journal)).await?
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
         bowline backup create mine --include-namespaces shop,shop-data --wait\n  \
         kubectl get backups.velero.io -A\n  \
         kubectl get volumepluginbackups -A\n\n\
         The pods are simulated: no containers run, and they have no logs.\n",
        plane.kubeconfig().display(),
        kubectl.display(),
        std::env::current_exe().unwrap_or_else(|_| "bowline".into()).display(),
    ))
}
