//! `bowline demo`: a private cluster with an application, to try things out.
//!
//! The steps of the demo are those of [`run_demo`], in order. Each adds its result to the outcome.

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

use self::orders::OrderDatabase;
use self::outcome::{DemoOutcome, OutcomeFile, milliseconds};
use self::restore::OriginalApplication;
use self::sample::SampleApplication;
use self::server::Server;
use self::volume::{Files, JOURNAL};
use super::{Command, install};
use crate::args::{self, ClusterArgs, InstallationArgs};
use crate::exit::{Exit, shutdown_signal};
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

/// Interval of checks that the server still runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Programs that run during the demo.
struct DemoCluster {
    // Fields are in the order in which the programs end.
    _kwok: Kwok,
    plane: ControlPlane,
    client: Client,
}

/// Programs that run at the end, in the order in which they end.
struct RunningDemo {
    _orders: Option<OrderDatabase>,
    server: Server,
    _cluster: DemoCluster,
}

/// Clients and files that the steps use.
struct DemoContext<'a> {
    client: &'a Client,
    installation: Installation,
    sample: &'a SampleApplication,
    kubeconfig: &'a Path,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let asked_to_end = shutdown_signal()?;
    tokio::pin!(asked_to_end);
    let target = args.json.as_deref().map(OutcomeFile::open).transpose()?;

    let (mut running, outcome) = tokio::select! {
        // Boxed, since the whole demo is in it.
        performed = Box::pin(run_demo(&args)) => performed?,
        exit = &mut asked_to_end => return Ok(exit),
    };
    if let Some(target) = target {
        target.write(&outcome)?;
    }
    if !args.exit {
        output::print_message("Press Ctrl-C to clean up.");
        loop {
            tokio::select! {
                _ = &mut asked_to_end => break,
                () = tokio::time::sleep(CHECK_INTERVAL) => running.server.check()?,
            }
        }
    }
    let step = Step::start("cleaning up");
    drop(running);
    step.done();
    Ok(if outcome.is_equal() { Exit::Success } else { Exit::Failed })
}

/// Steps of the demo, in order.
async fn run_demo(args: &Args) -> anyhow::Result<(RunningDemo, DemoOutcome)> {
    let bed = match &args.dir {
        Some(dir) => Bed::below(dir)?,
        None => Bed::new()?,
    };
    locate_programs(args).await?;
    let plugin = plugin::locate().await?;
    let sample = SampleApplication::new(&bed)?;
    let cluster = start_cluster(args, &bed, &sample).await?;
    let client = &cluster.client;

    let step = Step::start("installing the CRDs");
    install::apply(client, &bowline_api::crds::all(), false).await?;
    step.done();

    let step = Step::start("creating the sample application");
    sample.create(client).await?;
    let orders = OrderDatabase::start(&sample.volume().join(JOURNAL), sample.requests())?;
    step.done();
    output::print_data(sample.summary(client).await?)?;

    let step = Step::start("starting a server with a backup directory and a volume plugin");
    let mut server = Server::start(&cluster.plane, client, &sample, plugin).await?;
    step.done();

    let context = DemoContext {
        client,
        installation: installation(&cluster.plane).await?,
        sample: &sample,
        kubeconfig: cluster.plane.kubeconfig(),
    };
    let backup = backup::run_backup(&context, &mut server, args.kill_server).await?;
    output::print_data(backup::summary(&server, &backup)?)?;

    let hold = orders.last_hold().context("the hooks did not freeze the database")?;
    orders.end()?;
    output::print_data(backup::orders_summary(hold, &read_files(&sample.volume(), None).await?))?;
    let original = OriginalApplication {
        objects: sample.read(client).await?,
        files: read_files(&sample.volume(), Some(hold.bytes)).await?,
        hold,
    };
    let comparison = restore::restore_and_compare(&context, &mut server, &original).await?;
    let outcome = DemoOutcome {
        files_equal: comparison.files_equal,
        objects_equal: comparison.objects_equal,
        freeze_window_ms: backup.freeze_window_ms(),
        upload_ms: milliseconds(backup.upload),
        held_ms: milliseconds(hold.duration),
        files: original.files.count(),
        bytes: original.files.bytes(),
        objects: original.objects.len(),
        server_kills: backup.kills,
    };

    // The application continues with the restored files.
    let orders = if outcome.is_equal() {
        let journal = sample::volume_path(client).await?.join(JOURNAL);
        Some(OrderDatabase::start(&journal, sample.requests())?)
    } else {
        None
    };
    if !args.exit {
        output::print_data(connection_help(&cluster.plane).await?)?;
    }
    drop(context);
    // The server may have been killed since it was last needed.
    server.check()?;
    Ok((RunningDemo { _orders: orders, server, _cluster: cluster }, outcome))
}

/// First the builds, which take minutes the first time and show their own progress.
async fn locate_programs(args: &Args) -> anyhow::Result<()> {
    if let Some(port) = args.port {
        port::check_free(port).map_err(|reason| Error::WantedPort { port, reason })?;
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

async fn start_cluster(
    args: &Args,
    bed: &Bed,
    sample: &SampleApplication,
) -> anyhow::Result<DemoCluster> {
    let step = Step::start("starting a control plane");
    let plane = ControlPlane::start(bed, Options { port: args.port }).await?;
    let kwok = Kwok::start_executing(&plane, sample.pod()).await?;
    let client = plane.client().await?;
    step.done();
    Ok(DemoCluster { _kwok: kwok, plane, client })
}

/// Installation of the demo, whatever cluster and namespace the user has configured.
async fn installation(plane: &ControlPlane) -> anyhow::Result<Installation> {
    let kubeconfig = Some(plane.kubeconfig().to_owned());
    let cluster = ClusterArgs { kubeconfig, kubecontext: None };
    let namespace = Some(DEFAULT_NAMESPACE.to_owned());
    Installation::connect(&InstallationArgs { namespace, cluster }).await
}

/// Runs a command, as a user would.
async fn run_command(context: &DemoContext<'_>, words: &[&str]) -> anyhow::Result<()> {
    output::print_message(format_args!("running `bowline {}` …", words.join(" ")));
    let installation_flags = ["--namespace", DEFAULT_NAMESPACE, "--kubeconfig"];
    let words = ["bowline"].iter().chain(words).chain(&installation_flags);
    let mut words: Vec<OsString> = words.map(OsString::from).collect();
    words.push(context.kubeconfig.into());
    let exit = match args::parse(words) {
        // Boxed, since the future is large.
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

/// Reads all files of a volume, which takes a moment.
async fn read_files(volume: &Path, journal: Option<u64>) -> anyhow::Result<Files> {
    let volume = volume.to_owned();
    tokio::task::spawn_blocking(move || Files::read(&volume, journal)).await?
}

async fn connection_help(plane: &ControlPlane) -> anyhow::Result<String> {
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
