//! A cluster with a bucket, on which Velero and Bowline run in turn.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bowline_testbed::apply::apply;
use bowline_testbed::program::{self, Program};
use bowline_testbed::{Bed, ControlPlane, Options, S3, Velero, eventually_blocking, velero};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::bowline::{CommandResult, World};
use crate::cluster::service_account;

/// Time limit of a step. The machine may be busy with a compiler.
const TIMEOUT: Duration = Duration::from_mins(5);

/// The cluster, the bucket, and the plugins that both servers have.
pub(crate) struct MigrationEnv {
    pub(crate) plane: ControlPlane,
    pub(crate) s3: S3,
    pub(crate) client: Client,
    pub(crate) world: World,
    pub(crate) plugins: PathBuf,
    pub(crate) bed: Bed,
    pub(crate) runtime: Runtime,
}

impl MigrationEnv {
    /// Velero's definitions are installed, and no server runs.
    pub(crate) fn start(plugins: &[Program]) -> Self {
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
        let env = Self { plane, s3, client, world: World::new(), plugins: folder, bed, runtime };
        let definitions = env.bed.dir().join("definitions.yaml");
        std::fs::write(&definitions, env.runtime.block_on(Velero::crds()).unwrap()).unwrap();
        env.kubectl(&["apply", "--server-side", "-f", definitions.to_str().unwrap()]);
        env
    }

    pub(crate) fn apply(&self, object: Value) {
        self.runtime.block_on(apply(&self.client, object)).unwrap();
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        let ended = self.runtime.block_on(async {
            self.plane.kubectl().await.unwrap().args(arguments).output().await.unwrap()
        });
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{arguments:?}: {text}{stderr}");
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

    /// Our server as a process, with the same plugins and credentials, and the permissions of an installed server.
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

    /// Log of our server.
    fn log(&self) -> PathBuf {
        self.bed.dir().join("bowline.log")
    }

    /// Our command line.
    pub(crate) fn bowline(&self, arguments: &[&str]) -> Command {
        let mut command = self.world.bowline(arguments);
        set_cluster_env(&mut command, &self.plane, self.bed.dir());
        command
    }

    /// Runs our command line to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> CommandResult {
        World::run_command(&mut self.bowline(arguments))
    }

    /// Runs our command line, which must succeed, and returns its output.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments);
        assert_eq!(
            ended.code,
            Some(0),
            "{arguments:?}: {}{}\n{}",
            ended.stdout,
            ended.stderr,
            self.log_tail()
        );
        ended.stdout
    }

    /// The end of our server's log, for failures.
    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Waits for something; the log of our server says why it does not come.
    pub(crate) fn eventually<T>(&self, what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
        eventually_blocking(what, TIMEOUT, || poll().ok_or_else(|| self.log_tail()))
    }

    /// Runs Velero's command line, which must succeed, and returns its output.
    pub(crate) fn velero(&self, running: &Velero, arguments: &[&str]) -> String {
        let ended =
            self.runtime.block_on(async { running.command().args(arguments).output().await });
        let ended = ended.unwrap();
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{arguments:?}: {text}{stderr}");
        text
    }
}

/// Settings of this machine's user are ignored.
pub(crate) fn set_cluster_env(command: &mut Command, plane: &ControlPlane, home: &Path) {
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
    pub(crate) fn stop(mut self, env: &MigrationEnv) {
        assert_eq!(self.0.try_wait().unwrap(), None, "it has ended: {}", env.log_tail());
        kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM).unwrap();
        let ended = env.eventually("our server has ended", || self.0.try_wait().unwrap());
        assert_eq!(ended.code(), Some(0), "{}", env.log_tail());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
