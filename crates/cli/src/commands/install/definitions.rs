//! Custom resource definitions, on which everything else depends.

use std::fmt::Display;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bowline_api::crds::{self, Plan};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt as _};
use tokio::time::Instant;

use crate::installation::connection_hint;
use crate::output;

/// Longest wait until the API server serves the definitions.
const ESTABLISH_TIMEOUT: Duration = Duration::from_secs(30);

/// Changes that would be made to the definitions, one line each, from a dry run.
pub(super) async fn check(client: &Client) -> anyhow::Result<Vec<String>> {
    let plans = apply(client, &crds::all(), true).await?;
    Ok(plans.iter().map(|(name, plan)| format!("{name}: {}", describe_plan(plan, true))).collect())
}

/// Installs the definitions, and reports the change to each.
pub(super) async fn install(client: &Client) -> anyhow::Result<()> {
    for (name, plan) in apply(client, &crds::all(), false).await? {
        output::print_message(format_args!("{name}: {}", describe_plan(&plan, false)));
    }
    Ok(())
}

/// Updates the definitions of a cluster, and waits until they are served. Returns the change to each, or the change
/// that would be made if `dry_run`.
pub(crate) async fn apply(
    client: &Client,
    definitions: &[CustomResourceDefinition],
    dry_run: bool,
) -> anyhow::Result<Vec<(String, Plan)>> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut done = Vec::new();
    for crd in definitions {
        let name = crd.name_any();
        let installed = api.get_opt(&name).await.map_err(|error| read_error(&name, error))?;
        let plan = crds::plan(installed.as_ref(), crd);
        apply_plan(&api, &plan, installed, crd, dry_run)
            .await
            .with_context(|| format!("cannot install {name}"))?;
        done.push((name, plan));
    }
    if !dry_run {
        for crd in definitions {
            wait_until_served(&api, &crd.name_any()).await?;
        }
    }
    Ok(done)
}

async fn apply_plan(
    api: &Api<CustomResourceDefinition>,
    plan: &Plan,
    installed: Option<CustomResourceDefinition>,
    definition: &CustomResourceDefinition,
    dry_run: bool,
) -> kube::Result<()> {
    let params = PostParams { dry_run, field_manager: Some("bowline".to_owned()) };
    match (plan, installed) {
        (Plan::UpToDate | Plan::KeepNewer { .. }, _) => Ok(()),
        (Plan::Create | Plan::Update, None) => api.create(&params, definition).await.map(drop),
        (Plan::Create | Plan::Update, Some(mut installed)) => {
            // Labels and annotations of others stay; the resource version makes a concurrent change a conflict instead
            // of a loss.
            installed.labels_mut().extend(definition.labels().clone());
            installed.annotations_mut().extend(definition.annotations().clone());
            installed.spec = definition.spec.clone();
            api.replace(&installed.name_any(), &params, &installed).await.map(drop)
        }
    }
}

async fn wait_until_served(api: &Api<CustomResourceDefinition>, name: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + ESTABLISH_TIMEOUT;
    loop {
        let crd = api.get(name).await.map_err(|error| read_error(name, error))?;
        let conditions = crd.status.and_then(|status| status.conditions).unwrap_or_default();
        if conditions.iter().any(|c| c.type_ == "Established" && c.status == "True") {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let reason = conditions
                .into_iter()
                .find_map(|c| c.message.filter(|_| c.status == "False"))
                .unwrap_or_else(|| "no reason in its conditions".to_owned());
            bail!(
                "{name} is installed but not served after {} s: {reason}",
                ESTABLISH_TIMEOUT.as_secs()
            );
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// An unreachable cluster is the usual reason; the error has a hint for it.
fn read_error(name: &str, error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(_) => anyhow::Error::new(error).context(format!("cannot read {name}")),
        error => {
            let hint = connection_hint(&error);
            anyhow::Error::new(error).context(hint)
        }
    }
}

fn describe_plan(plan: &Plan, dry_run: bool) -> impl Display {
    match (plan, dry_run) {
        (Plan::Create, false) => "created".to_owned(),
        (Plan::Create, true) => "would be created".to_owned(),
        (Plan::Update, false) => "updated".to_owned(),
        (Plan::Update, true) => "would be updated".to_owned(),
        (Plan::UpToDate, _) => "up to date".to_owned(),
        (Plan::KeepNewer { unknown_to_us }, _) => {
            let fields = unknown_to_us.join(", ");
            format!("kept, because it is newer than this program's, which lacks {fields}")
        }
    }
}
