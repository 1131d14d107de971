//! Two servers as processes, and the Lease that selects the active one.

use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus, Stdio};

use bowline_testbed::{Bed, eventually_blocking};
use k8s_openapi::api::coordination::v1::Lease;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::TIMEOUT;
use super::recording_proxy::RecordingProxy;
use crate::cluster::{TestEnv, cluster};

/// Short, so that thirty of them fit into the test; and long enough for a machine that is busy.
const LEASE_FLAGS: [&str; 3] = [
    "--leader-elect-lease-duration=3s",
    "--leader-elect-renew-deadline=2s",
    "--leader-elect-retry-period=250ms",
];
/// End of a server that cannot continue.
const CANNOT_RUN: i32 = 2;

/// A server. It is killed when this is dropped.
pub(crate) struct Server {
    pub(crate) identity: &'static str,
    pub(crate) proxy: RecordingProxy,
    child: Child,
}

/// Both.
pub(crate) struct ServerPair<'a> {
    env: &'a TestEnv,
    bed: &'a Bed,
    pub(crate) servers: [Server; 2],
    /// Number of times that a server lost the Lease undisturbed, as on a busy machine.
    pub(crate) lost_leases: usize,
}

impl Server {
    pub(crate) fn signal(&self, signal: Signal) {
        killpg(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Kills it, as nothing in it can notice. Returns whether it had not ended by itself, having lost the Lease.
    pub(crate) fn kill(&mut self) -> bool {
        self.signal(Signal::SIGKILL);
        let status = self.child.wait().unwrap();
        let was_killed = status.signal() == Some(Signal::SIGKILL as i32);
        assert!(was_killed || status.code() == Some(CANNOT_RUN), "it ended by itself: {status}");
        was_killed
    }

    /// Waits for it to end by itself, as one does that has lost the Lease.
    pub(crate) fn wait_for_end(&mut self) {
        let status: ExitStatus =
            eventually_blocking("a server that was deposed ends", TIMEOUT, || {
                self.child.try_wait().unwrap()
            });
        assert_eq!(status.code(), Some(CANNOT_RUN), "{}: {status}", self.identity);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = killpg(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

impl<'a> ServerPair<'a> {
    pub(crate) fn start(env: &'a TestEnv, bed: &'a Bed) -> Self {
        let servers = ["left", "right"].map(|identity| {
            let proxy = RecordingProxy::start();
            let child = spawn(env, bed, identity, &proxy);
            Server { identity, proxy, child }
        });
        Self { env, bed, servers, lost_leases: 0 }
    }

    /// Indexes of the active server and of the standby, if both run.
    pub(crate) fn active_and_standby(&mut self) -> (usize, usize) {
        eventually_blocking("a server that runs has the Lease", TIMEOUT, || {
            self.restart_lost();
            let holder = holder(self.env)?;
            let active = self.servers.iter().position(|server| server.identity == holder)?;
            Some((active, 1 - active))
        })
    }

    /// Waits until a server has the Lease.
    pub(crate) fn wait_until_active(&self, number: usize) {
        let identity = self.servers[number].identity;
        eventually_blocking("the other server leads", TIMEOUT, || {
            (holder(self.env).as_deref() == Some(identity)).then_some(())
        });
    }

    /// True if a server runs and holds the Lease.
    pub(crate) fn is_active(&mut self, number: usize) -> bool {
        let server = &mut self.servers[number];
        server.child.try_wait().unwrap().is_none()
            && holder(self.env).as_deref() == Some(server.identity)
    }

    /// Starts a server that has ended.
    pub(crate) fn restart(&mut self, number: usize) {
        let server = &mut self.servers[number];
        server.child = spawn(self.env, self.bed, server.identity, &server.proxy);
    }

    fn restart_lost(&mut self) {
        for number in 0..self.servers.len() {
            let Some(status) = self.servers[number].child.try_wait().unwrap() else { continue };
            assert_eq!(status.code(), Some(CANNOT_RUN), "nobody disturbed it: {status}");
            self.lost_leases += 1;
            self.restart(number);
        }
    }
}

fn spawn(env: &TestEnv, bed: &Bed, identity: &str, proxy: &RecordingProxy) -> Child {
    let mut command = env.server(&["--plugin-dir=/nowhere", "--metrics-address=0"]);
    command.args(LEASE_FLAGS).args(["--identity", identity, "--log-level=debug"]);
    command.env("HTTP_PROXY", proxy.url()).env_remove("NO_PROXY").env_remove("no_proxy");
    let log = bed.subdir("log").unwrap().join(format!("{identity}.log"));
    let log = File::options().create(true).append(true).open(log).unwrap();
    // In a process group of its own, and gone with the bed at the latest.
    bed.spawn({
        command.stdout(Stdio::null()).stderr(log);
        command
    })
    .unwrap()
}

fn holder(env: &TestEnv) -> Option<String> {
    let api = env.api::<Lease>();
    let lease = cluster().runtime.block_on(api.get_opt(bowline_server::lease::NAME)).unwrap()?;
    lease.spec?.holder_identity
}
