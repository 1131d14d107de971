use bowline_testbed::{Bed, ControlPlane, Error, Options, apply, kubeconfig};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::Api;
use kube::api::ListParams;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[tokio::test]
async fn two_control_planes_run_side_by_side() {
    let start = || async {
        let bed = Bed::new().unwrap();
        ControlPlane::start(&bed, Options::default()).await.unwrap()
    };
    let (one, other) = tokio::join!(start(), start());
    assert_ne!(one.port(), other.port());
    let namespaces = async |plane: &ControlPlane| -> Vec<String> {
        let api: Api<Namespace> = Api::all(plane.client().await.unwrap());
        let list = api.list(&ListParams::default()).await.unwrap();
        list.into_iter().filter_map(|namespace| namespace.metadata.name).collect()
    };
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mine"}});
    apply::apply(&one.client().await.unwrap(), namespace).await.unwrap();
    assert!(namespaces(&one).await.contains(&"mine".to_owned()));
    assert!(!namespaces(&other).await.contains(&"mine".to_owned()));
}

#[tokio::test]
async fn rbac_is_enforced() {
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let path = plane.kubeconfig_for("guest", "guest", None).unwrap();
    let secrets: Api<Secret> = Api::all(kubeconfig::client(&path).await.unwrap());
    let error = secrets.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error}");
}

/// The ports of the bed's etcd, from its command line.
fn store_ports(bed: &Bed) -> Vec<u16> {
    let data = format!("--data-dir={}", bed.dir().join("control-plane/etcd").display());
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let arguments: Vec<_> =
            line.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
        if arguments.iter().any(|word| *word == data) {
            let port = |argument: &str| {
                argument.strip_prefix("--listen-")?.rsplit_once(':')?.1.parse().ok()
            };
            return arguments.iter().filter_map(|word| port(word)).collect();
        }
    }
    Vec::new()
}

#[tokio::test]
async fn etcd_refuses_clients_without_a_certificate() {
    let bed = Bed::new().unwrap();
    let _plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let ports = store_ports(&bed);
    assert_eq!(ports.len(), 2, "for clients and for peers");
    for port in ports {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.write_all(b"GET /version HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.contains("etcdserver"), "{answer}");
    }
}

#[tokio::test]
async fn port_in_use_is_refused_before_anything_starts() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let bed = Bed::new().unwrap();
    let result = ControlPlane::start(&bed, Options { port: Some(port) }).await;
    let Err(error) = result else { panic!("it started on a port that is in use") };
    assert!(matches!(error, Error::WantedPort { port: p, .. } if p == port), "{error}");
    assert!(!bed.dir().join("log").exists());
}
