//! Namespaces for a bed, so that a real node can run on this machine and leave no trace.
//!
//! A kubelet refuses a loopback address, writes to `/var/lib`, `/run` and `/proc/sys`, and starts containers that
//! outlive it. So its whole bed, API server included, runs in its own process, mount, network and IPC namespaces: the
//! bed may have any address and any mount there, and when the first process of the process namespace is killed, the
//! kernel kills all the others and undoes their mounts.
//!
//! # Mechanism
//! Namespaces belong to threads. One thread leaves those of this process for good and starts every process of the bed;
//! other work inside (dialling a port) runs on it as well. Sockets keep the namespace they were created in, so they can
//! be used from any thread afterwards.
//!
//! Nothing here is visible from outside: mounts are private, `/run` is fresh, `/var/lib` and `/var/log` are overlays
//! whose upper layer lies in the bed, and the kernel settings that a kubelet rewrites are files of the bed mounted over
//! the real ones.

use std::io::{self, BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::mount::MsFlags;
use nix::sched::CloneFlags;

use crate::env;

/// Address of the node inside its network namespace. It exists nowhere else.
pub const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);

/// Longest wait until the first process has prepared the namespaces.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);

/// Kernel settings that a kubelet requires, and writes for the whole machine if it can.
const KERNEL_SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// First process of the namespace. It prepares mounts and the network, prints `ready`, and then reaps orphans as an
/// init process must; a waiting shell does so. Arguments: a scratch folder in the bed, the node's address.
const FIRST_PROCESS: &str = r#"
set -e
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
for name in lib log; do
  mkdir -p "$1/var-$name/upper" "$1/var-$name/work"
  mount -t overlay overlay -o "lowerdir=/var/$name,upperdir=$1/var-$name/upper,workdir=$1/var-$name/work" "/var/$name"
done
(cd "$1/sys" && find . -type f) | while read -r setting; do
  mount --bind "$1/sys/$setting" "/proc/sys/$setting"
done
mount --make-rshared /
ip link set lo up
ip addr add "$2/32" dev lo
echo ready
while :; do sleep 3600; done
"#;

type NamespaceJob = Box<dyn FnOnce() + Send>;

/// Thread that runs in its own namespaces. Clones share the thread.
#[derive(Clone, Debug)]
pub struct Isolation {
    jobs: mpsc::Sender<NamespaceJob>,
}

/// Failure to create the namespaces.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not allowed, most often because this process is not root.
    #[error("cannot make namespaces for a real node, which needs root")]
    Unshare(#[source] io::Error),
    /// The bed lies where the node's own folders will be.
    #[error(
        "the bed {path} lies below {masked}, which a real node hides; set TMPDIR to another \
         directory"
    )]
    Masked {
        /// Folder of the bed.
        path: String,
        /// Hidden folder.
        masked: &'static str,
    },
    /// The thread or the first process could not be started.
    #[error("cannot start the first process of the namespace")]
    Start(#[source] io::Error),
    /// The first process could not prepare mounts or the network.
    #[error("cannot prepare the namespace for a real node: {0}")]
    Prepare(String),
}

impl Isolation {
    /// Creates the namespaces for the bed `id` in `dir`, with their first process running.
    pub(crate) fn enter(id: &str, dir: &Path) -> Result<Self, Error> {
        for masked in ["/run", "/var/lib", "/var/log", "/proc"] {
            if dir.starts_with(masked) {
                return Err(Error::Masked { path: dir.display().to_string(), masked });
            }
        }
        let scratch = dir.join("node");
        write_kernel_settings(&scratch).map_err(Error::Start)?;

        let mut first = Command::new("/bin/sh");
        first
            .args(["-c", FIRST_PROCESS, "bowline-node"])
            .arg(&scratch)
            .arg(NODE_ADDRESS.to_string())
            .env(env::BED_ID, id)
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());

        let (jobs, inbox) = mpsc::channel::<NamespaceJob>();
        let (report, entered) = mpsc::channel();
        thread::Builder::new()
            .name("bowline-node".to_owned())
            .spawn(move || {
                let started = unshare_namespaces()
                    .and_then(|()| wait_until_ready(first.spawn().map_err(Error::Start)?));
                let failed = started.is_err();
                if report.send(started).is_err() || failed {
                    return;
                }
                while let Ok(job) = inbox.recv() {
                    job();
                }
            })
            .map_err(Error::Start)?;
        let late = |_| Error::Prepare("the namespaces were not ready in time".to_owned());
        entered.recv_timeout(PREPARE_TIMEOUT).map_err(late)??;
        Ok(Self { jobs })
    }

    /// True if this process may create namespaces, tried on a thread that ends at once.
    pub(crate) fn is_allowed() -> bool {
        thread::spawn(|| unshare_namespaces().is_ok()).join().unwrap_or(false)
    }

    /// Runs `work` inside the namespaces and returns its result. For short work only: the whole bed waits for it.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (result, wait) = mpsc::channel();
        let thread_ended = || io::Error::other("the thread of the namespace has ended");
        let job = Box::new(move || drop(result.send(work())));
        self.jobs.send(job).map_err(|_| thread_ended())?;
        wait.recv().map_err(|_| thread_ended())?
    }

    /// Connects to a port on the namespace's own loopback address.
    pub fn connect(&self, port: u16) -> io::Result<TcpStream> {
        self.run(move || TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))))
    }
}

/// Moves the calling thread out of this process's namespaces. Its mounts stop propagating at once.
fn unshare_namespaces() -> Result<(), Error> {
    let unshare_error = |errno: nix::Error| Error::Unshare(errno.into());
    let flags = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC;
    nix::sched::unshare(flags).map_err(unshare_error)?;
    let none = None::<&str>;
    nix::mount::mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(unshare_error)
}

/// Waits until the first process reports `ready`. This process does not reap it: it lives until the janitor kills it.
fn wait_until_ready(mut first: std::process::Child) -> Result<(), Error> {
    let mut ready_line = String::new();
    if let Some(stdout) = first.stdout.take() {
        BufReader::new(stdout).read_line(&mut ready_line).map_err(Error::Start)?;
    }
    if ready_line.trim() == "ready" {
        return Ok(());
    }
    let output = first.wait_with_output().map_err(Error::Start)?;
    Err(Error::Prepare(String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ")))
}

fn write_kernel_settings(scratch: &Path) -> io::Result<()> {
    for (setting, value) in KERNEL_SETTINGS {
        let real = Path::new("/proc/sys").join(setting);
        if !real.exists() {
            continue;
        }
        let file = scratch.join("sys").join(setting);
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(file, format!("{value}\n"))?;
    }
    Ok(())
}
