//! etcd, the API server, the controllers and the scheduler, with RBAC and client certificates.
//!
//! Ready means: the API server answers `/readyz`, and the controllers have made the `default`
//! service account, so that pods can be created.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client};

use crate::forward::Forward;
use crate::pki::{Authority, Identity, SigningKey};
use crate::process::Process;
use crate::program::{self, Program};
use crate::{Bed, Error, kubeconfig, port};

/// How long a program may take to come up. Four seconds are usual; a machine that compiles beside
/// it is slower.
const START_LIMIT: Duration = Duration::from_mins(2);

/// How often a start is tried again when a port that was free has been taken meanwhile.
const PORT_TRIES: usize = 3;

/// How a control plane is started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The port of the API server on the loopback address; a free one if not given.
    pub port: Option<u16>,
}

/// A running control plane. Dropping it ends it.
pub struct ControlPlane {
    // In the order in which they end.
    _scheduler: Process,
    _controller_manager: Process,
    _forward: Option<Forward>,
    _api_server: Process,
    _etcd: Process,
    kubeconfig: PathBuf,
    port: u16,
    inner_port: u16,
    authority: Authority,
    bed: Bed,
}

struct Ports {
    api: u16,
    etcd: u16,
    etcd_peer: u16,
}

/// The files that the programs are configured with.
struct Pki {
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
        let [etcd, api_server, controller_manager, scheduler] = program::locate([
            Program::Etcd,
            Program::ApiServer,
            Program::ControllerManager,
            Program::Scheduler,
        ])
        .await?;
        let binaries = Binaries { etcd, api_server, controller_manager, scheduler };
        if let Some(port) = options.port.filter(|&port| !port::is_free(port)) {
            return Err(Error::PortInUse { port });
        }
        let dir = bed.subdir("control-plane").map_err(Error::io("create", bed.dir()))?;
        let pki = Pki::new(&dir)?;

        let mut tries = 1;
        let (ports, etcd, mut api_server) = loop {
            let ports = Ports::choose(bed, options.port).map_err(Error::io("bind", &dir))?;
            match start_api_server(bed, &dir, &binaries, &pki, &ports).await {
                Ok((etcd, api_server)) => break (ports, etcd, api_server),
                Err(Error::Process(error)) if error.is_port_conflict() && tries < PORT_TRIES => {
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        };
        let forward = match bed.isolation() {
            None => None,
            Some(isolation) => Some(
                Forward::start(isolation.clone(), options.port, ports.api)
                    .map_err(Error::io("forward to", &dir))?,
            ),
        };
        let port = forward.as_ref().map_or(ports.api, Forward::port);
        let kubeconfig = dir.join("kubeconfig");
        kubeconfig::write(&kubeconfig, port, &pki.authority.certificate(), &pki.admin)
            .map_err(Error::io("write", &kubeconfig))?;
        let client = kubeconfig::client(&kubeconfig).await?;
        api_server.until(START_LIMIT, || is_ready(&client)).await?;

        let inner = |name: &str, identity: &Identity| -> Result<PathBuf, Error> {
            let path = dir.join(format!("{name}.kubeconfig"));
            kubeconfig::write(&path, ports.api, &pki.authority.certificate(), identity)
                .map_err(Error::io("write", &path))?;
            Ok(path)
        };
        let command = controller_manager_command(
            &binaries.controller_manager,
            &pki,
            &inner("controller-manager", &pki.controller_manager)?,
        );
        let mut controller_manager = Process::start(bed, "kube-controller-manager", command)?;
        let command = scheduler_command(&binaries.scheduler, &inner("scheduler", &pki.scheduler)?);
        let mut scheduler = Process::start(bed, "kube-scheduler", command)?;
        controller_manager.until(START_LIMIT, || has_default_service_account(&client)).await?;
        scheduler.check()?;

        Ok(Self {
            _scheduler: scheduler,
            _controller_manager: controller_manager,
            _forward: forward,
            _api_server: api_server,
            _etcd: etcd,
            kubeconfig,
            port,
            inner_port: ports.api,
            authority: pki.authority,
            bed: bed.clone(),
        })
    }

    /// The kubeconfig of its administrator.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The port of its API server on this machine's loopback address.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The bed that it runs in.
    pub fn bed(&self) -> &Bed {
        &self.bed
    }

    /// A client with the rights of the administrator.
    pub async fn client(&self) -> Result<Client, Error> {
        Ok(kubeconfig::client(&self.kubeconfig).await?)
    }

    /// `kubectl` as the administrator, ready for arguments.
    pub async fn kubectl(&self) -> Result<tokio::process::Command, Error> {
        let [kubectl] = program::locate([Program::Kubectl]).await?;
        let mut command = tokio::process::Command::new(kubectl);
        command.arg("--kubeconfig").arg(&self.kubeconfig).kill_on_drop(true);
        Ok(command)
    }

    /// A kubeconfig for another user, for programs that run in the same bed; `file` names its files.
    pub fn kubeconfig_for(
        &self,
        file: &str,
        user: &str,
        group: Option<&str>,
    ) -> Result<PathBuf, Error> {
        let identity = self.authority.client(file, user, group)?;
        let path = self.bed.dir().join("control-plane").join(format!("{file}.kubeconfig"));
        kubeconfig::write(&path, self.inner_port, &self.authority.certificate(), &identity)
            .map_err(Error::io("write", &path))?;
        Ok(path)
    }

    /// The authority that its clients and servers trust.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }
}

impl Ports {
    /// In a namespace of its own the usual ports are free; elsewhere any free ones will do.
    fn choose(bed: &Bed, wanted: Option<u16>) -> std::io::Result<Self> {
        if bed.isolation().is_some() {
            return Ok(Self { api: 6443, etcd: 2379, etcd_peer: 2380 });
        }
        let api = wanted.map_or_else(port::free, Ok)?;
        Ok(Self { api, etcd: port::free()?, etcd_peer: port::free()? })
    }
}

impl Pki {
    fn new(dir: &Path) -> Result<Self, Error> {
        let authority = Authority::new(dir)?;
        let service = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        Ok(Self {
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

/// Starts etcd and the API server, and waits until something listens on its port.
async fn start_api_server(
    bed: &Bed,
    dir: &Path,
    binaries: &Binaries,
    pki: &Pki,
    ports: &Ports,
) -> Result<(Process, Process), Error> {
    let data = dir.join("etcd");
    if data.exists() {
        // Left by a try that lost its port.
        std::fs::remove_dir_all(&data).map_err(Error::io("remove", &data))?;
    }
    let mut etcd = Process::start(bed, "etcd", etcd_command(&binaries.etcd, &data, ports))?;
    let command = api_server_command(&binaries.api_server, pki, ports);
    let mut api_server = Process::start(bed, "kube-apiserver", command)?;
    let port = ports.api;
    let isolation = bed.isolation().cloned();
    let listens = || {
        let isolation = isolation.clone();
        async move {
            match isolation {
                Some(isolation) => isolation.dial(port).ok().map(drop),
                None => tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok().map(drop),
            }
        }
    };
    let outcome = api_server.until(START_LIMIT, listens).await;
    // A dead etcd shows as an API server that never listens: name the one that died first.
    etcd.check()?;
    outcome?;
    Ok((etcd, api_server))
}

fn etcd_command(binary: &Path, data: &Path, ports: &Ports) -> Command {
    let client = format!("http://127.0.0.1:{}", ports.etcd);
    let peer = format!("http://127.0.0.1:{}", ports.etcd_peer);
    let mut command = Command::new(binary);
    command
        .args(["--name=bowline", "--log-level=warn", "--unsafe-no-fsync"])
        .arg(format!("--data-dir={}", data.display()))
        .arg(format!("--listen-client-urls={client}"))
        .arg(format!("--advertise-client-urls={client}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster=bowline={peer}"))
        .arg("--quota-backend-bytes=8589934592");
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
    command
        .arg(format!("--etcd-servers=http://127.0.0.1:{}", ports.etcd))
        .arg(format!("--secure-port={}", ports.api))
        .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
        // A loopback address is no legal endpoint of the `kubernetes` service.
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

fn scheduler_command(binary: &Path, kubeconfig: &Path) -> Command {
    with_own_kubeconfig(binary, kubeconfig)
}

/// Neither serves anything that we ask for, so neither needs a port.
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
