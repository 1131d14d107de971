//! A cluster and an S3 server in which the commands of the pages run, each page with its own home directory.
//!
//! A script in `world/` with the name of the page sets up what the page assumes: `begin` before the first block,
//! `before_2` before the second block of commands, `end` after the last one.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bowline_api::crds;
use bowline_testbed::apply::apply;
use bowline_testbed::kwok::Kwok;
use bowline_testbed::program::{self, Program};
use bowline_testbed::s3::S3;
use bowline_testbed::{Bed, ControlPlane, Options, fixture, leftover, velero};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio::runtime::Runtime;

use super::output_match;
use super::page::{self, Block, CONSOLE_LANGUAGE, Page, Step};
use crate::cluster::full_account;

/// Set on all that is started for a page, so that it can be found and ended.
const MARK_VARIABLE: &str = "BOWLINE_DOCS_MARK";
/// Time limit of a command. One of them builds a plugin.
const TIMEOUT: Duration = Duration::from_mins(30);
/// Time for which a command is repeated until its output is as on the page.
const RETRY_TIMEOUT: Duration = Duration::from_mins(2);
/// File with the current directory of the reader.
const FOLDER_FILE: &str = ".folder";
/// Time limit for background processes to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_mins(1);

pub(super) struct World {
    kubeconfig: PathBuf,
    server: Server,
    s3_url: String,
    s3_credentials: PathBuf,
    buckets: PathBuf,
    /// The programs that pages call by their names.
    bin: tempfile::TempDir,
    plugins: [PathBuf; 4],
    // Ended in this order.
    _s3: S3,
    _kwok: Kwok,
    _plane: ControlPlane,
    _runtime: Runtime,
}

/// A server that runs without anybody typing that.
struct Server {
    /// Kubeconfig with the account of `bowline install`.
    kubeconfig: PathBuf,
    /// Rights of that account, for pages in which nothing is installed.
    roles: PathBuf,
}

/// A reader who follows a page.
struct PageRunner<'a> {
    world: &'a World,
    page: &'a Page,
    home: tempfile::TempDir,
}

struct Ended {
    code: Option<i32>,
    output: String,
}

impl World {
    pub(super) fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let bed = Bed::new().unwrap();
        let start = async {
            let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
            let client = plane.client().await.unwrap();
            for definition in crds::all() {
                apply(&client, serde_json::to_value(definition).unwrap()).await.unwrap();
            }
            let kwok = Kwok::start(&plane).await.unwrap();
            let s3 = S3::start(&bed).await.unwrap();
            let wanted = [
                Program::Kubectl,
                Program::VeleroPluginForAws,
                Program::SnapshotterV2,
                Program::FixturePlugins,
            ];
            let programs = program::locate(wanted).await.unwrap();
            let local_volume = fixture::local_volume().await.unwrap();
            (plane, kwok, s3, programs, local_volume)
        };
        let (plane, kwok, s3, [kubectl, aws, snapshotter, fixtures], local_volume) =
            runtime.block_on(start);
        let bin = tempfile::tempdir().unwrap();
        let link = |to: &Path, name: &str| {
            std::os::unix::fs::symlink(to, bin.path().join(name)).unwrap();
        };
        link(Path::new(env!("CARGO_BIN_EXE_bowline")), "bowline");
        link(&kubectl, "kubectl");
        let account = full_account(velero::NAMESPACE);
        let roles = bed.dir().join("roles.json");
        let list = json!({"apiVersion": "v1", "kind": "List", "items": account.role_objects()});
        std::fs::write(&roles, list.to_string()).unwrap();
        let server = Server { kubeconfig: plane.kubeconfig_here(&account.user).unwrap(), roles };
        let world = Self {
            server,
            kubeconfig: plane.kubeconfig().to_owned(),
            s3_url: s3.url(),
            s3_credentials: s3.credentials_file().to_owned(),
            buckets: s3.create_bucket("backups").unwrap().parent().unwrap().to_owned(),
            bin,
            plugins: [aws, snapshotter, fixtures, local_volume],
            _s3: s3,
            _kwok: kwok,
            _plane: plane,
            _runtime: runtime,
        };
        let empty_page = Page::read("none", "");
        PageRunner::new(&world, &empty_page).hook("once").unwrap();
        world
    }

    /// Runs the commands of a page. Returns the differences from the page.
    pub(super) fn follow(&self, page: &Page) -> Result<(), String> {
        let typed = |block: &&Block| block.language == CONSOLE_LANGUAGE;
        if page.blocks.iter().filter(typed).all(|block| block.not_run.is_some()) {
            return Ok(());
        }
        let reader = PageRunner::new(self, page);
        reader.hook("reset")?;
        reader.hook("begin")?;
        for block in &page.blocks {
            reader.try_objects(block)?;
        }
        for (number, block) in (1..).zip(page.blocks.iter().filter(typed)) {
            reader.hook(&format!("before_{number}"))?;
            reader.follow(block)?;
        }
        reader.hook("end")
    }
}

impl<'a> PageRunner<'a> {
    fn new(world: &'a World, page: &'a Page) -> Self {
        Self { world, page, home: tempfile::tempdir().unwrap() }
    }

    /// Types the commands of a block.
    fn follow(&self, block: &Block) -> Result<(), String> {
        if block.not_run.is_some() {
            return Ok(());
        }
        let steps = block.steps();
        for (number, step) in (1..).zip(&steps) {
            let code = if number == steps.len() { block.code } else { 0 };
            self.run_step(step, code)?;
        }
        Ok(())
    }

    /// Runs a command, and compares its exit code and output.
    fn run_step(&self, step: &Step, code: i32) -> Result<(), String> {
        let deadline = Instant::now() + RETRY_TIMEOUT;
        loop {
            let ended = self.shell(&shell_text(&step.command));
            let problem = if ended.code != Some(code) {
                Some(format!("ended with {:?} and not {code}", ended.code))
            } else if step.shown.is_empty() {
                None
            } else {
                output_match::compare(&step.shown, &ended.output).err()
            };
            match problem {
                None => return Ok(()),
                Some(_) if is_read_only(&step.command) && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(500));
                }
                Some(problem) => {
                    let (page, line, command) = (&self.page.name, step.line, &step.command);
                    let (output, log) = (ended.output, self.log());
                    return Err(format!("{page}:{line}: {command}\n{problem}\n{output}{log}"));
                }
            }
        }
    }

    /// Shows objects that a page has in YAML to the API server.
    fn try_objects(&self, block: &Block) -> Result<(), String> {
        let starts = |word: &str| block.lines.iter().any(|line| line.starts_with(word));
        if block.language != "yaml" || !starts("apiVersion:") || !starts("kind:") {
            return Ok(());
        }
        let file = self.home.path().join(".object.yaml");
        std::fs::write(&file, block.lines.join("\n")).unwrap();
        let ended = self.shell(&format!("kubectl apply --dry-run=server -f {}", file.display()));
        let position = format!("{}:{}", self.page.name, block.line);
        (ended.code == Some(0)).then_some(()).ok_or_else(|| format!("{position}: {}", ended.output))
    }

    /// Runs a function of the scripts, if it exists.
    fn hook(&self, function: &str) -> Result<(), String> {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/docs/world");
        let page = Path::new(&self.page.name).file_stem().unwrap_or_default();
        let page = scripts.join(page).with_extension("sh");
        let ended = self.shell(&format!(
            "set -euo pipefail\ncd\nsource {}/common.sh\nif test -f {page}; then source {page}; fi\n\
             if declare -F {function} >/dev/null; then {function}; fi",
            scripts.display(),
            page = page.display(),
        ));
        let name = &self.page.name;
        let problem =
            || format!("{name}: {function}: {:?}\n{}{}", ended.code, ended.output, self.log());
        (ended.code == Some(0)).then_some(()).ok_or_else(problem)
    }

    /// The last lines of the server's log.
    fn log(&self) -> String {
        let log = std::fs::read_to_string(self.home.path().join("server.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(15)..].join("\n");
        if last.is_empty() { last } else { format!("\nthe server:\n{last}") }
    }

    /// The current directory of the reader.
    fn folder(&self) -> PathBuf {
        let recorded =
            std::fs::read_to_string(self.home.path().join(FOLDER_FILE)).unwrap_or_default();
        if recorded.is_empty() { self.home.path().to_owned() } else { recorded.trim_end().into() }
    }

    /// Runs a command in a shell. Its background processes continue.
    fn shell(&self, text: &str) -> Ended {
        let (world, home) = (self.world, self.home.path());
        let output = home.join(".said");
        let file = File::create(&output).unwrap();
        let [aws, snapshotter, fixtures, local_volume] = &world.plugins;
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{}/.local/bin:{path}", world.bin.path().display(), home.display());
        let mut command = Command::new("bash");
        command
            .args(["-c", text])
            .current_dir(self.folder())
            .env("PATH", path)
            .env("HOME", home)
            .env("TMPDIR", home)
            .env("KUBECONFIG", &world.kubeconfig)
            .env("SERVER_KUBECONFIG", &world.server.kubeconfig)
            .env("SERVER_ROLES", &world.server.roles)
            .env(MARK_VARIABLE, home)
            .env("ROOT", page::root())
            .env("S3_URL", &world.s3_url)
            .env("S3_CREDENTIALS", &world.s3_credentials)
            .env("BUCKETS", &world.buckets)
            .env("AWS_PLUGIN", aws)
            .env("SNAPSHOTTER", snapshotter)
            .env("FIXTURES", fixtures)
            .env("LOCAL_VOLUME", local_volume)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file);
        keep_toolchain(&mut command);
        for unwanted in ["VELERO_NAMESPACE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "BASH_ENV"] {
            command.env_remove(unwanted);
        }
        let mut shell = command.spawn().unwrap();
        let deadline = Instant::now() + TIMEOUT;
        let code = loop {
            match shell.try_wait().unwrap() {
                Some(status) => break status.code(),
                None if Instant::now() >= deadline => {
                    shell.kill().unwrap();
                    break shell.wait().unwrap().code();
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let bytes = std::fs::read(&output).unwrap();
        Ended { code, output: String::from_utf8_lossy(&bytes).into_owned() }
    }

    fn running(&self) -> Vec<Pid> {
        let found = leftover::processes(MARK_VARIABLE, self.home.path().to_str().unwrap());
        let number = |text: &String| text.split(' ').nth(1)?.parse().ok().map(Pid::from_raw);
        found.iter().filter_map(number).collect()
    }
}

impl Drop for PageRunner<'_> {
    /// Ends the processes that a page has left running.
    fn drop(&mut self) {
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        let mut signal = Signal::SIGTERM;
        let mut signaled = Vec::new();
        loop {
            let running = self.running();
            if running.is_empty() {
                return;
            }
            for process in running {
                if !signaled.contains(&(process, signal)) {
                    // It may be gone by now.
                    let _ = kill(process, signal);
                    signaled.push((process, signal));
                }
            }
            if Instant::now() >= deadline {
                if signal == Signal::SIGKILL {
                    return;
                }
                signal = Signal::SIGKILL;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Commands, as one shell runs them. The port for metrics may be in use on this machine: a server that is started with
/// it does not serve metrics.
fn shell_text(command: &str) -> String {
    let function = "bowline() { command bowline \"$@\" --metrics-address 0; }\n";
    let function = if command.starts_with("bowline server") { function } else { "" };
    format!("set -o pipefail\n{function}{command}\ncode=$?\npwd > ~/{FOLDER_FILE}\nexit $code")
}

/// True if a command changes nothing, so that it can be repeated until its output is as expected.
fn is_read_only(command: &str) -> bool {
    let mut words = command.split_whitespace();
    let program = words.next();
    let is_read_verb = |word: &str| ["get", "describe", "logs"].contains(&word);
    ["bowline", "kubectl"].map(Some).contains(&program) && words.any(is_read_verb)
}

/// The toolchain is not found with another home directory. Builds are cached beside those of the tests.
fn keep_toolchain(command: &mut Command) {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    for (variable, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
        let path = std::env::var_os(variable).map_or_else(|| home.join(folder), PathBuf::from);
        command.env(variable, path);
    }
    for unwanted in ["CARGO", "CARGO_MANIFEST_DIR", "CARGO_TARGET_DIR", "RUSTFLAGS"] {
        command.env_remove(unwanted);
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    command.env("TARGET", target).env("CARGO_NET_OFFLINE", "true").env("CARGO_INCREMENTAL", "0");
}
