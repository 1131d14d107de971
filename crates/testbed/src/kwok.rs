//! A node that is not there: pods on it run at once, by the thousand, and nothing is executed.

use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::apply::apply;
use crate::node::is_ready;
use crate::process::Process;
use crate::program::{self, Program};
use crate::{ControlPlane, Error};

const START_LIMIT: Duration = Duration::from_mins(1);

/// The name of the node.
pub const NODE: &str = "kwok-0";

/// A running kwok with one node. Dropping it ends it; the Node object stays.
#[derive(Debug)]
pub struct Kwok {
    _process: Process,
}

impl Kwok {
    /// Starts kwok in the bed of `plane` and waits until its node is ready for pods.
    pub async fn start(plane: &ControlPlane) -> Result<Self, Error> {
        let bed = plane.bed();
        let [binary] = program::locate([Program::Kwok]).await?;
        let kubeconfig = plane.kubeconfig_for("kwok", "kwok", Some("system:masters"))?;
        let mut command = Command::new(binary);
        command
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg("--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake")
            .args(["--node-ip=127.0.0.1", "--cidr=10.244.0.1/16"])
            // No configuration of the user's, and no server: nobody asks this node for anything.
            .env("HOME", bed.dir());
        let mut process = Process::start(bed, "kwok", command)?;
        let client = plane.client().await?;
        apply(&client, node()).await?;
        process.until(START_LIMIT, || is_ready(&client, NODE)).await?;
        Ok(Self { _process: process })
    }
}

fn node() -> serde_json::Value {
    let room = json!({"cpu": "1000", "memory": "4Ti", "pods": "10000"});
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": NODE,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": NODE,
                "kubernetes.io/os": "linux",
                "type": "kwok",
            },
        },
        "status": {"allocatable": room, "capacity": room},
    })
}
