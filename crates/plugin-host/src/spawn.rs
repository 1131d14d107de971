//! Starts processes that die with the host, however the host ends.
//!
//! A plugin that outlived its host would continue its work unsupervised. So every plugin asks the
//! kernel for a death signal. That signal is sent when the *thread* that started the process ends,
//! not the process, so one thread that lives as long as the host starts all of them.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::sync::{OnceLock, mpsc};
use std::thread;

use nix::sys::prctl;
use nix::sys::signal::Signal;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

struct SpawnJob {
    command: Command,
    runtime: Handle,
    reply: oneshot::Sender<io::Result<Child>>,
}

/// Starts `command`, which will be killed when this process ends.
pub(crate) async fn spawn(mut command: Command) -> io::Result<Child> {
    die_with_parent(&mut command);
    let (reply, started) = oneshot::channel();
    let job = SpawnJob { command, runtime: Handle::current(), reply };
    let thread_ended = || io::Error::other("the thread that starts plugins has ended");
    spawn_thread()?.send(job).map_err(|_| thread_ended())?;
    started.await.map_err(|_| thread_ended())?
}

/// The thread that starts processes. It never ends.
fn spawn_thread() -> io::Result<&'static mpsc::Sender<SpawnJob>> {
    static STARTER: OnceLock<mpsc::Sender<SpawnJob>> = OnceLock::new();
    if let Some(starter) = STARTER.get() {
        return Ok(starter);
    }
    let (jobs, inbox) = mpsc::channel::<SpawnJob>();
    thread::Builder::new().name("plugin-starter".to_owned()).spawn(move || {
        while let Ok(SpawnJob { mut command, runtime, reply }) = inbox.recv() {
            // The runtime of the caller watches for the child's end.
            let _runtime = runtime.enter();
            // A reply without a receiver is dropped, and with it the child, which kills it.
            let _ = reply.send(command.spawn());
        }
    })?;
    // Of two threads started at once, one loses its sender and ends; it has started nothing.
    Ok(STARTER.get_or_init(|| jobs))
}

#[expect(unsafe_code, reason = "the only way to ask for a death signal in the child")]
fn die_with_parent(command: &mut Command) {
    let parent = nix::unistd::getpid();
    let ask = move || {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The host may have ended before the child could request the signal.
        if nix::unistd::getppid() == parent {
            Ok(())
        } else {
            Err(io::Error::other("the host has ended"))
        }
    };
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing
    // unless the host is gone.
    unsafe {
        command.as_std_mut().pre_exec(ask);
    }
}
