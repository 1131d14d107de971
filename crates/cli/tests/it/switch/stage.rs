//! A cluster with a bucket, on which Velero and Bowline take turns.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bowline_testbed::apply::apply;
use bowline_testbed::program::{self, Program};
use bowline_testbed::{Bed, ControlPlane, Options, S3, Velero, velero};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::bowline::{Ended, World};
use crate::cluster::service_account;

/// How long anything may take. The machine may be compiling beside us.
const LIMIT: Duration = Duration::from_mins(5);

/// The cluster, the bucket, and the plugins that both servers have.
pub(crate) struct Stage {
    pub(crate) plane: ControlPlane,
    pub(crate) s3: S3,
    pub(crate) client: Client,
    pub(crate) world: World,
    pub(crate) plugins: PathBuf,
    pub(crate) bed: Bed,
    pub(crate) runtime: Runtime,
}

impl Stage {
    /// Velero's definitions are installed, and nobody runs.
    pub(crate) fn set(plugins: &[Program]) -> Self {
        let runtime = Runtime::new().unwrap();
        let bed = Bed::new().unwrap();
        let plane = runtime.block_on(ControlPlane::start(&bed, Options::default())).unwrap();
        let s3 = runtime.block_on(S3::start(&bed)).unwrap();
        let client = runtime.block_on(plane.client()).unwrap();
        let folder = bed.subdir("plugins").unwrap();
        for plugin in plugins {
            let [binary] = runtime.block_on(program::locate([*plugin])).unwrap();
            symlink(binary, folder.join(plugin.file_name())).unwrap();
        }
        let stage = Self { plane, s3, client, world: World::new(), plugins: folder, bed, runtime };
        let definitions = stage.bed.dir().join("definitions.yaml");
        std::fs::write(&definitions, stage.runtime.block_on(Velero::crds()).unwrap()).unwrap();
        stage.kubectl(&["apply", "--server-side", "-f", definitions.to_str().unwrap()]);
        stage
    }

    pub(crate) fn apply(&self, object: Value) {
        self.runtime.block_on(apply(&self.client, object)).unwrap();
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        let ended = self.runtime.block_on(async {
            self.plane.kubectl().await.unwrap().args(arguments).output().await.unwrap()
        });
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{arguments:?}: {text}{said}");
        text
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), velero::NAMESPACE)
    }

    /// Velero, with the plugins of this stage.
    pub(crate) fn start_velero(&self, flags: &[&str]) -> Velero {
        let plugins = format!("--plugin-dir={}", self.plugins.display());
        let mut arguments: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        arguments.push(plugins);
        let options = velero::Options { arguments, ..velero::Options::default() };
        self.runtime.block_on(Velero::start(&self.plane, &self.s3, options)).unwrap()
    }

    /// Our server as a process, with the same plugins and credentials, and with the rights of one that is installed.
    pub(crate) fn start_bowline(&self, flags: &[String]) -> Server {
        let mut command = self.bowline(&["server"]);
        let account = service_account(velero::NAMESPACE);
        let scratch = self.bed.subdir("scratch").unwrap();
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        command
            .arg(format!("--plugin-dir={}", self.plugins.display()))
            .args(flags)
            .env("KUBECONFIG", self.plane.kubeconfig_here(&account).unwrap())
            .env("AWS_SHARED_CREDENTIALS_FILE", self.s3.credentials_file())
            .env("VELERO_SCRATCH_DIR", scratch)
            .stdout(Stdio::null())
            .stderr(log);
        Server(command.spawn().unwrap())
    }

    /// What our server has logged.
    fn log(&self) -> PathBuf {
        self.bed.dir().join("bowline.log")
    }

    /// Our command line.
    pub(crate) fn bowline(&self, arguments: &[&str]) -> Command {
        let mut command = self.world.bowline(arguments);
        for_cluster(&mut command, &self.plane, self.bed.dir());
        command
    }

    /// Runs our command line to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        World::end_of(&mut self.bowline(arguments))
    }

    /// Runs our command line, which must succeed, and returns what it printed.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments);
        assert_eq!(
            ended.code,
            Some(0),
            "{arguments:?}: {}{}\n{}",
            ended.stdout,
            ended.stderr,
            self.last_words()
        );
        ended.stdout
    }

    /// The end of our server's log, for failures.
    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Waits for something, but not for ever.
    pub(crate) fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(seen) = look() {
                return seen;
            }
            assert!(Instant::now() < deadline, "waited in vain: {what}\n{}", self.last_words());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Runs Velero's command line, which must succeed, and returns what it printed.
    pub(crate) fn velero(&self, running: &Velero, arguments: &[&str]) -> String {
        let ended =
            self.runtime.block_on(async { running.command().args(arguments).output().await });
        let ended = ended.unwrap();
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{arguments:?}: {text}{said}");
        text
    }
}

/// The settings of this machine's user stay out of it.
pub(crate) fn for_cluster(command: &mut Command, plane: &ControlPlane, home: &Path) {
    command
        .env("KUBECONFIG", plane.kubeconfig())
        .env("VELERO_NAMESPACE", velero::NAMESPACE)
        .env("HOME", home)
        .env_remove("AWS_PROFILE")
        .current_dir(home);
    for proxy in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"] {
        command.env_remove(proxy);
    }
}

/// A server of ours. It is killed when this is dropped.
pub(crate) struct Server(Child);

impl Server {
    /// Asks it to end, which it must do well.
    pub(crate) fn end(mut self, stage: &Stage) {
        assert_eq!(self.0.try_wait().unwrap(), None, "it has ended: {}", stage.last_words());
        kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM).unwrap();
        let ended = stage.until("our server has ended", || self.0.try_wait().unwrap());
        assert_eq!(ended.code(), Some(0), "{}", stage.last_words());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
