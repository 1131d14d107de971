//! etcd, the API server, the controllers and the scheduler, with RBAC and client certificates.
//!
//! Ready means: the API server answers `/readyz`, and the controllers have created the `default` service account, so
//! that pods can be created.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client};
use parking_lot::Mutex;

use crate::forward::Forward;
use crate::pki::{Authority, Identity, SigningKey};
use crate::process::Process;
use crate::program::{self, Program};
use crate::{Bed, Error, kubeconfig, port};

/// Longest wait for a program to start. Four seconds are usual; a machine that compiles at the same time is slower.
const START_TIMEOUT: Duration = Duration::from_mins(2);

/// Options of a control plane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Port of the API server on the loopback address; a free one if not given.
    pub port: Option<u16>,
}

/// A running control plane. Dropping it ends it.
pub struct ControlPlane {
    // Fields are in the order in which the programs end.
    _scheduler: Process,
    _controller_manager: Process,
    api: ApiServer,
    authority: Authority,
    /// Kubeconfigs of users other than the administrator, by name.
    users: Mutex<BTreeMap<String, PathBuf>>,
    bed: Bed,
}

/// API server and its store, reachable from this machine.
struct ApiServer {
    // Fields are in the order in which the programs end.
    _forward: Option<Forward>,
    _process: Process,
    _etcd: Process,
    /// Port where the server runs, which may be in a network namespace.
    inner_port: u16,
    /// Port on this machine.
    port: u16,
    kubeconfig: PathBuf,
    client: Client,
}

struct Ports {
    api: u16,
    etcd: u16,
    etcd_peer: u16,
}

/// Files that the programs are configured with.
struct Pki {
    store_authority: Authority,
    store: Identity,
    authority: Authority,
    api_server: Identity,
    kubelet_client: Identity,
    front_proxy: Identity,
    admin: Identity,
    controller_manager: Identity,
    scheduler: Identity,
    service_accounts: SigningKey,
}

struct Binaries {
    etcd: PathBuf,
    api_server: PathBuf,
    controller_manager: PathBuf,
    scheduler: PathBuf,
}

impl ControlPlane {
    /// Starts a control plane in `bed` and waits until it is ready.
    pub async fn start(bed: &Bed, options: Options) -> Result<Self, Error> {
        if let Some(port) = options.port {
            port::check_free(port).map_err(|reason| Error::WantedPort { port, reason })?;
        }
        let [etcd, api_server, controller_manager, scheduler] = program::locate([
            Program::Etcd,
            Program::ApiServer,
            Program::ControllerManager,
            Program::Scheduler,
        ])
        .await?;
        let binaries = Binaries { etcd, api_server, controller_manager, scheduler };
        let dir = bed.subdir("control-plane").map_err(Error::io("create", bed.dir()))?;
        let pki = Pki::new(&dir)?;
        let api = port::with_free_ports(async |free: [u16; 3]| {
            let ports = Ports::choose(bed, options.port, free);
            ApiServer::start(bed, &dir, &binaries, &pki, ports, options.port).await
        })
        .await?;
        let (controller_manager, scheduler) =
            start_controllers(bed, &dir, &binaries, &pki, &api).await?;
        Ok(Self {
            _scheduler: scheduler,
            _controller_manager: controller_manager,
            api,
            authority: pki.authority,
            users: Mutex::default(),
            bed: bed.clone(),
        })
    }

    /// Kubeconfig of the administrator.
    pub fn kubeconfig(&self) -> &Path {
        &self.api.kubeconfig
    }

    /// Port of the API server on this machine's loopback address.
    pub fn port(&self) -> u16 {
        self.api.port
    }

    /// Bed that the control plane runs in.
    pub fn bed(&self) -> &Bed {
        &self.bed
    }

    /// Client with the rights of the administrator.
    pub async fn client(&self) -> Result<Client, Error> {
        Ok(kubeconfig::client(self.kubeconfig()).await?)
    }

    /// `kubectl` as the administrator, ready for arguments.
    pub async fn kubectl(&self) -> Result<tokio::process::Command, Error> {
        let [kubectl] = program::locate([Program::Kubectl]).await?;
        let mut command = tokio::process::Command::new(kubectl);
        command.arg("--kubeconfig").arg(self.kubeconfig()).kill_on_drop(true);
        Ok(command)
    }

    /// Kubeconfig for another user, for programs that run in the same bed; `file` names its files.
    pub fn kubeconfig_for(
        &self,
        file: &str,
        user: &str,
        group: Option<&str>,
    ) -> Result<PathBuf, Error> {
        self.write_kubeconfig(self.api.inner_port, file, user, group)
    }

    /// Kubeconfig for another user, for programs that run on this machine, wherever the bed is. Each user has one,
    /// which is never rewritten: a program may be about to read it.
    pub fn kubeconfig_here(&self, user: &str) -> Result<PathBuf, Error> {
        let mut written = self.users.lock();
        if let Some(path) = written.get(user) {
            return Ok(path.clone());
        }
        // `KUBECONFIG` separates paths with a colon.
        let file = format!("user-{}", user.replace(':', "-"));
        let path = self.write_kubeconfig(self.api.port, &file, user, None)?;
        written.insert(user.to_owned(), path.clone());
        Ok(path)
    }

    fn write_kubeconfig(
        &self,
        port: u16,
        file: &str,
        user: &str,
        group: Option<&str>,
    ) -> Result<PathBuf, Error> {
        let identity = self.authority.client(file, user, group)?;
        let path = self.bed.dir().join("control-plane").join(format!("{file}.kubeconfig"));
        kubeconfig::write(&path, port, &self.authority.certificate(), &identity)
            .map_err(Error::io("write", &path))?;
        Ok(path)
    }

    /// Certificate authority that clients and servers trust.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }
}

impl Ports {
    /// The usual ports are free in a network namespace of the bed's own; elsewhere any free port will do.
    fn choose(bed: &Bed, wanted: Option<u16>, [api, etcd, etcd_peer]: [u16; 3]) -> Self {
        if bed.isolation().is_some() {
            return Self { api: 6443, etcd: 2379, etcd_peer: 2380 };
        }
        Self { api: wanted.unwrap_or(api), etcd, etcd_peer }
    }
}

impl Pki {
    fn new(dir: &Path) -> Result<Self, Error> {
        let store = dir.join("store-pki");
        std::fs::create_dir_all(&store).map_err(Error::io("create", &store))?;
        let store_authority = Authority::new(&store)?;
        let authority = Authority::new(dir)?;
        let service = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        Ok(Self {
            store: store_authority.server("etcd", &[])?,
            store_authority,
            api_server: authority.server("kube-apiserver", &service)?,
            kubelet_client: authority.client(
                "kube-apiserver-kubelet-client",
                "kube-apiserver-kubelet-client",
                Some("system:masters"),
            )?,
            front_proxy: authority.client("front-proxy", "front-proxy-client", None)?,
            admin: authority.client("admin", "admin", Some("system:masters"))?,
            controller_manager: authority.client(
                "controller-manager",
                "system:kube-controller-manager",
                None,
            )?,
            scheduler: authority.client("scheduler", "system:kube-scheduler", None)?,
            service_accounts: authority.signing_key("service-accounts")?,
            authority,
        })
    }
}

impl ApiServer {
    /// Starts etcd and the API server, and waits until the server is ready.
    async fn start(
        bed: &Bed,
        dir: &Path,
        binaries: &Binaries,
        pki: &Pki,
        ports: Ports,
        wanted: Option<u16>,
    ) -> Result<Self, Error> {
        let data = dir.join("etcd");
        if data.exists() {
            // Left over from an attempt that lost its port.
            std::fs::remove_dir_all(&data).map_err(Error::io("remove", &data))?;
        }
        let command = etcd_command(&binaries.etcd, &data, pki, &ports);
        let mut etcd = Process::start(bed, "etcd", command)?;
        let command = api_server_command(&binaries.api_server, pki, &ports);
        let mut process = Process::start(bed, "kube-apiserver", command)?;
        let forward = match bed.isolation() {
            None => None,
            Some(isolation) => {
                let forward = Forward::start(isolation.clone(), wanted, ports.api);
                Some(forward.map_err(Error::Port)?)
            }
        };
        let port = forward.as_ref().map_or(ports.api, Forward::port);
        let kubeconfig = dir.join("kubeconfig");
        kubeconfig::write(&kubeconfig, port, &pki.authority.certificate(), &pki.admin)
            .map_err(Error::io("write", &kubeconfig))?;
        let client = kubeconfig::client(&kubeconfig).await?;
        // Another server may have taken the port: only this one has a trusted certificate.
        let ready = tokio::select! {
            ready = process.wait_until(START_TIMEOUT, || is_ready(&client)) => ready,
            // The API server dies when its store is dead: name the program that died first.
            dead = etcd.wait_for_exit() => Err(dead),
        };
        etcd.check()?;
        ready?;
        Ok(Self {
            _forward: forward,
            _process: process,
            _etcd: etcd,
            inner_port: ports.api,
            port,
            kubeconfig,
            client,
        })
    }
}

/// Starts the controllers and the scheduler, and waits until they work.
async fn start_controllers(
    bed: &Bed,
    dir: &Path,
    binaries: &Binaries,
    pki: &Pki,
    api: &ApiServer,
) -> Result<(Process, Process), Error> {
    let kubeconfig = |name: &str, identity: &Identity| -> Result<PathBuf, Error> {
        let path = dir.join(format!("{name}.kubeconfig"));
        kubeconfig::write(&path, api.inner_port, &pki.authority.certificate(), identity)
            .map_err(Error::io("write", &path))?;
        Ok(path)
    };
    let controller_kubeconfig = kubeconfig("controller-manager", &pki.controller_manager)?;
    let command =
        controller_manager_command(&binaries.controller_manager, pki, &controller_kubeconfig);
    let mut controller_manager = Process::start(bed, "kube-controller-manager", command)?;
    let scheduler_kubeconfig = kubeconfig("scheduler", &pki.scheduler)?;
    let command = with_own_kubeconfig(&binaries.scheduler, &scheduler_kubeconfig);
    let mut scheduler = Process::start(bed, "kube-scheduler", command)?;
    controller_manager
        .wait_until(START_TIMEOUT, || has_default_service_account(&api.client))
        .await?;
    scheduler.check()?;
    Ok((controller_manager, scheduler))
}

/// The store has its own authority: a client certificate of the API server must not open the store.
fn etcd_command(binary: &Path, data: &Path, pki: &Pki, ports: &Ports) -> Command {
    let client = format!("https://127.0.0.1:{}", ports.etcd);
    let peer = format!("https://127.0.0.1:{}", ports.etcd_peer);
    let mut command = Command::new(binary);
    command
        .args(["--name=bowline", "--log-level=warn", "--unsafe-no-fsync"])
        .args(["--client-cert-auth=true", "--peer-client-cert-auth=true"])
        .arg(format!("--data-dir={}", data.display()))
        .arg(format!("--listen-client-urls={client}"))
        .arg(format!("--advertise-client-urls={client}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster=bowline={peer}"))
        .arg("--quota-backend-bytes=8589934592");
    for prefix in ["", "peer-"] {
        command
            .arg(format!(
                "--{prefix}trusted-ca-file={}",
                pki.store_authority.certificate().display()
            ))
            .arg(format!("--{prefix}cert-file={}", pki.store.certificate.display()))
            .arg(format!("--{prefix}key-file={}", pki.store.key.display()));
    }
    command
}

fn api_server_command(binary: &Path, pki: &Pki, ports: &Ports) -> Command {
    let mut command = Command::new(binary);
    let mut file = |flag: &str, path: &Path| {
        command.arg(format!("--{flag}={}", path.display()));
    };
    file("client-ca-file", &pki.authority.certificate());
    file("tls-cert-file", &pki.api_server.certificate);
    file("tls-private-key-file", &pki.api_server.key);
    file("service-account-key-file", &pki.service_accounts.public);
    file("service-account-signing-key-file", &pki.service_accounts.private);
    file("requestheader-client-ca-file", &pki.authority.certificate());
    file("proxy-client-cert-file", &pki.front_proxy.certificate);
    file("proxy-client-key-file", &pki.front_proxy.key);
    file("kubelet-client-certificate", &pki.kubelet_client.certificate);
    file("kubelet-client-key", &pki.kubelet_client.key);
    file("kubelet-certificate-authority", &pki.authority.certificate());
    file("etcd-cafile", &pki.store_authority.certificate());
    file("etcd-certfile", &pki.store.certificate);
    file("etcd-keyfile", &pki.store.key);
    command
        .arg(format!("--etcd-servers=https://127.0.0.1:{}", ports.etcd))
        .arg(format!("--secure-port={}", ports.api))
        .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
        // A loopback address is not a valid endpoint of the `kubernetes` service.
        .arg("--endpoint-reconciler-type=none")
        .arg("--service-cluster-ip-range=10.96.0.0/16")
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        .args(["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"])
        .arg("--requestheader-allowed-names=front-proxy-client")
        .arg("--requestheader-username-headers=X-Remote-User")
        .arg("--requestheader-group-headers=X-Remote-Group")
        .arg("--requestheader-extra-headers-prefix=X-Remote-Extra-")
        .arg("--kubelet-preferred-address-types=InternalIP,Hostname")
        .args(["--allow-privileged=true", "--event-ttl=30m"]);
    command
}

fn controller_manager_command(binary: &Path, pki: &Pki, kubeconfig: &Path) -> Command {
    let mut command = with_own_kubeconfig(binary, kubeconfig);
    command
        .arg("--use-service-account-credentials=true")
        .arg(format!(
            "--service-account-private-key-file={}",
            pki.service_accounts.private.display()
        ))
        .arg(format!("--root-ca-file={}", pki.authority.certificate().display()))
        .arg(format!("--cluster-signing-cert-file={}", pki.authority.certificate().display()))
        .arg(format!("--cluster-signing-key-file={}", pki.authority.key().display()))
        .args(["--kube-api-qps=200", "--kube-api-burst=400"]);
    command
}

/// Neither program serves anything needed here, so neither gets a port.
fn with_own_kubeconfig(binary: &Path, kubeconfig: &Path) -> Command {
    let mut command = Command::new(binary);
    command.args(["--secure-port=0", "--leader-elect=false"]);
    for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
        command.arg(format!("--{flag}={}", kubeconfig.display()));
    }
    command
}

async fn is_ready(client: &Client) -> Option<()> {
    let request = http::Request::get("/readyz").body(Vec::new()).ok()?;
    client.request_text(request).await.ok().map(drop)
}

async fn has_default_service_account(client: &Client) -> Option<()> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    accounts.get_opt("default").await.ok().flatten().map(drop)
}
