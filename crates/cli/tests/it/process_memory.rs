//! Memory of the server, which other processes of its user, such as plugins, cannot read.

use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use crate::bowline::World;

/// A user without rights.
const NOBODY_UID: u32 = 65534;
/// Time limit for a server to call the API server.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Owner of the `/proc` files of a server that runs as the user `nobody`. Protected files of a process belong to root.
fn environ_owner(flags: &[&str]) -> u32 {
    // Accepts the call of the server and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, called) = mpsc::channel();
    std::thread::spawn(move || {
        let call = listener.accept();
        let _ = sender.send(call);
    });
    let folder = tempfile::tempdir().unwrap();
    let public = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    public(folder.path());
    let kubeconfig = folder.path().join("kubeconfig");
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: x, users: [{{name: u, user: {{}}}}], \
         clusters: [{{name: c, cluster: {{server: \"http://{address}\"}}}}], \
         contexts: [{{name: x, context: {{cluster: c, user: u}}}}]}}"
    );
    std::fs::write(&kubeconfig, text).unwrap();
    public(&kubeconfig);
    let world = World::new();
    let mut command = world.bowline(&[&["server", "--metrics-address=0"], flags].concat());
    let program = command.get_program().to_owned();
    command.env("KUBECONFIG", &kubeconfig).env("HOME", "/").current_dir("/").uid(NOBODY_UID);
    for proxy in ["HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
        command.env_remove(proxy);
    }
    let mut server = command.spawn().unwrap_or_else(|error| {
        // The build may be in a private home directory, which other users cannot enter.
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
        let copy = folder.path().join("bowline");
        std::fs::copy(&program, &copy).unwrap();
        let mut again = std::process::Command::new(copy);
        again
            .args(command.get_args())
            .env("KUBECONFIG", &kubeconfig)
            .current_dir("/")
            .uid(NOBODY_UID);
        again.spawn().unwrap()
    });
    let called = called.recv_timeout(TIMEOUT);
    let owner = std::fs::metadata(format!("/proc/{}/environ", server.id())).map(|file| file.uid());
    server.kill().unwrap();
    server.wait().unwrap();
    called.unwrap().unwrap();
    owner.unwrap()
}

#[test]
fn server_memory_is_closed_to_plugins_unless_allowed() {
    if !nix::unistd::geteuid().is_root() {
        println!("not run: only root can start a server as another user");
        return;
    }
    assert_eq!(environ_owner(&[]), 0, "whoever is the same user can read it");
    assert_eq!(environ_owner(&["--core-dumps"]), NOBODY_UID);
}
