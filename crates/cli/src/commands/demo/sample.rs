//! The application that the demo is about.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bowline_testbed::apply::apply;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::Value;
use tokio::time::Instant;

use crate::output;

const MANIFESTS: &str = include_str!("sample.yaml");

/// The namespaces that the application lives in.
pub(super) const NAMESPACES: [&str; 2] = ["shop", "shop-data"];

/// Its pods: three of the storefront, one of the database.
const PODS: usize = 4;

const RUN_LIMIT: Duration = Duration::from_mins(1);

/// Creates the application and waits until its pods run.
pub(super) async fn create(client: &Client) -> anyhow::Result<()> {
    for object in objects()? {
        apply(client, object).await?;
    }
    let deadline = Instant::now() + RUN_LIMIT;
    loop {
        let running = running_pods(client).await?;
        if running == PODS {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!("{running} of {PODS} pods of the sample application run after a minute");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A table of what is there.
pub(super) async fn show(client: &Client) -> anyhow::Result<String> {
    let mut rows = Vec::new();
    for object in objects()? {
        let field = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        rows.push(
            [field("/metadata/namespace"), field("/kind"), field("/metadata/name")]
                .map(str::to_owned),
        );
    }
    rows.sort();
    let table = output::table(["NAMESPACE", "KIND", "NAME"], rows);
    let running = running_pods(client).await?;
    Ok(format!("\nThe sample application, with {running} pods running:\n\n{table}"))
}

fn objects() -> anyhow::Result<Vec<Value>> {
    serde_saphyr::from_multiple(MANIFESTS).context("cannot read the sample application")
}

async fn running_pods(client: &Client) -> anyhow::Result<usize> {
    let mut running = 0;
    for namespace in NAMESPACES {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let list = pods.list(&ListParams::default()).await.context("cannot list pods")?;
        let runs = |pod: &&Pod| {
            pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
        };
        running += list.iter().filter(runs).count();
    }
    Ok(running)
}
