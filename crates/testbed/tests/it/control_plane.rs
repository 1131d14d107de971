use bowline_testbed::{Bed, ControlPlane, Error, Options, apply, kubeconfig};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

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
    let mine = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mine"}});
    apply::apply(&one.client().await.unwrap(), mine).await.unwrap();
    assert!(namespaces(&one).await.contains(&"mine".to_owned()));
    assert!(!namespaces(&other).await.contains(&"mine".to_owned()));
}

#[tokio::test]
async fn rights_are_enforced() {
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let path = plane.kubeconfig_for("guest", "guest", None).unwrap();
    let secrets: Api<Secret> = Api::all(kubeconfig::client(&path).await.unwrap());
    let error = secrets.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error}");
}

#[tokio::test]
async fn a_port_in_use_is_refused_before_anything_is_started() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let bed = Bed::new().unwrap();
    let result = ControlPlane::start(&bed, Options { port: Some(port) }).await;
    let Err(error) = result else { panic!("it started on a port that is in use") };
    assert!(matches!(error, Error::PortInUse { port: p } if p == port), "{error}");
    assert!(!bed.dir().join("log").exists());
}
